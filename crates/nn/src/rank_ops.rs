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
}

#[cfg(feature = "flex")]
impl RankOps for burn::backend::Flex {}

// `Cube` is the fusing back end itself: the default bodies do for it too.
#[cfg(feature = "gpu")]
impl RankOps for burn::backend::Cube {}

impl<B: RankOps, C: CheckpointStrategy> RankOps for Autodiff<B, C>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn summed_over_ranks(
        own: FloatTensor<Self>,
        sum: FloatTensor<Self>,
        group: Arc<dyn StatisticsGroup>,
    ) -> FloatTensor<Self> {
        // Checkpointing must never run the exchange, or what follows, twice.
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
}
