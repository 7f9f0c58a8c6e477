//! A training step over logical shards.

use everburn_collectives::group::ReduceOp;
use everburn_distributed::{Buffers, Ddp, ShareOfBatch, VirtualRanks};
use everburn_profile::Phase;

use super::RankLoop;
use super::gradients::timed_pass;
use super::pending_metrics::LocalOutput;
use super::synchronous_steps::PassOutput;
use crate::error::TrainError;
use crate::metrics::rank_times::PassTimes;
use crate::metrics::sums::MetricSums;
use crate::metrics::virtual_sums::VirtualSums;
use crate::model::erased::{AnyBatch, AnyModel};

impl RankLoop {
    /// The mean gradients over all logical shards, their sums on rank 0 (zeros on the others), and the model with the
    /// mean of their running statistics.
    ///
    /// Each logical shard starts from the same statistics and draws random numbers of its own.
    pub(super) fn step_of_virtual_ranks(
        &mut self,
        model: AnyModel,
        share: ShareOfBatch<AnyBatch>,
        ddp: &Ddp,
        ranks: VirtualRanks,
        number: usize,
    ) -> Result<PassOutput, TrainError> {
        let before = Buffers::read(&model)?;
        let mut weights = vec![0; ranks.own().len()];
        for part in &share.micro_batches {
            weights[part.index] = part.weight;
        }
        let all = match self.setup.train.is_weighing() {
            false => share.global_samples,
            true => {
                let own = vec![share.weight as i64];
                let all = self.setup.group.all_reduce(own, ReduceOp::Sum).wait()?;
                usize::try_from(all[0]).unwrap_or_default()
            }
        };
        let step = ddp.begin_virtual(ranks.clone(), &weights, all)?;
        let first = ranks.own().start;
        let mut sums = VirtualSums::new(ranks, before.len());
        let (mut model, mut times) = (model, PassTimes::default());
        for part in share.micro_batches {
            self.seed_stream(number, first + part.index);
            let watched = step.with_hooks_virtual(&model, part.index);
            let mut own = LocalOutput::Sums(MetricSums::default());
            let (index, samples) = (part.index, part.samples);
            let found = self.profile_pass(&mut times, |times| {
                timed_pass(&watched, part, times, &mut own)
            });
            let found = found.and_then(|_| Ok(Buffers::read(&model)?));
            let after = match found {
                Ok(after) => after,
                Err(error) => {
                    step.give_up(&error.to_string());
                    return Err(error);
                }
            };
            let weight = samples as f64 / share.global_samples as f64;
            let weighted = after.values().into_iter().map(|value| value * weight);
            sums.set(index, own.read()?, weighted);
            model = before.write(model);
        }
        self.profile(Phase::Exchange);
        let group = self.setup.group.clone();
        let layout = match self.metrics.layout(sums.found(), &group) {
            Ok(layout) => layout,
            Err(error) => {
                step.give_up(&error.to_string());
                return Err(error);
            }
        };
        let told = sums.send(false, layout, &group);
        let synced = step.finish(&model)?;
        let (total, statistics, _) = told.wait()?;
        let model = before.with_values(&statistics).write(model);
        let total = if self.is_first() {
            total
        } else {
            MetricSums::default()
        };
        Ok(PassOutput {
            model,
            synced,
            output: LocalOutput::Sums(total),
            times,
        })
    }
}
