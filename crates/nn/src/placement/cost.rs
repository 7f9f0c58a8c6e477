//! What a block costs.

use std::time::Instant;

use burn::tensor::Device;

use crate::blocks::{AnyActivation, InBlocks, parameter_paths};

use super::{DeviceSplit, Placement, PlacementError};

/// How often each block is timed: the least of three is rarely disturbed by other work.
const TIMED_RUNS: usize = 3;

/// How many numbers the parameters and buffers of each block have. One that several blocks use counts
/// for the first.
pub fn parameter_counts<M: InBlocks>(model: &M) -> Vec<f64> {
    let blocks = model.blocks();
    let mut counts = vec![0.0; blocks.len()];
    for parameter in parameter_paths(model) {
        if let Some(user) = blocks.users_of(&parameter.path).first() {
            counts[*user] += parameter.shape.iter().product::<usize>() as f64;
        }
    }
    counts
}

impl DeviceSplit {
    /// How many seconds the forward pass of each block takes on this input, where the split has put
    /// it, without autodiff: the least of `runs` times, after one that is not counted. The backward
    /// pass takes about twice as long, for all blocks alike.
    ///
    /// Draws the initial values of parameters that have none yet.
    ///
    /// # Errors
    /// [`PlacementError::Measure`] if a device fails.
    ///
    /// # Panics
    /// Panics if the model has other blocks than the one that the split was made for.
    pub fn forward_costs<M: InBlocks>(
        &self,
        model: &M,
        input: M::Input,
        runs: usize,
    ) -> Result<Vec<f64>, PlacementError> {
        let model = model.valid();
        let blocks = model.blocks();
        let mut activation: Box<dyn AnyActivation> = Box::new(input);
        let mut costs = Vec::with_capacity(blocks.len());
        for part in self.parts() {
            activation = activation.to_device(&part.device);
            let lent = part.lend(&model);
            let model = lent.as_ref().unwrap_or(&model);
            for (block, name) in part.blocks.clone().zip(&part.names) {
                let wait = || {
                    part.device.sync().map_err(|error| PlacementError::Measure {
                        block: name.clone(),
                        reason: error.to_string(),
                    })
                };
                let run = || blocks.run(model, block..block + 1, activation.boxed_clone());
                let mut output = run();
                let mut least = f64::INFINITY;
                wait()?;
                for _ in 0..runs.max(1) {
                    let start = Instant::now();
                    output = run();
                    wait()?;
                    least = least.min(start.elapsed().as_secs_f64());
                }
                costs.push(least);
                activation = output;
            }
        }
        Ok(costs)
    }
}

/// Shares out the blocks of `model` over `devices` so that the part that takes longest takes as
/// little time as can be, and places it there. The time is that of a forward pass on `input`, measured
/// with the blocks shared out by their parameters: at no time is the whole model on one device.
///
/// The times of two calls differ, and so may the cuts. What is computed is the same.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::nn::{Linear, LinearConfig};
/// use burn::prelude::*;
/// use everburn::nn::{Blocks, InBlocks, split_by_time};
///
/// #[derive(Module, Debug)]
/// struct Deep {
///     layers: Vec<Linear>,
/// }
///
/// impl InBlocks for Deep {
///     type Input = Tensor<2>;
///     type Output = Tensor<2>;
///
///     fn blocks(&self) -> Blocks<Self, Tensor<2>, Tensor<2>> {
///         Blocks::first("input", [""; 0], |_: &Self, x| x)
///             .each("layers", self.layers.len(), |deep, i, x| deep.layers[i].forward(x))
///     }
/// }
///
/// let devices = [Device::flex(), Device::flex()];
/// let layers = (0..4).map(|_| LinearConfig::new(8, 8).init(&devices[0])).collect();
/// let input = Tensor::ones([2, 8], &devices[0]);
/// let (model, split) = split_by_time(Deep { layers }, &devices, input.clone()).unwrap();
/// assert_eq!(split.parts().len(), 2);
/// assert_eq!(split.forward(&model, input).dims(), [2, 8]);
/// ```
///
/// # Errors
/// [`PlacementError`] if there are no devices, or more than blocks, or a device fails.
pub fn split_by_time<M: InBlocks>(
    model: M,
    devices: &[Device],
    input: M::Input,
) -> Result<(M, DeviceSplit), PlacementError> {
    let even = Placement::even(&model, devices)?.split(&model)?;
    let model = even.place(model);
    let costs = even.forward_costs(&model, input, TIMED_RUNS)?;
    let split = Placement::balanced(&model.blocks(), &costs, devices)?.split(&model)?;
    Ok((split.place(model), split))
}
