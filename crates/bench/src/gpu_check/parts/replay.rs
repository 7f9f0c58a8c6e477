//! Whether a forward and a backward pass can be recorded by the GPU and replayed: what it would take to launch a whole
//! step at once.

use std::time::Instant;

use everburn::burn::module::{Module, ModuleVisitor, Param};
use everburn::burn::optim::GradientsParams;
use everburn::burn::prelude::*;
use everburn::burn::tensor::{Distribution, Int};
use everburn::nn::CapturedGraph;
use everburn::train::{Classification, Objective, draw_parameters};
use everburn_models::mnist::{Mnist, MnistConfig};

use crate::failure::Failure;
use crate::gpu_check::apart::difference;
use crate::gpu_check::order::{Replayed, SEED};

/// A batch whose step is all launches: the smallest that is measured.
const BATCH: usize = 64;

/// How often each way is run for its time.
const TIMES: u32 = 200;

/// Records, replays, and compares.
pub(super) fn run(device: &Device) -> Result<Replayed, Failure> {
    device.seed(SEED);
    let device = device.clone().autodiff();
    let model = MnistConfig::new().init(&device);
    draw_parameters(&model);
    let draw = || {
        let images = Tensor::<4>::random([BATCH, 1, 28, 28], Distribution::Default, &device);
        images.without_autodiff()
    };
    let mut images = draw();
    let classes = Tensor::<1, Int>::zeros([BATCH], &device);
    let recorded = {
        let pass = || pass(&model, images.clone(), classes.clone());
        CapturedGraph::capture(&device, pass)
    };
    let mut recorded = recorded.map_err(|error| Failure::usage(error.to_string()))?;
    let mut apart = |images: &Tensor<4>| -> Result<f64, Failure> {
        let replayed = recorded.replay();
        replayed.map_err(|error| Failure::usage(error.to_string()))?;
        let replayed = numbers(recorded.yielded());
        Ok(difference(
            &numbers(&pass(&model, images.clone(), classes.clone())),
            &replayed,
        ))
    };
    let as_recorded = apart(&images)?;
    let others = draw();
    // In place, as long as nobody else has the old ones: the recording reads this memory.
    let whole = [0..BATCH, 0..1, 0..28, 0..28];
    images = images.slice_assign(whole, others.clone());
    let with_others = apart(&others)?;
    drop(images);

    let wait = || {
        let done = device.sync();
        done.map_err(|error| Failure::usage(format!("the device has failed: {error}")))
    };
    wait()?;
    let start = Instant::now();
    for _ in 0..TIMES {
        drop(pass(&model, others.clone(), classes.clone()));
    }
    wait()?;
    let launched = start.elapsed() / TIMES;
    let start = Instant::now();
    for _ in 0..TIMES {
        let replayed = recorded.replay();
        replayed.map_err(|error| Failure::usage(error.to_string()))?;
    }
    wait()?;
    let replayed = start.elapsed() / TIMES;
    Ok(Replayed {
        apart: as_recorded,
        apart_with_others: with_others,
        launched_us: 1e6 * launched.as_secs_f64(),
        replayed_us: 1e6 * replayed.as_secs_f64(),
    })
}

/// The loss, and all gradients.
fn pass(model: &Mnist, images: Tensor<4>, classes: Tensor<1, Int>) -> Vec<Tensor<1>> {
    struct Collect(GradientsParams, Vec<Tensor<1>>);
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.remove::<D>(param.id) {
                let length = gradient.shape().num_elements();
                self.1.push(gradient.without_autodiff().reshape([length]));
            }
        }
    }
    let loss = Classification::<4>::loss(model.forward(images), classes).mean;
    let gradients = GradientsParams::from_grads(loss.backward(), model);
    let mut collect = Collect(gradients, vec![loss.without_autodiff()]);
    model.visit(&mut collect);
    collect.1
}

fn numbers(tensors: &[Tensor<1>]) -> Vec<f64> {
    let data = tensors.iter().map(|tensor| tensor.to_data());
    data.flat_map(|data| data.iter::<f64>().collect::<Vec<_>>())
        .collect()
}
