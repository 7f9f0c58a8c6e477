//! One rank of `cargo xtask bench ddp`: how much of the gradient exchange a step hides.

use std::time::{Duration, Instant};

use everburn::burn;
use everburn::burn::module::{Module, ModuleVisitor, Param};
use everburn::burn::nn::{Linear, LinearConfig};
use everburn::burn::optim::GradientsParams;
use everburn::burn::prelude::*;
use everburn::burn::tensor::Distribution;
use everburn::burn::tensor::activation::relu;
use everburn::collectives::group::{GroupOptions, ReduceOp};
use everburn::distributed::{Ddp, DdpConfig, DdpError};
use everburn_record::statistics::median;

use super::order::{Mode, Order, Step};
use crate::failure::Failure;
use crate::rank;

/// Steps that are not measured: caches fill, and the buckets are packed anew after the first.
const WARM_UP: usize = 3;

/// What a step took on this rank.
#[derive(Debug, Clone, Copy)]
struct Taken {
    step: Duration,
    exposed: Duration,
}

#[derive(Module, Debug)]
struct Tower {
    layers: Vec<Linear>,
}

impl Tower {
    /// The mean of squares of the output.
    fn loss(&self, mut rows: Tensor<2>) -> Tensor<1> {
        for layer in &self.layers {
            rows = relu(layer.forward(rows));
        }
        rows.powf_scalar(2.0).mean()
    }
}

pub(crate) fn run(order: &Order) -> Result<(), Failure> {
    let (group, _) = rank::join(GroupOptions {
        transport: order.transport.parse().map_err(Failure::usage)?,
        ..GroupOptions::default()
    })?;
    let device = Device::flex().autodiff();
    let layer = LinearConfig::new(order.width, order.width);
    let layers = (0..order.layers).map(|_| layer.init(&device));
    let tower = Tower {
        layers: layers.collect(),
    };
    let (ddp, tower) = Ddp::new(tower, group, DdpConfig::default())?;
    let rows = Tensor::random([order.batch, order.width], Distribution::Default, &device);
    let mut taken = Vec::with_capacity(order.steps);
    for step in 0..WARM_UP + order.steps {
        ddp.group().set_step(step as u64);
        ddp.group().barrier().wait()?;
        let one = one_step(&ddp, &tower, rows.clone(), order)?;
        if step >= WARM_UP {
            taken.push(one);
        }
    }
    let slowest = taken.iter().map(|taken| taken.step.as_secs_f64()).collect();
    let slowest = ddp.group().all_reduce(slowest, ReduceOp::Max).wait()?;
    let exposed = taken.iter().map(|taken| 1e3 * taken.exposed.as_secs_f64());
    let measured = Step {
        milliseconds: 1e3 * median(&slowest).unwrap_or(f64::NAN),
        exposed_ms: median(&exposed.collect::<Vec<_>>()).unwrap_or(f64::NAN),
        parameters: tower.num_params(),
    };
    let (is_first, group) = (ddp.group().rank() == 0, ddp.group().clone());
    drop(ddp);
    group.destroy()?;
    if is_first {
        say!("{}", serde_json::json!(measured));
    }
    Ok(())
}

fn one_step(ddp: &Ddp, tower: &Tower, rows: Tensor<2>, order: &Order) -> Result<Taken, DdpError> {
    let samples = order.batch;
    let mut ready = (order.mode == Mode::Communication).then(|| gradients_of(tower));
    let start = Instant::now();
    let synced = match order.mode {
        Mode::Compute => {
            drop(tower.loss(rows).backward());
            None
        }
        Mode::Communication => {
            let gradients = ready.take().unwrap_or_default();
            Some(ddp.sync_gradients(tower, gradients, samples)?)
        }
        Mode::Sequential => {
            let gradients = GradientsParams::from_grads(tower.loss(rows).backward(), tower);
            Some(ddp.sync_gradients(tower, gradients, samples)?)
        }
        Mode::Overlapped => {
            let step = ddp.begin(samples)?;
            drop(step.with_hooks(tower, samples).loss(rows).backward());
            Some(step.finish(tower)?)
        }
    };
    Ok(Taken {
        step: start.elapsed(),
        exposed: synced.map_or(Duration::ZERO, |synced| synced.communication.exposed),
    })
}

/// Gradients of the right shapes, in memory that has been written.
fn gradients_of(tower: &Tower) -> GradientsParams {
    struct Ones(GradientsParams);
    impl ModuleVisitor for Ones {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let ones = Tensor::<D>::ones(param.lazy_shape(), &param.lazy_device().inner());
            self.0.register(param.id, ones);
        }
    }
    let mut ones = Ones(GradientsParams::new());
    tower.visit(&mut ones);
    ones.0
}
