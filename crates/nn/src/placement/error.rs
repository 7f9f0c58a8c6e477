//! What is wrong with a placement.

use crate::blocks::BlockError;

/// Why a model cannot be placed on devices in this way.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use everburn::nn::{InBlocks, Placement, PlacementError};
///
/// fn is_misspelt<M: InBlocks>(placement: &Placement, model: &M) -> bool {
///     matches!(placement.split(model), Err(PlacementError::NoSuchBlock { .. }))
/// }
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// The model's blocks do not fit the model.
    #[error(transparent)]
    Blocks(#[from] BlockError),
    /// A path that is neither a block nor a parameter.
    #[error(
        "the placement names {path}, and the model has no such block, parameter or module; its \
         blocks are {}", .blocks.join(", ")
    )]
    NoSuchBlock {
        /// What the placement names.
        path: String,
        /// The names of the model's blocks.
        blocks: Vec<String>,
    },
    /// A path in the middle of a block.
    #[error(
        "the placement names {path}, a part of the block {block}; a model is cut between blocks \
         only: put {block} on the device"
    )]
    InsideBlock {
        /// What the placement names.
        path: String,
        /// The block that has it.
        block: String,
    },
    /// A block at the beginning that no rule names.
    #[error(
        "the placement gives no device to the block {block}: name it, or a part of the model that \
         begins with it (a block that is not named follows the block before it, and the blocks \
         after it are {})", .placed.join(", ")
    )]
    NoDeviceFor {
        /// The block.
        block: String,
        /// The blocks after it.
        placed: Vec<String>,
    },
    /// Nothing to put anything on.
    #[error("the placement names no device")]
    NoDevices,
    /// Some devices would have nothing to do.
    #[error(
        "a model of {blocks} blocks cannot be shared by {devices} devices: each needs a block; name \
         {blocks} devices or fewer"
    )]
    TooManyDevices {
        /// How many devices there are.
        devices: usize,
        /// How many blocks there are.
        blocks: usize,
    },
    /// Not one cost a block.
    #[error("{costs} costs are given for a model of {blocks} blocks")]
    CostCount {
        /// How many costs there are.
        costs: usize,
        /// How many blocks there are.
        blocks: usize,
    },
    /// A cost that is none.
    #[error("the cost of the block {block} is {cost}, and must be a number of at least 0")]
    Cost {
        /// The block.
        block: String,
        /// Its cost.
        cost: f64,
    },
    /// A device failed while the blocks were measured.
    #[error("the block {block} could not be measured: {reason}")]
    Measure {
        /// The block.
        block: String,
        /// The device's error.
        reason: String,
    },
}
