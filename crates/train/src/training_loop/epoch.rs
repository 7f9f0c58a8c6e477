//! The training loop: the steps of an epoch, and the hooks after each.

use burn_train::{EventProcessorTraining, LearnerEvent, TrainingItem};
use everburn_distributed::Ddp;
use everburn_record::{
    Event, EventKind, MetricKind, MetricLine, Phase, StepCost, stopped_on_request, units,
};

use super::engine::{SyncedStep, SyncedSteps};
use super::run::StepContext;
use super::{RankLoop, items};
use crate::config::checkpoint_every::Clock;
use crate::error::TrainError;
use crate::evaluation::require_possible_accuracy;
use crate::metrics::step_reduction::Votes;
use crate::metrics::step_report::StepReport;
use crate::metrics::sums::MetricSums;
use crate::model::erased::AnyModel;
use crate::model::finite::{DivergenceSign, LOWER_RATE, require_finite_loss};
use crate::record::outcome::Stopped;

/// Why the steps of a part of an epoch are over, on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PartEnd {
    /// All of its batches are read.
    Epoch,
    /// The training ends before.
    Stopped,
    /// Ranks share the rest of it in other proportions.
    Rebalanced,
}

impl RankLoop {
    /// Trains on every global batch of an epoch; also tells whether the epoch was read to its end.
    pub(super) fn train_epoch(
        &mut self,
        mut model: AnyModel,
        ddp: &Ddp,
        epoch: usize,
    ) -> Result<(AnyModel, bool), TrainError> {
        self.begin_epoch(epoch)?;
        self.rebalance()?;
        loop {
            let end;
            (model, end) = self.train_part(model, ddp, epoch)?;
            if end != PartEnd::Rebalanced {
                self.end_epoch(epoch)?;
                return Ok((model, end == PartEnd::Epoch));
            }
        }
    }

    /// Trains on the global batches of an epoch that are left, until ranks share them in other proportions.
    fn train_part(
        &mut self,
        model: AnyModel,
        ddp: &Ddp,
        epoch: usize,
    ) -> Result<(AnyModel, PartEnd), TrainError> {
        let loader = self.setup.train.clone();
        let (mut engine, mut model) = self.engine(model, &loader, ddp, epoch)?;
        self.take_snapshot(&model)?;
        while engine.left() > 0 {
            if self.limit_is_reached() {
                return Ok((model, PartEnd::Stopped));
            }
            let step = engine.step(self, model);
            // Threads of the engine end with it, and what they wait for ends with the group.
            let step = step.map_err(|error| {
                let error = self.with_inputs(error, epoch);
                error.abort(&self.setup.group);
                error
            })?;
            model = step.model;
            // Metrics may be read some steps late.
            let Some(synced) = step.synced else { continue };
            let votes = synced.votes;
            model = self.after_steps(model, ddp, epoch, synced, engine.left())?;
            if self.ends_after(votes)? {
                let end = match engine.left() {
                    0 => PartEnd::Epoch,
                    _ => PartEnd::Stopped,
                };
                return Ok((model, end));
            }
            if votes.regroup && !self.limit_is_reached() {
                return Err(TrainError::SomebodyWaits);
            }
            if engine.left() > 0 && self.rebalance_after_step()? {
                return Ok((model, PartEnd::Rebalanced));
            }
        }
        Ok((model, PartEnd::Epoch))
    }

    /// Records steps whose metrics all ranks have, and calls the hooks.
    fn after_steps(
        &mut self,
        mut model: AnyModel,
        ddp: &Ddp,
        epoch: usize,
        synced: SyncedSteps,
        left: usize,
    ) -> Result<AnyModel, TrainError> {
        let SyncedSteps {
            steps,
            range,
            votes,
        } = synced;
        for step in range.clone() {
            model = self.corrupt(model, step);
        }
        self.finish_step(&model, *range.end())?;
        self.hooks.vote_counts(votes);
        let sums = steps.last().map(|step| step.sums.clone());
        let mut lines = Vec::with_capacity(steps.len());
        for step in steps {
            let line = self.record(step, epoch);
            lines.extend(line.map_err(|error| self.with_inputs(error, epoch))?);
        }
        let context = StepContext {
            ddp,
            epoch,
            steps: range,
            left,
            votes,
            sums: sums.unwrap_or_default(),
        };
        let model = self.call_hooks(model, &context, |hook, run| hook.after_steps(&lines, run))?;
        self.notify_checkpoints(model, &context)
    }

    /// Whether the votes of all ranks end the training here.
    fn ends_after(&mut self, votes: Votes) -> Result<bool, TrainError> {
        if votes.hook_requests {
            self.gather_hook_requests()?;
        }
        if votes.stop && self.outcome.stopped.is_none() {
            // On whichever rank: this one may learn of a signal only after the others.
            let why = stopped_on_request(self.setup.stop.by(), self.outcome.step);
            self.outcome.stopped = Some(Stopped::Interrupted(why));
        }
        Ok(self.outcome.stopped.is_some())
    }

    /// Makes the display show `epoch`. A rank that has become rank 0, or came later, has not seen those before.
    pub(super) fn show_epoch(&mut self, epoch: usize) -> Result<(), TrainError> {
        self.event_train(LearnerEvent::EndEpoch(epoch - 1))
    }

    fn begin_epoch(&mut self, epoch: usize) -> Result<(), TrainError> {
        self.event_train(LearnerEvent::StartSplit {
            epoch_number: epoch,
            total_items: self.setup.train.sampler().samples_per_epoch(),
        })?;
        let begins = match self.compiles() {
            true => Phase::Compiling,
            false => Phase::Training,
        };
        self.setup.live.enter_epoch(begins, epoch);
        self.clock = Clock::start(self.setup.config.checkpoint_every);
        Ok(())
    }

    fn end_epoch(&mut self, epoch: usize) -> Result<(), TrainError> {
        self.profile_end();
        self.event_train(LearnerEvent::EndSplit(epoch))?;
        self.warn_of_divergence(epoch);
        let line = self.epoch_line(epoch);
        self.log(&line)
    }

    /// Says once that the training has diverged though its losses are finite: with them it comes to its end.
    fn warn_of_divergence(&mut self, epoch: usize) {
        let losses = self
            .outcome
            .losses
            .filter(|_| !self.outcome.said_to_diverge);
        // One hard batch is no divergence.
        let mean = self.outcome.so_far.mean_loss();
        let sign =
            losses.and_then(|[first, newest]| DivergenceSign::of_losses([first, newest.min(mean)]));
        let Some(sign) = sign else { return };
        self.outcome.said_to_diverge = true;
        let rate = units::significant(self.setup.config.optimizer.learning_rate, 3);
        let text = format!(
            "{sign} in epoch {epoch}: the training has diverged; {LOWER_RATE} (it is {rate})"
        );
        if self.is_first() {
            tracing::warn!("{text}");
            self.note(Event::new(EventKind::Warning, text));
        }
    }

    /// Counts `epoch` as read to its end.
    pub(super) fn count_epoch(&mut self, epoch: usize) {
        self.outcome.epoch = epoch;
        self.outcome.batches = 0;
        self.outcome.so_far = MetricSums::default();
        self.outcome.cost_so_far = StepCost::default();
    }

    /// The metrics of all steps of an epoch so far.
    pub(super) fn epoch_line(&self, epoch: usize) -> MetricLine {
        let (step, so_far) = (self.outcome.step, &self.outcome.so_far);
        MetricLine {
            cost: self.outcome.cost_so_far,
            ..so_far.line(MetricKind::Train, epoch, step)
        }
    }

    pub(super) fn votes(&self) -> Votes {
        let due = self.is_first() && self.clock.is_due();
        Votes {
            stop: self.stop_wanted(),
            save: self.hooks.save_wanted || due,
            regroup: self.is_first() && self.setup.elasticity.somebody_waits(),
            hook_requests: !self.hooks.requests.is_empty(),
        }
    }

    /// Counts `steps` as made. `learnt` is the model after them, unless the optimizer skipped them.
    pub(super) fn advance(
        &mut self,
        learnt: Option<&AnyModel>,
        steps: std::ops::RangeInclusive<usize>,
    ) {
        let last = *steps.end();
        self.outcome.step = last;
        self.outcome.batches += steps.clone().count();
        if let (Some(ema), Some(model)) = (&mut self.setup.state.ema, learnt) {
            ema.follow(model, steps);
        }
        self.setup.live.step(last);
        self.elastic.advance(last);
    }

    /// Adds a step to the epoch's metrics and records it. A skipped step without a finite loss has no record.
    pub(super) fn record(
        &mut self,
        synced: SyncedStep,
        epoch: usize,
    ) -> Result<Option<MetricLine>, TrainError> {
        let SyncedStep { step, sums, cost } = synced;
        self.outcome.samples += sums.samples;
        self.outcome.cost += cost;
        self.outcome.cost_so_far += cost;
        let (number, loss) = (step.number, sums.mean_loss());
        if sums.samples == 0 || step.skipped && !loss.is_finite() {
            // An activation has overflowed: the loss would make the epoch's mean NaN.
            return Ok(None);
        }
        let before = self.outcome.so_far.clone();
        self.outcome.so_far += &sums;
        let is_trial = self.setup.is_trial;
        if !is_trial {
            require_finite_loss("training loss", loss, Some((epoch, number)))?;
            self.outcome.note_loss(loss);
            require_possible_accuracy(&sums)?;
            if self.setup.validation.is_some() {
                // A validation reports the same metrics, an epoch later.
                self.setup.config.best_by.value(&sums)?;
            }
        }
        let logged = number.is_multiple_of(self.setup.config.log_every);
        let scaling = self.outcome.loss_scaling;
        let mut line = sums.line(MetricKind::Step, epoch, number);
        line.cost = cost;
        line.learning_rate = Some(step.rate.base());
        line.loss_scale = scaling.map(|scaling| scaling.scale);
        line.skipped_steps = scaling.map(|scaling| scaling.skipped_steps);
        if !is_trial && (logged || self.hooks.has_user_hooks()) {
            line.gradient_norm = step.gradient_norm.map(|norm| norm.read()).transpose()?;
        }
        if logged {
            self.log(&line)?;
        }
        if self.is_first() {
            let total_items = self.setup.train.sampler().samples_per_epoch();
            let progress = items(self.outcome.so_far.samples, total_items);
            let report = StepReport::OfAllRanks { sums, cost, before };
            let item = TrainingItem::new(report, progress, Some(number), Some(step.rate));
            self.event_train(LearnerEvent::ProcessedItem(item))?;
        }
        Ok(Some(line))
    }

    fn event_train(&mut self, event: LearnerEvent<StepReport>) -> Result<(), TrainError> {
        if !self.shows() {
            return Ok(());
        }
        let result = self.events.process_train(event);
        result.map_err(|error| TrainError::BurnTrain(error.to_string()))
    }
}
