//! The training steps of an epoch.

use std::time::Instant;

use burn_train::{InferenceStep, LearnerEvent, LearnerModel, TrainStep, TrainingItem};
use everburn_distributed::Ddp;

use super::{RankLoop, items};
use crate::checkpoint_every::Clock;
use crate::error::TrainError;
use crate::finite::require_finite_loss;
use crate::memory::PeakMemory;
use crate::outcome::stopped_by_user;
use crate::run_directory::{MetricKind, MetricLine};
use crate::tally::{Report, StepCost, Verdict, Votes};

impl<M, I, B> RankLoop<M, I, B>
where
    M: LearnerModel + TrainStep<Input = B> + InferenceStep<Input = B>,
    <M as TrainStep>::Output: Report,
    <M as InferenceStep>::Output: Report,
    I: Send + Sync + Clone + 'static,
    B: Send + 'static,
{
    /// Trains on every global batch of an epoch; also tells whether the epoch was read to its end.
    pub(super) fn train_epoch(
        &mut self,
        mut model: M,
        ddp: &Ddp,
        epoch: usize,
    ) -> Result<(M, bool), TrainError> {
        let total_items = self.setup.train.sampler().samples_per_epoch();
        self.event_train(LearnerEvent::StartSplit {
            epoch_number: epoch,
            total_items,
        })?;
        let mut epoch_cost = StepCost::default();
        // A step's peak is that from the end of one backward pass to the end of the next.
        let memory = PeakMemory::of(&self.setup.device);
        memory.restart();
        let loader = self.setup.train.clone();
        let mut shares = loader.epoch(epoch).behind(self.outcome.batches);
        let mut clock = Clock::start(self.setup.config.checkpoint_every);
        let mut finished = true;
        self.keep(&model)?;
        // What is done behind a step (a checkpoint, a comparison, a line of the record) counts for the next.
        let mut start = Instant::now();
        loop {
            if self.limit_is_reached() {
                finished = shares.len() == 0;
                break;
            }
            let Some(share) = shares.next() else { break };
            let share = share.map_err(|error| TrainError::Data(error.to_string()))?;
            let step = self.outcome.step + 1;
            self.setup.group.set_step(step as u64);
            self.suffer(step);
            self.seed(step);

            let (synced, local);
            match loader.sampler().virtual_ranks() {
                None => (synced, local) = self.forward_and_backward(&model, share, ddp)?,
                Some(ranks) => {
                    (synced, local, model) =
                        self.step_of_virtual_ranks(model, share, ddp, ranks, step)?;
                }
            }
            let stop_wanted = self.stop_wanted();
            let peak = memory.bytes();
            memory.restart();
            let group = &self.setup.group;
            let votes = Votes {
                stop: stop_wanted,
                save: self.is_first() && clock.is_due(),
                regroup: self.somebody_waits(),
            };
            let mut verdict = Verdict::Pending(local.all_reduce_with(votes, peak, group));
            if self.setup.regroup.is_some() {
                // What cannot fail any more may be done to the state that the survivors of a failure go
                // on with, and nothing else.
                verdict = verdict.known()?;
                self.kept = None;
            }
            let rate = self.setup.state.scheduler.step();
            model = ddp.tie(model.optimize(
                &mut self.setup.state.optimizer,
                rate.clone(),
                synced.gradients,
            ));
            let waiting = Instant::now();
            let (tally, votes, peak_memory) = verdict.wait()?;
            let elapsed = start.elapsed();
            start = Instant::now();
            let communication = synced.communication;
            let cost = StepCost {
                seconds: elapsed.as_secs_f64(),
                waited: (communication.exposed + waiting.elapsed()).as_secs_f64(),
                exposed: communication.exposed.as_secs_f64(),
                communication: communication.busy.as_secs_f64(),
                gradient_bytes: communication.bytes,
                peak_memory,
            };

            self.outcome.step = step;
            self.recent.begin(step);
            self.futile = 0;
            self.outcome.so_far += tally;
            epoch_cost += cost;
            self.outcome.samples += tally.samples;
            self.outcome.batches += 1;
            self.outcome.cost += cost;
            model = self.corrupt(model, step);
            self.finish_step(step);
            self.keep(&model)?;
            let loss = tally.mean_loss();
            require_finite_loss("training loss", loss, epoch, step)?;
            if step.is_multiple_of(self.setup.config.log_every) {
                let mut line = MetricLine::new(MetricKind::Step, epoch, step, &tally);
                line.cost = cost;
                line.learning_rate = Some(rate.base());
                line.gradient_norm = synced.norm;
                self.log(&line)?;
            }
            if self.setup.config.compares_after(step) {
                model = self.compare(model, ddp, Some(&tally))?;
            }
            self.hash(&model, step, &tally)?;
            self.check_on_checkpoint()?;
            if self.is_first() {
                let progress = items(self.outcome.so_far.samples, total_items);
                let report = Report::of_all_ranks(tally, cost);
                let item = TrainingItem::new(report, progress, Some(step), Some(rate));
                self.event_train(LearnerEvent::ProcessedItem(item))?;
            }
            let samples = self.setup.samples.as_ref();
            if shares.len() > 0 && samples.is_some_and(|samples| samples.is_due(step)) {
                self.show_sample(&model)?;
            }
            if (votes.save || self.saves_after(step)) && shares.len() > 0 {
                model = self.save_within_epoch(model, ddp, epoch)?;
                self.keep(&model)?;
                clock.restart();
            }
            if votes.stop {
                // On whichever rank: this one may learn of a signal only after the others.
                self.outcome.stopped = Some(stopped_by_user(step));
                finished = shares.len() == 0;
                break;
            }
            if votes.regroup && !self.limit_is_reached() {
                return Err(TrainError::SomebodyWaits);
            }
        }
        self.event_train(LearnerEvent::EndSplit(epoch))?;
        let mut line = MetricLine::new(
            MetricKind::Train,
            epoch,
            self.outcome.step,
            &self.outcome.so_far,
        );
        line.cost = epoch_cost;
        self.log(&line)?;
        Ok((model, finished))
    }
}
