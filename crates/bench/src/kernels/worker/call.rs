//! The time of a layer's call.

use std::hint::black_box;
use std::time::{Duration, Instant};

use everburn::burn::module::{Module, ModuleVisitor, Param};
use everburn::burn::prelude::*;
use everburn::burn::tensor::Gradients;
use everburn_record::statistics::median;

use super::given_gradient::backward_from;
use super::noise::{self, noise};
use crate::failure::Failure;
use crate::kernels::layer::{Order, Pass};

/// Threads that spin for others, caches and clocks settle within this share of the time.
const WARM_UP_SHARE: f64 = 0.25;

/// A call that takes longer than its time is measured once.
const FEWEST_CALLS: usize = 1;

/// Microseconds of the median call, and the mean size of the numbers of the output and of each gradient where that
/// was asked for.
pub(super) type CallResult = (f64, Option<Vec<f64>>);

impl Order {
    pub(super) fn device(&self) -> Device {
        match self.pass {
            Pass::Forward => Device::flex(),
            Pass::Backward | Pass::WeightGradient => Device::flex().autodiff(),
        }
    }
}

/// Measures `forward` of a module on inputs of these shapes, with the gradients that are asked for,
/// from a gradient of the output that is there already.
pub(super) fn measure<M: Module, const N: usize, const D: usize, const E: usize>(
    order: &Order,
    device: &Device,
    shapes: [[usize; D]; N],
    module: &M,
    forward: impl Fn(&M, [Tensor<D>; N]) -> Tensor<E>,
) -> Result<CallResult, Failure> {
    let mut inputs = Vec::with_capacity(N);
    for (place, shape) in shapes.into_iter().enumerate() {
        let input = noise(shape, place as u32, device)?;
        inputs.push(match order.pass {
            Pass::Backward => input.require_grad(),
            Pass::Forward | Pass::WeightGradient => input,
        });
    }
    let inputs: [_; N] = inputs
        .try_into()
        .expect("one input for each of the N shapes");
    let output = forward(module, inputs.clone());
    if order.pass == Pass::Forward {
        let mut call = || drop(black_box(forward(module, inputs.clone())));
        let microseconds = median_call(&mut call, order.milliseconds);
        return Ok((microseconds, order.check.then(|| vec![noise::size(output)])));
    }
    let gradient = noise(output.dims(), noise::GRADIENT, device)?;
    let backward = |output: Tensor<E>| backward_from(output, gradient.clone());
    let mut call = || drop(black_box(backward(forward(module, inputs.clone()))));
    let microseconds = median_call(&mut call, order.milliseconds);
    let check = order.check.then(|| {
        let mut sizes = Sizes {
            gradients: backward(output.clone()),
            found: vec![noise::size(output)],
        };
        inputs.iter().for_each(|input| sizes.add(input));
        module.visit(&mut sizes);
        sizes.found
    });
    Ok((microseconds, check))
}

/// The sizes of gradients, where there are some.
struct Sizes {
    gradients: Gradients,
    found: Vec<f64>,
}

impl Sizes {
    fn add<const D: usize>(&mut self, tensor: &Tensor<D>) {
        let gradient = tensor.grad(&self.gradients);
        self.found.extend(gradient.map(noise::size));
    }
}

impl ModuleVisitor for Sizes {
    fn visit_float<const D: usize>(&mut self, parameter: &Param<Tensor<D>>) {
        self.add(&parameter.val());
    }
}

/// Microseconds of the median call, in about this many milliseconds and some for warming up. It is compiled once for all layers.
fn median_call(call: &mut dyn FnMut(), milliseconds: u64) -> f64 {
    let budget = Duration::from_millis(milliseconds);
    let start = Instant::now();
    call();
    while start.elapsed() < budget.mul_f64(WARM_UP_SHARE) {
        call();
    }
    let mut times = Vec::new();
    let start = Instant::now();
    while times.len() < FEWEST_CALLS || start.elapsed() < budget {
        let before = Instant::now();
        call();
        times.push(before.elapsed().as_secs_f64());
    }
    median(&times).unwrap_or(f64::NAN) * 1e6
}
