//! A training step over virtual ranks.

use burn_train::{InferenceStep, LearnerModel, TrainStep};
use everburn_distributed::{Buffers, Ddp, ShareOfBatch, SyncedGradients, VirtualRanks};
use everburn_profile::Phase;

use super::RankLoop;
use super::gradients::timed_pass;
use crate::error::TrainError;
use crate::rank_times::PassTimes;
use crate::seeds::mix;
use crate::tally::{Report, Tally};
use crate::virtual_sums::VirtualSums;

impl<M, I, B> RankLoop<M, I, B>
where
    M: LearnerModel + TrainStep<Input = B> + InferenceStep<Input = B>,
    <M as TrainStep>::Output: Report,
    <M as InferenceStep>::Output: Report,
    I: Send + Sync + Clone + 'static,
    B: Send + 'static,
{
    /// The mean gradients over all virtual ranks, their sums on rank 0 (zeros on the others), how long this
    /// rank's passes took, and the model with the mean of their running statistics.
    ///
    /// Each virtual rank starts from the same statistics and draws random numbers of its own.
    pub(super) fn step_of_virtual_ranks(
        &self,
        model: M,
        share: ShareOfBatch<B>,
        ddp: &Ddp,
        ranks: VirtualRanks,
        number: usize,
    ) -> Result<(SyncedGradients, Tally, PassTimes, M), TrainError> {
        let before = Buffers::read(&model)?;
        let mut samples = vec![0; ranks.own().len()];
        for part in &share.micro_batches {
            samples[part.index] = part.samples;
        }
        let step = ddp.begin_virtual(ranks, &samples, share.global_samples)?;
        let mut sums = VirtualSums::new(ranks, before.len());
        let (mut model, mut times) = (model, PassTimes::default());
        for part in share.micro_batches {
            self.seed_virtual(number, ranks.own().start + part.index);
            let watched = step.watch_virtual(&model, part.index);
            let mut tally = Tally::default();
            let found = self.profile_pass(&mut times, |times| {
                timed_pass(&watched, part.batch, times, &mut tally)
            });
            let found = found.and_then(|_| Ok(Buffers::read(&model)?));
            let after = match found {
                Ok(after) => after,
                Err(error) => {
                    step.give_up(&error.to_string());
                    return Err(error);
                }
            };
            let weight = part.samples as f64 / share.global_samples as f64;
            let weighted = after.values().into_iter().map(|value| value * weight);
            sums.set(part.index, tally, weighted);
            model = before.write(model);
        }
        self.profile(Phase::Exchange);
        let told = sums.tell(false, &self.setup.group);
        let synced = step.finish(&model)?;
        let (tally, statistics, _) = told.wait()?;
        let model = before.with_values(&statistics).write(model);
        let tally = if self.is_first() {
            tally
        } else {
            Tally::default()
        };
        Ok((synced, tally, times, model))
    }

    /// Random numbers (dropout) depend on seed, step and virtual rank.
    fn seed_virtual(&self, step: usize, virtual_rank: usize) {
        let (seed, step) = (self.setup.config.seed, step as u64);
        let seed = mix(mix(seed ^ mix(step)) ^ virtual_rank as u64);
        self.setup.device.seed(seed);
    }
}
