//! [`burn::nn`] with faster layers on CPUs, and modules that compute over several ranks.
//!
//! # A drop-in for `burn::nn`
//! This crate has everything in [`burn::nn`], under the same paths. A model written for Burn needs one changed import
//! (two exceptions below):
//!
//! ```
//! # mod everburn { pub use everburn_nn as nn; }
//! use burn::prelude::*;
//! use everburn::nn; // before: `use burn::nn;`
//! use nn::conv::{Conv2d, Conv2dConfig};
//!
//! #[derive(Module, Debug)]
//! struct Net {
//!     conv: Conv2d,
//!     activation: nn::Relu,
//!     lstm: nn::Lstm, // Burn's own
//! }
//!
//! let device = Device::flex();
//! let net = Net {
//!     conv: Conv2dConfig::new([1, 4], [3, 3]).init(&device),
//!     activation: nn::Relu::new(),
//!     lstm: nn::LstmConfig::new(8, 8, true).init(&device),
//! };
//! let images = Tensor::zeros([2, 1, 10, 10], &device);
//! let hidden = net.activation.forward(net.conv.forward(images)).reshape([8, 8, 8]);
//! assert_eq!(net.lstm.forward(hidden, None).0.dims(), [8, 8, 8]);
//! ```
//!
//! | with kernels or checks of this crate | |
//! |---|---|
//! | [`Linear`], [`conv::Conv2d`] | products and convolutions |
//! | [`pool::MaxPool2d`], [`pool::AvgPool2d`], [`pool::AdaptiveAvgPool2d`] | pooling |
//! | [`BatchNorm`], [`LayerNorm`], [`norm::Normalization`] (with both) | norms |
//! | [`Dropout`], [`Relu`], [`Gelu`] | activations |
//! | [`attention::MultiHeadAttention`], [`transformer::TransformerEncoder`], [`transformer::PositionWiseFeedForward`] | made of these layers |
//! | [`loss::CrossEntropyLoss`] | the loss of classes; a label without a score is named |
//! | [`loss::MseLoss`] | Burn's; targets of another shape are refused |
//! | [`Embedding`] | Burn's; a token without a row is named |
//! | [`tensor::activation`]: `relu`, `gelu`; [`tensor::module`]: `linear`, `conv2d` | the same as functions, in the place of `burn::tensor` |
//!
//! Everything else is Burn's, re-exported: recurrent layers, transformer decoders, convolutions of other
//! dimensions, the other pools, norms, activations and losses. A Burn layer that contains others (`Lstm`,
//! `TransformerDecoder`, `SwiGlu`, [`activation::Activation`]) contains Burn's. `into` converts a layer of this crate
//! to Burn's and back, and [`Relu`] and [`Gelu`] `into` an `Activation`. [`BatchNorm`] has Burn's fields, which can be
//! changed; [`Linear`] and the others dereference to Burn's, so a field cannot be moved out: convert with `into` first.
//!
//! The layers have Burn's configurations (fields, builders, defaults), initial values, parameter paths and records: a
//! checkpoint of either loads into the other. Results and gradients match Burn's up to rounding, and have the same bits
//! on any number of threads; max pooling and `relu` match to the bit. `Dropout` draws other numbers of the same
//! distribution. The kernels are for `f32` on flex; half precision is cast around them. On other devices, for other
//! dtypes (`f64`, quantised weights) and for configurations without a kernel (asymmetric padding of a pool, weighted or
//! smoothed losses), Burn's operations are used.
//!
//! A convolution or pool of this crate refuses a kernel that is larger than its padded image. Burn 0.22.1 does not: if
//! the kernel is one larger, its output has no elements, and the model learns nothing without an error. This also holds
//! for its layers of other dimensions, such as `Conv1d` and `AvgPool1d`.
//!
//! Speed is measured against PyTorch only: at batch 64 on two threads the layers of `mnist` take a third of PyTorch's
//! time and those of `mnist-bn` two fifths (geometric mean over forward and backward passes), on an AMD EPYC with AVX2.
//! `crates/kernels/README.md` has the table and the method. `everburn bottleneck` finds Burn's layers in a training and
//! their share of its time.
//!
//! # Modules over ranks, and models in parts
//! - [`synchronize_batch_norms`] computes the statistics of all [`BatchNorm`]s of a model over a group of ranks, in one
//!   line; [`without_samples`] makes the copy with which a rank without samples takes part.
//! - [`StatisticsGroup`] is the interface to such a group: it sums numbers over its ranks, in host memory or by [`DeviceAllReduce`] on their
//!   devices.
//! - [`split_backward`] computes the gradients of weights after those of activations; [`tensor_parallel`] shards the
//!   [`Linear`] layers of a model over the ranks of a [`TensorGroup`].
//! - [`autocast`] lets these layers multiply in half precision and leaves everything else as it is; a model that wants
//!   low activations too calls [`cast_for_matmul`].
//! - [`causal_attention`], [`causal_softmax`], [`rope`], [`matmul`], [`cross_entropy`] and [`fn@argmax`] are functions with their own kernels, which
//!   Burn lacks or computes more slowly.
//! - [`fn@adam`] is a step of Adam or AdamW in one pass, on CPUs.
//! - [`count_operations`] counts the products and convolutions of these layers, on every back end.
//! - [`all_reduce_sum`] is a differentiable sum of a tensor over ranks.
//! - [`InBlocks`] is a model that offers its layers as [`Blocks`] in order, to be split between any two.
//! - [`Placement`] says which device of this process each block is on; a [`DeviceSplit`] moves
//!   parameters and activations there.
//! - [`checkpoint()`] runs a segment of a model without keeping its activations, and once more in the
//!   backward pass; [`checkpointed_forward`] does it for a model [`InBlocks`].
//! - [`CapturedGraph`] is work that a GPU has captured, and replays as one launch.
//!
//! ```
//! # mod everburn { pub use everburn_nn as nn; }
//! use std::sync::Arc;
//!
//! use burn::module::Module;
//! use burn::prelude::*;
//! use everburn::nn::{BatchNorm, BatchNormConfig, StatisticsGroup, SyncError};
//!
//! /// A group of one rank; `everburn::distributed` makes them from process groups.
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
//!     norm: BatchNorm,
//! }
//!
//! # fn main() -> Result<(), SyncError> {
//! let device = Device::flex().autodiff();
//! let model = Model { norm: BatchNormConfig::new(3).init(&device) };
//! let model = everburn::nn::synchronize_batch_norms(model, Arc::new(Alone))?;
//! let output = model.norm.forward(Tensor::<4>::ones([2, 3, 4, 4], &device));
//! assert_eq!(output.dims(), [2, 3, 4, 4]);
//! # Ok(())
//! # }
//! ```
//!
//! A module's `forward` is an ordinary method without hooks, and the type of a field is in the model's source. So
//! [`burn::nn::BatchNorm`] cannot be synchronised from outside; [`synchronize_batch_norms`] refuses a model that
//! contains some instead of skipping them.
//!
//! Deliberately absent: communication between ranks, and process groups.

mod all_reduce;
mod backward_step;
mod batch_norm;
mod blocks;
mod captured_graph;
mod checked_all_reduce;
mod conversion;
mod device_statistics;
mod group;
mod layers;
mod linear;
mod mirror;
mod normalize;
mod operations;
mod placement;
mod precision;
mod rank_ops;
mod recompute;
pub mod split_backward;
mod statistics;
mod targets;
mod tensor_parallel;
mod thread_value;
mod transformers;
mod walking;

// Burn's; what is named below takes the place of what has the same name in there.
pub use burn::nn::*;

pub use all_reduce::all_reduce_sum;
pub use batch_norm::{BatchNorm, BatchNormConfig};
pub use blocks::{
    Activation, ActivationError, AnyActivation, BlockError, Blocks, InBlocks, ParameterPath,
    parameter_identities, parameter_paths,
};
pub use captured_graph::{CaptureError, CapturedGraph};
pub use conversion::{isolate_batch_norms, spans_ranks, synchronize_batch_norms, without_samples};
#[cfg(feature = "flex")]
pub use everburn_kernels::{Adam, WeightDecay};
pub use group::{DeviceAllReduce, LossReduction, StatisticsGroup, SyncError};
#[cfg(feature = "flex")]
pub use layers::adam;
pub use layers::{
    Dropout, DropoutConfig, Embedding, EmbeddingConfig, Gelu, LayerNorm, LayerNormConfig, Relu,
    argmax, causal_attention, causal_softmax, cross_entropy, matmul, rope,
};
pub use linear::{Linear, LinearConfig};
pub use mirror::{
    activation, attention, cache, conv, loss, modules, norm, pool, tensor, transformer,
};
pub use operations::{count_operations, operations_counted, peak_operations};
pub use placement::{
    DeviceSplit, Move, Moved, Part, Placement, PlacementError, balanced_parts, parameter_counts,
    split_by_time,
};
pub use precision::{ComputeType, autocast, cast_for_matmul, compute_type, in_f32, low_products};
pub use recompute::{
    ParameterSource, Randomness, SegmentValue, SharedSource, checkpoint, checkpoint_with,
    checkpointed_forward, checkpointed_run, has_parameter_source, recomputing,
    with_parameters_from,
};
pub use targets::{IndexOf, WrongTarget, with_checked_targets};
pub use tensor_parallel::{
    ParameterShard, ShardError, TensorGroup, TensorParallel, TensorParallelError, TensorRule,
    TensorShard, forget_shards, parameter_shards, planned_shards, tensor_parallel,
};
pub use walking::TiedParameters;
