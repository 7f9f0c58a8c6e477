//! The operations that Burn does not have, as an extension of its backends.

use std::sync::Arc;

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, DispatchKindConversion, DispatchTensor, backend_extension};

use crate::all_reduce::SumOverRanks;
use crate::backward_step::{looking_back, with_backward_step};
use crate::group::StatisticsGroup;
use crate::normalize::{BatchNormOverRanks, GlobalBatch, Saved};
use crate::tensor_parallel::{PassGradient, ShardAllReduce, SumGradient};

/// Operations whose gradients cross from one rank to another. The forward passes exchange nothing:
/// what is summed over ranks comes in as an argument, so that errors can be returned before.
#[backend_extension(
    Autodiff,
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "gpu")
)]
pub(crate) trait RankOps: Backend {
    /// Gives `sum`, which is the sum of `own` over all ranks.
    fn summed_over_ranks(
        own: FloatTensor<Self>,
        sum: FloatTensor<Self>,
        group: Arc<dyn StatisticsGroup>,
    ) -> FloatTensor<Self> {
        drop((own, group));
        sum
    }

    /// Batch norm with `mean` and `variance`, which are those of the samples of all ranks.
    fn batch_norm_over_ranks(
        input: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        variance: FloatTensor<Self>,
        batch: GlobalBatch,
    ) -> FloatTensor<Self> {
        Self::batch_norm(input, gamma, beta, mean, variance, batch.epsilon)
    }

    /// `tensor` itself, whose gradient is summed over the ranks of a tensor group: f.
    fn copy_to_ranks(tensor: FloatTensor<Self>, all_reduce: ShardAllReduce) -> FloatTensor<Self> {
        drop(all_reduce);
        tensor
    }

    /// `sum`, which is the sum of `own` over the ranks of a tensor group and whose gradient is that of `own`: g.
    fn reduce_from_ranks(own: FloatTensor<Self>, sum: FloatTensor<Self>) -> FloatTensor<Self> {
        drop(own);
        sum
    }
}

#[cfg(feature = "flex")]
impl RankOps for burn::backend::Flex {}

// `Cube` is the fusing back end itself: the default bodies do for it too.
#[cfg(feature = "gpu")]
impl RankOps for burn::backend::Cube {}

// Compute-bound: Burn's own gradient checkpointing must not run an exchange, or what follows, twice.
impl<B: RankOps, C: CheckpointStrategy> RankOps for Autodiff<B, C>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn summed_over_ranks(
        own: FloatTensor<Self>,
        sum: FloatTensor<Self>,
        group: Arc<dyn StatisticsGroup>,
    ) -> FloatTensor<Self> {
        let sum = sum.into_primitive();
        with_backward_step::<B, C, _, _>(SumOverRanks, [own.node()], group, sum)
    }

    fn batch_norm_over_ranks(
        input: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        variance: FloatTensor<Self>,
        batch: GlobalBatch,
    ) -> FloatTensor<Self> {
        let (mean, variance) = (mean.into_primitive(), variance.into_primitive());
        let forward = |[input, gamma, beta]: [FloatTensor<B>; 3]| {
            let (mean, variance, batch) = (mean.clone(), variance.clone(), batch.clone());
            (
                B::batch_norm_over_ranks(input, gamma, beta, mean, variance, batch),
                (),
            )
        };
        let state = |[input, gamma]: [NodeId; 2], _: &_, (): &()| Saved {
            input,
            gamma,
            mean: mean.clone(),
            variance: variance.clone(),
            batch: batch.clone(),
        };
        let inputs = [input, gamma, beta];
        looking_back::<B, C, _, _, 3, 2>(BatchNormOverRanks, inputs, forward, state).0
    }

    fn copy_to_ranks(tensor: FloatTensor<Self>, all_reduce: ShardAllReduce) -> FloatTensor<Self> {
        let (primitive, node) = tensor.into_parts();
        with_backward_step::<B, C, _, _>(SumGradient, [node], all_reduce, primitive)
    }

    fn reduce_from_ranks(own: FloatTensor<Self>, sum: FloatTensor<Self>) -> FloatTensor<Self> {
        with_backward_step::<B, C, _, _>(PassGradient, [own.node()], (), sum.into_primitive())
    }
}
