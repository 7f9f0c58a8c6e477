//! Drop-in Burn modules that compute over several ranks, or in several parts.
//!
//! - [`SyncBatchNorm`] is [`burn::nn::BatchNorm`] whose training statistics may span all ranks. A
//!   model takes it by changing an import; on one rank it computes what Burn's own does.
//! - [`synchronize_batch_norms`] attaches a group of ranks to all of them in any module, in one
//!   line; [`without_samples`] makes the copy with which a rank without samples takes part.
//! - [`StatisticsGroup`] is what such a group must be able to do: add up numbers over its ranks.
//! - [`Linear`] is [`burn::nn::Linear`], which can also compute in parts: with [`deferral`] the gradients
//!   of weights come after those of activations; [`tensor_parallel`] cuts the layers of a model over
//!   the ranks of a [`TensorGroup`].
//! - [`Conv2d`], [`MaxPool2d`], [`AvgPool2d`], [`AdaptiveAvgPool2d`], [`LayerNorm`], [`Dropout`], [`relu`] and [`gelu`] are Burn's, with
//!   faster kernels on CPUs.
//! - [`compute_in`] lets these layers multiply in half precision, and everything else as it is; a model that
//!   wants its activations low, too, calls [`lowered`].
//! - [`count_operations`] has the products and convolutions of these layers counted, on every back end.
//! - [`all_reduce_sum`] is a differentiable sum of a tensor over ranks.
//! - [`InBlocks`] is a model that offers its layers as [`Blocks`] in order, to be cut between any two.
//! - [`Placement`] says which device of this process each block is on; a [`DeviceSplit`] moves
//!   parameters and activations there.
//! - [`checkpoint`] runs a segment of a model without keeping its activations, and once more in the
//!   backward pass; [`checkpointed_forward`] does it for a model [`InBlocks`].
//! - [`Recording`] is work that a GPU has recorded, and replays as one launch.
//!
//! ```
//! use std::sync::Arc;
//!
//! use burn::module::Module;
//! use burn::prelude::*;
//! use everburn_nn::{StatisticsGroup, SyncBatchNorm, SyncBatchNormConfig, SyncError};
//!
//! /// A group of one rank; `everburn_distributed` makes them from process groups.
//! #[derive(Debug)]
//! struct Alone;
//!
//! impl StatisticsGroup for Alone {
//!     fn world_size(&self) -> usize {
//!         1
//!     }
//!     fn all_reduce_sum(&self, _values: &mut [f64]) -> Result<(), SyncError> {
//!         Ok(())
//!     }
//!     fn abort(&self, reason: &str) {
//!         panic!("{reason}");
//!     }
//! }
//!
//! #[derive(Module, Debug)]
//! struct Model {
//!     norm: SyncBatchNorm,
//! }
//!
//! # fn main() -> Result<(), SyncError> {
//! let device = Device::flex().autodiff();
//! let model = Model { norm: SyncBatchNormConfig::new(3).init(&device) };
//! let model = everburn_nn::synchronize_batch_norms(model, Arc::new(Alone))?;
//! let output = model.norm.forward(Tensor::<4>::ones([2, 3, 4, 4], &device));
//! assert_eq!(output.dims(), [2, 3, 4, 4]);
//! # Ok(())
//! # }
//! ```
//!
//! # Why not Burn's own type
//! A module's `forward` is an ordinary method that nothing can get between, and the type of a field
//! stands in the model's source. So [`burn::nn::BatchNorm`] cannot be made to ask other ranks from
//! outside; [`synchronize_batch_norms`] refuses a model that has some rather than leave them out.
//!
//! Deliberately absent: how ranks talk to each other, and any knowledge of process groups.

mod all_reduce;
mod blocks;
mod conversion;
pub mod deferral;
mod exchange;
mod group;
mod layers;
mod linear;
mod normalize;
mod operations;
mod placement;
mod precision;
mod rank_ops;
mod recompute;
mod recording;
mod statistics;
mod sync_batch_norm;
mod tensor_parallel;

pub use all_reduce::all_reduce_sum;
pub use blocks::{
    Activation, ActivationError, AnyActivation, BlockError, Blocks, InBlocks, ParameterPath,
    parameter_paths,
};
pub use conversion::{isolate_batch_norms, spans_ranks, synchronize_batch_norms, without_samples};
pub use group::{LossReduction, StatisticsGroup, SyncError};
pub use layers::{
    AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, AvgPool2d, AvgPool2dConfig, Conv2d, Conv2dConfig,
    Dropout, DropoutConfig, LayerNorm, LayerNormConfig, MaxPool2d, MaxPool2dConfig, causal_softmax,
    conv2d, cross_entropy, gelu, matmul, relu, rotary,
};
pub use linear::{Linear, LinearConfig, linear};
pub use operations::{count_operations, operations_counted, peak_operations};
pub use placement::{
    DeviceSplit, Move, Moved, Part, Placement, PlacementError, balanced_parts, parameter_counts,
    split_by_time,
};
pub use precision::{ComputeType, compute_in, compute_type, in_f32, low_products, lowered};
pub use recompute::{
    ParameterSource, Randomness, SegmentValue, SharedSource, checkpoint, checkpoint_with,
    checkpointed_forward, checkpointed_run, has_parameter_source, recomputing,
    with_parameters_from,
};
pub use recording::{Recording, RecordingError};
pub use sync_batch_norm::{SyncBatchNorm, SyncBatchNormConfig};
pub use tensor_parallel::{
    ParameterShard, ShardError, TensorGroup, TensorParallel, TensorParallelError, TensorRule,
    TensorShard, forget_shards, parameter_shards, planned_shards, tensor_parallel,
};
