//! What a block costs.

use std::time::Instant;

use crate::blocks::{AnyActivation, InBlocks, parameter_paths};

use super::PlacementError;

/// How many numbers the parameters and buffers of each block have. One that several blocks use counts
/// for the first.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::prelude::*;
/// use everburn_nn::{Blocks, InBlocks, parameter_counts};
///
/// #[derive(Module, Debug)]
/// struct Two {
///     first: Linear,
///     second: Linear,
/// }
///
/// impl InBlocks for Two {
///     type Input = Tensor<2>;
///     type Output = Tensor<2>;
///
///     fn blocks(&self) -> Blocks<Self, Tensor<2>, Tensor<2>> {
///         Blocks::first("first", ["first"], |two: &Self, x| two.first.forward(x))
///             .then("second", ["second"], |two, x| two.second.forward(x))
///     }
/// }
///
/// let linear = |outputs| LinearConfig::new(3, outputs).init(&Device::flex());
/// let model = Two { first: linear(3), second: linear(2) };
/// assert_eq!(parameter_counts(&model), [12.0, 8.0]);
/// ```
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

/// How many seconds the forward pass of each block takes on this input, on the device that the
/// model is on, without autodiff: the least of `runs` times, after one that is not counted. The
/// backward pass takes about twice as long, for all blocks alike.
///
/// Draws the initial values of parameters that have none yet.
///
/// # Errors
/// [`PlacementError::Measure`] if the device fails.
pub fn forward_costs<M: InBlocks>(
    model: &M,
    input: M::Input,
    runs: usize,
) -> Result<Vec<f64>, PlacementError> {
    let model = model.valid();
    let blocks = model.blocks();
    let names = blocks.names();
    let devices = model.devices();
    let mut activation: Box<dyn AnyActivation> = Box::new(input);
    let mut costs = Vec::with_capacity(blocks.len());
    for (block, name) in names.iter().enumerate() {
        let wait = || {
            devices.iter().try_for_each(|device| {
                device.sync().map_err(|error| PlacementError::Measure {
                    block: (*name).to_string(),
                    reason: error.to_string(),
                })
            })
        };
        let run = || blocks.run(&model, block..block + 1, activation.boxed_clone());
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
    Ok(costs)
}
