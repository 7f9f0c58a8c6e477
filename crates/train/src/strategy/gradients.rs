//! The gradients of a step, over all ranks.

use burn::optim::GradientsParams;
use burn_train::{InferenceStep, LearnerModel, TrainStep};
use everburn_distributed::{Ddp, ShareOfBatch, SyncedGradients};

use super::RankLoop;
use crate::error::TrainError;
use crate::tally::{Report, Tally};

impl<M, I, B> RankLoop<M, I, B>
where
    M: LearnerModel + TrainStep<Input = B> + InferenceStep<Input = B>,
    <M as TrainStep>::Output: Report,
    <M as InferenceStep>::Output: Report,
    I: Send + Sync + Clone + 'static,
    B: Send + 'static,
{
    /// The mean gradients over all ranks, and this rank's sums.
    pub(super) fn forward_and_backward(
        &self,
        model: &M,
        share: ShareOfBatch<B>,
        ddp: &Ddp,
    ) -> Result<(SyncedGradients, Tally), TrainError> {
        if let Some(over) = &self.setup.over {
            return over.step(model, share, ddp);
        }
        let mut local = Tally::default();
        let mut tally = |item: &<M as TrainStep>::Output| -> Result<(), TrainError> {
            let part = item.local();
            local += part.map_err(|error| TrainError::Device(error.to_string()))?;
            Ok(())
        };
        let parts = share.micro_batches.len();
        let missing = share.rounds - parts;
        let overlap = self.setup.config.overlap && self.setup.group.world_size() > 1;
        // All ranks go the same way, whose passes then exchange statistics in the same order.
        if share.rounds > 1 || overlap {
            let step = ddp.begin(share.samples)?;
            for (index, part) in share.micro_batches.into_iter().enumerate() {
                let watched = if overlap && index + 1 == parts {
                    step.watch_last(model, part.samples)
                } else {
                    step.watch(model, part.samples)
                };
                if let Err(error) = tally(&TrainStep::step(&watched, part.batch).item) {
                    step.give_up(&error.to_string());
                    return Err(error);
                }
            }
            let stand_in = || step.watch_stand_in(model);
            if let Err(error) = self.take_part_without_samples(model, missing, stand_in) {
                step.give_up(&error.to_string());
                return Err(error);
            }
            return Ok((step.finish(model)?, local));
        }
        let mut gradients = GradientsParams::new();
        for part in share.micro_batches {
            let output = TrainStep::step(model, part.batch);
            tally(&output.item)?;
            gradients = output.grads;
        }
        let stand_in = || everburn_nn::without_samples(model.clone());
        self.take_part_without_samples(model, missing, stand_in)?;
        let synced = ddp.sync_gradients(model, gradients, share.samples)?;
        Ok((synced, local))
    }

    /// Answers the other ranks' layers that compute over all ranks, for as many micro-batches as
    /// they have more than this rank.
    fn take_part_without_samples(
        &self,
        model: &M,
        rounds: usize,
        stand_in: impl Fn() -> M,
    ) -> Result<(), TrainError> {
        if rounds == 0 || !everburn_nn::spans_ranks(model) {
            return Ok(());
        }
        for _ in 0..rounds {
            let batch = self.setup.train.stand_in();
            let batch = batch.map_err(|error| TrainError::Data(error.to_string()))?;
            drop(TrainStep::step(&stand_in(), batch));
        }
        Ok(())
    }
}
