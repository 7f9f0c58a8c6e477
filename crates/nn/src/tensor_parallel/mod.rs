//! Linear layers that are cut over ranks.
//!
//! Tensor parallelism (Shoeybi et al. 2019, "Megatron-LM", section 3) cuts the weights of two linear
//! layers that follow each other, so that one all-reduce in each direction is enough for both:
//!
//! - A *column* shard has some of the output features: weight `[in, out / T]`. Every rank has the
//!   whole input and yields a part of the output. The gradients of the input are parts of a sum,
//!   which is added up over the ranks in the backward pass (the paper's operator f).
//! - A *row* shard has some of the input features: weight `[in / T, out]`. Every rank has a part of
//!   the input, which is what a column shard yields, and its product is a part of a sum, which is
//!   added up over the ranks in the forward pass (operator g). The bias is added once, to the sum.
//!
//! Between the two is what works on each feature by itself: an activation function, or the heads
//! of an attention. All else is the same on all ranks, to the bit: inputs, norms, embeddings, the
//! loss, and the gradients of these, for every rank gets the same bits from an all-reduce. So nothing
//! keeps them equal but that they begin equal.
//!
//! An all-reduce carries as many numbers as the activation, in `f32`: through the memory of the host, or from device to device
//! ([`StatisticsGroup::on_device`](crate::StatisticsGroup::on_device)).

mod agreement;
mod all_reduce;
mod conversion;
mod group;
mod layout;
mod mappings;
mod rules;
mod shard;

pub use conversion::{forget_shards, tensor_parallel};
pub use group::TensorGroup;
pub use layout::{ParameterShard, ShardError, parameter_shards, planned_shards};
pub use rules::{TensorParallel, TensorParallelError, TensorRule, TensorShard};

pub(crate) use all_reduce::ShardAllReduce;
pub(crate) use conversion::{mapped, visited};
pub(crate) use mappings::{PassGradient, SumGradient};
pub(crate) use shard::Membership;
