//! A model over several devices of one process.

mod balance;
mod cost;
mod error;
mod split;

use burn::prelude::*;

use crate::blocks::{Blocks, InBlocks, lies_under};

pub use balance::balanced_parts;
use balance::balanced_parts_of;
pub use cost::{parameter_counts, split_by_time};
pub use error::PlacementError;
pub use split::{DeviceSplit, Move, Moved, Part};

/// Which device each block of a model lives on: its parameters, what it computes, and the gradients
/// of both.
///
/// Blocks are named by [`Placement::put`], or shared out by [`Placement::even`] and
/// [`Placement::balanced`]. [`Placement::split`] checks it against a model.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::nn::{Linear, LinearConfig};
/// use burn::prelude::*;
/// use everburn::nn::{Blocks, InBlocks, Placement};
///
/// #[derive(Module, Debug)]
/// struct Mlp {
///     input: Linear,
///     hidden: Vec<Linear>,
/// }
///
/// impl InBlocks for Mlp {
///     type Input = Tensor<2>;
///     type Output = Tensor<2>;
///
///     fn blocks(&self) -> Blocks<Self, Tensor<2>, Tensor<2>> {
///         Blocks::first("input", ["input"], |mlp: &Self, x| mlp.input.forward(x).tanh())
///             .each("hidden", self.hidden.len(), |mlp, i, x| mlp.hidden[i].forward(x).tanh())
///     }
/// }
///
/// # fn main() -> Result<(), everburn_nn::PlacementError> {
/// // On a machine with GPUs, `Device::cuda(0)` and `Device::cuda(1)`.
/// let (first, second) = (Device::flex().autodiff(), Device::flex().autodiff());
/// let linear = || LinearConfig::new(3, 3).init(&first);
/// let mlp = Mlp { input: linear(), hidden: vec![linear(), linear()] };
///
/// // `hidden.0` is not named: it follows the block before it.
/// let placement = Placement::new().put("input", &first).put("hidden.1", &second);
/// let split = placement.split(&mlp)?;
/// let mlp = split.place(mlp);
/// let output = split.forward(&mlp, Tensor::ones([4, 3], &first));
/// let gradients = output.mean().backward();
/// assert!(mlp.input.weight.grad(&gradients).is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Placement {
    rules: Vec<(Start, Device)>,
}

/// Where a rule of a placement begins.
#[derive(Debug, Clone)]
enum Start {
    /// The blocks of this name, or that use this parameter or module.
    Path(String),
    /// The block of this number.
    Block(usize),
}

impl Placement {
    /// Without a word about any block.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts blocks on `device`: those whose name is `path` or is under it (`layer3` stands for
    /// `layer3.0`, `layer3.1`, ...), or if there are none, those that use the parameters under it.
    ///
    /// A block that no call names follows the block before it. Where two calls name the same block,
    /// the later one counts. Each call begins a part of its own, even on the device of the part
    /// before it.
    #[must_use]
    pub fn put(mut self, path: impl Into<String>, device: &Device) -> Self {
        self.rules.push((Start::Path(path.into()), device.clone()));
        self
    }

    /// As many parts as there are devices, each of consecutive blocks, such that the part with the
    /// most parameters has as few as can be: what fits memory best. Layers that share their weights
    /// over many pixels compute more than others of as many parameters; [`split_by_time`] is for
    /// those.
    ///
    /// # Errors
    /// [`PlacementError`] if there are no devices, or more than blocks, or the blocks do not fit the
    /// model.
    pub fn even<M: InBlocks>(model: &M, devices: &[Device]) -> Result<Self, PlacementError> {
        let blocks = model.blocks();
        blocks.check(model)?;
        Self::balanced(&blocks, &parameter_counts(model), devices)
    }

    /// As many parts as there are devices, each of consecutive blocks, such that the part that costs
    /// most costs as little as can be. `costs` has a number for each block: seconds, bytes, what is
    /// to be balanced.
    ///
    /// # Errors
    /// [`PlacementError`] if there are no devices, or more than blocks, or a cost for each block is
    /// not given, or a cost is negative or not a number.
    pub fn balanced<M, I, O>(
        blocks: &Blocks<M, I, O>,
        costs: &[f64],
        devices: &[Device],
    ) -> Result<Self, PlacementError> {
        if costs.len() != blocks.len() {
            return Err(PlacementError::CostCount {
                costs: costs.len(),
                blocks: blocks.len(),
            });
        }
        let name = |block: usize| blocks.names()[block].to_string();
        let parts = balanced_parts_of(costs, devices.len(), name)?;
        let start = |(part, device): (std::ops::Range<usize>, &Device)| {
            (Start::Block(part.start), device.clone())
        };
        Ok(Self {
            rules: parts.into_iter().zip(devices).map(start).collect(),
        })
    }

    /// The placement of `model`, checked: each block has a device, and each name is the model's.
    ///
    /// # Errors
    /// [`PlacementError`] naming the path or block that is wrong.
    pub fn split<M: InBlocks>(&self, model: &M) -> Result<DeviceSplit, PlacementError> {
        let blocks = model.blocks();
        blocks.check(model)?;
        if self.rules.is_empty() {
            return Err(PlacementError::NoDevices);
        }
        let mut rules = vec![None; blocks.len()];
        for (rule, (start, _)) in self.rules.iter().enumerate() {
            for block in begun_by(start, &blocks)? {
                rules[block] = Some(rule);
            }
        }
        let mut before = None;
        let mut devices = Vec::with_capacity(rules.len());
        for (block, rule) in rules.into_iter().enumerate() {
            before = rule.or(before);
            let rule = before.ok_or_else(|| PlacementError::NoDeviceFor {
                block: blocks.names()[block].to_string(),
                placed: blocks.names()[block + 1..]
                    .iter()
                    .map(ToString::to_string)
                    .collect(),
            })?;
            devices.push((rule, self.rules[rule].1.clone()));
        }
        Ok(DeviceSplit::new(model, &blocks, devices))
    }
}

/// The numbers of the blocks that a rule names.
fn begun_by<M, I, O>(
    start: &Start,
    blocks: &Blocks<M, I, O>,
) -> Result<Vec<usize>, PlacementError> {
    let path = match start {
        Start::Block(block) => return Ok(vec![*block]),
        Start::Path(path) => path,
    };
    let names = blocks.names();
    let numbers = |named: &dyn Fn(usize) -> bool| -> Vec<usize> {
        (0..blocks.len()).filter(|block| named(*block)).collect()
    };
    let by_name = numbers(&|block| lies_under(names[block], path));
    if !by_name.is_empty() {
        return Ok(by_name);
    }
    let uses = |block: usize| blocks.paths(block).iter().any(|own| lies_under(own, path));
    let by_path = numbers(&uses);
    if !by_path.is_empty() {
        return Ok(by_path);
    }
    let around = |block: &usize| {
        let own = std::iter::once(names[*block]);
        let mut own = own.chain(blocks.paths(*block).iter().map(String::as_str));
        own.any(|own| lies_under(path, own))
    };
    Err(match (0..blocks.len()).find(around) {
        Some(block) => PlacementError::InsideBlock {
            path: path.clone(),
            block: names[block].to_string(),
        },
        None => PlacementError::NoSuchBlock {
            path: path.clone(),
            blocks: names.iter().map(ToString::to_string).collect(),
        },
    })
}
