//! A forward and a backward pass on a device against the same on the processor.

use std::fmt::Display;

use everburn::burn::module::{Module, ModuleVisitor, Param};
use everburn::burn::optim::GradientsParams;
use everburn::burn::prelude::*;
use everburn::nn::{Activation, InBlocks};
use everburn::prelude::{Supervised, TrainingData};
use everburn::train::Objective;

use super::models::{Visitor, rounded};
use crate::failure::Failure;
use crate::gpu_check::apart::difference;
use crate::gpu_check::order::{Numbers, Plant};

/// How many times weights are rounded to see how far gradients move.
const TIMES: u64 = 6;

/// Compares `device` with the processor.
pub(super) struct Compare {
    pub(super) device: Device,
    /// How many samples pass through the model.
    pub(super) samples: usize,
    /// By how much of itself it may round a factor.
    pub(super) rounding: f64,
    pub(super) plant: Option<Plant>,
}

impl Visitor for Compare {
    type Output = Numbers;

    fn visit<M, O, I>(
        self,
        model: M,
        data: TrainingData<I, (O::Input, O::Targets)>,
    ) -> Result<Numbers, Failure>
    where
        M: InBlocks<Input = O::Input, Output = O::Output> + Module + Display + Sync + 'static,
        O: Objective<Input: Activation, Output: Activation>,
        I: Send + Sync + Clone + 'static,
    {
        let pass = |model: &M, device: &Device| pass::<M, O, I>(model, &data, self.samples, device);
        let here = pass(&model, &Device::flex())?;
        let mut there = pass(&model, &self.device)?;
        match self.plant {
            Some(Plant::Forward) => there.output[0] += 0.5,
            Some(Plant::Backward) => there.gradients[0].1[0] += 0.5,
            _ => {}
        }
        let (backward, parameter) = furthest(&here, &there)?;
        let mut spread = 0.0_f64;
        for seed in 0..TIMES {
            let rounded = rounded(model.clone(), self.rounding, seed);
            let rounded = pass(&rounded, &Device::flex())?;
            spread = spread.max(furthest(&here, &rounded)?.0);
        }
        Ok(Numbers {
            forward: difference(&here.output, &there.output),
            backward,
            parameter,
            spread,
        })
    }
}

/// How far the gradient that differs most is from the other's, and the path of its parameter.
fn furthest(here: &Pass, there: &Pass) -> Result<(f64, String), Failure> {
    if here.gradients.len() != there.gradients.len() {
        return Err(Failure::usage(
            "the devices have gradients of different parameters",
        ));
    }
    let mut worst = (0.0, String::new());
    for ((path, one), (_, other)) in here.gradients.iter().zip(&there.gradients) {
        let difference = difference(one, other);
        if difference > worst.0 || difference.is_nan() {
            worst = (difference, path.clone());
        }
    }
    Ok(worst)
}

/// What a forward and a backward pass yield.
struct Pass {
    output: Vec<f64>,
    gradients: Vec<(String, Vec<f64>)>,
}

fn pass<M, O, I>(
    model: &M,
    data: &TrainingData<I, (O::Input, O::Targets)>,
    samples: usize,
    device: &Device,
) -> Result<Pass, Failure>
where
    M: InBlocks<Input = O::Input, Output = O::Output> + Module + Display + Sync + 'static,
    O: Objective<Input: Activation, Output: Activation>,
{
    let device = device.clone().autodiff();
    let samples = (0..data.train.len().min(samples)).collect();
    let items = data.train.get_many(samples);
    let items = items.map_err(|error| Failure::usage(error.to_string()))?;
    let batch = data.batcher.batch(items, &device);
    let model = Supervised::<M, O>::of_blocks(model.clone().train().fork(&device));
    let output = model.forward(batch.0);
    let values = output.values();
    let values = values.map_err(|error| Failure::usage(error.to_string()))?;
    let gradients = O::loss(output, batch.1).mean.backward();
    let gradients = GradientsParams::from_grads(gradients, &model);
    Ok(Pass {
        output: values.iter().flat_map(|data| data.iter::<f64>()).collect(),
        gradients: numbers_of(model.model(), gradients),
    })
}

/// All gradients, flat, each with the path of its parameter.
fn numbers_of<M: Module>(model: &M, gradients: GradientsParams) -> Vec<(String, Vec<f64>)> {
    struct Collect {
        gradients: GradientsParams,
        path: Vec<String>,
        found: Vec<(String, Vec<f64>)>,
    }
    impl ModuleVisitor for Collect {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            self.path.push(name.to_string());
        }

        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            // Tied weights are visited twice and have one gradient.
            if let Some(gradient) = self.gradients.remove::<D>(param.id) {
                let numbers = gradient.into_data().iter::<f64>().collect();
                self.found.push((self.path.join("."), numbers));
            }
        }
    }
    let mut collect = Collect {
        gradients,
        path: Vec::new(),
        found: Vec::new(),
    };
    model.visit(&mut collect);
    collect.found
}
