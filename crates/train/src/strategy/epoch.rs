//! The training loop: an epoch's steps, and what comes behind each.

use burn_train::{LearnerEvent, TrainingItem};
use everburn_distributed::Ddp;
use everburn_record::Phase;

use super::engine::{Known, KnownStep};
use super::run::Moment;
use super::{RankLoop, items};
use crate::checkpoint_every::Clock;
use crate::erased::AnyModel;
use crate::error::TrainError;
use crate::finite::require_finite_loss;
use crate::metric_line::{MetricKind, MetricLine};
use crate::outcome::stopped_by_user;
use crate::step_exchange::Votes;
use crate::step_report::{Report, StepCost};

impl RankLoop {
    /// Trains on every global batch of an epoch; also tells whether the epoch was read to its end.
    pub(super) fn train_epoch(
        &mut self,
        model: AnyModel,
        ddp: &Ddp,
        epoch: usize,
    ) -> Result<(AnyModel, bool), TrainError> {
        self.begin_epoch(epoch)?;
        let loader = self.setup.train.clone();
        let (mut engine, mut model) = self.engine(model, &loader, ddp, epoch)?;
        self.keep(&model)?;
        let mut finished = true;
        while engine.left() > 0 {
            if self.limit_is_reached() {
                finished = false;
                break;
            }
            let made = engine.step(self, model)?;
            model = made.model;
            // The numbers of some steps are left on the device for a while.
            let Some(known) = made.known else { continue };
            let votes = known.votes;
            model = self.after_steps(model, ddp, epoch, known, engine.left())?;
            if self.ends_after(votes)? {
                finished = engine.left() == 0;
                break;
            }
            if votes.regroup && !self.limit_is_reached() {
                return Err(TrainError::SomebodyWaits);
            }
        }
        self.end_epoch(epoch)?;
        Ok((model, finished))
    }

    /// Records steps of which all ranks know now, and calls the hooks.
    fn after_steps(
        &mut self,
        mut model: AnyModel,
        ddp: &Ddp,
        epoch: usize,
        known: Known,
        left: usize,
    ) -> Result<AnyModel, TrainError> {
        let Known { steps, made, votes } = known;
        for step in made.clone() {
            model = self.corrupt(model, step);
        }
        self.finish_step(*made.end());
        self.keep(&model)?;
        let sums = steps.last().map(|known| known.sums.clone());
        let mut lines = Vec::with_capacity(steps.len());
        for known in steps {
            lines.extend(self.record(known, epoch)?);
        }
        let moment = Moment {
            ddp,
            epoch,
            made,
            left,
            votes,
            sums: sums.unwrap_or_default(),
        };
        let model = self.call_hooks(model, &moment, |hook, run| hook.after_steps(&lines, run))?;
        self.tell_of_checkpoints(model, &moment)
    }

    /// Whether the training ends here, by the votes of all ranks.
    fn ends_after(&mut self, votes: Votes) -> Result<bool, TrainError> {
        if votes.heed {
            self.heed_hooks()?;
        }
        if votes.stop && self.outcome.stopped.is_none() {
            // On whichever rank: this one may learn of a signal only after the others.
            self.outcome.stopped = Some(stopped_by_user(self.outcome.step));
        }
        Ok(self.outcome.stopped.is_some())
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
        self.epoch_cost = StepCost::default();
        Ok(())
    }

    fn end_epoch(&mut self, epoch: usize) -> Result<(), TrainError> {
        self.profile_end();
        self.event_train(LearnerEvent::EndSplit(epoch))?;
        let line = self.epoch_line(epoch);
        self.log(&line)
    }

    /// What the steps of an epoch have shown together.
    pub(super) fn epoch_line(&self, epoch: usize) -> MetricLine {
        let (step, so_far) = (self.outcome.step, &self.outcome.so_far);
        MetricLine {
            cost: self.epoch_cost,
            ..MetricLine::new(MetricKind::Train, epoch, step, so_far)
        }
    }

    /// What this rank wants after the present step.
    pub(super) fn votes(&mut self) -> Votes {
        let due = self.is_first() && self.clock.is_due();
        Votes {
            stop: self.stop_wanted(),
            save: std::mem::take(&mut self.hooks.save_wanted) || due,
            regroup: self.somebody_waits(),
            heed: !self.hooks.wishes.is_empty(),
        }
    }

    /// The model has made `steps`, whether or not their numbers are known, and has `learnt` in them or not.
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
        self.recent.begin(last);
        self.futile = 0;
    }

    /// Adds a step to what the epoch has shown, and records it. Of a step that was skipped there may be nothing.
    fn record(&mut self, known: KnownStep, epoch: usize) -> Result<Option<MetricLine>, TrainError> {
        let KnownStep { step, sums, cost } = known;
        self.outcome.samples += sums.samples;
        self.outcome.cost += cost;
        self.epoch_cost += cost;
        let (number, loss) = (step.number, sums.mean_loss());
        if sums.samples == 0 || step.skipped && !loss.is_finite() {
            // An activation was too large already, and the mean of the epoch would be no number either.
            return Ok(None);
        }
        self.outcome.so_far += &sums;
        require_finite_loss("training loss", loss, epoch, number)?;
        let logged = number.is_multiple_of(self.setup.config.log_every);
        let scaling = self.outcome.loss_scaling;
        let mut line = MetricLine::new(MetricKind::Step, epoch, number, &sums);
        line.cost = cost;
        line.learning_rate = Some(step.rate.base());
        line.loss_scale = scaling.map(|scaling| scaling.scale);
        line.skipped_steps = scaling.map(|scaling| scaling.skipped_steps);
        if logged || self.hooks.has_users() {
            line.gradient_norm = step.gradient_norm.map(|norm| norm.read()).transpose()?;
        }
        if logged {
            self.log(&line)?;
        }
        if self.is_first() {
            let total_items = self.setup.train.sampler().samples_per_epoch();
            let progress = items(self.outcome.so_far.samples, total_items);
            let report = Report::of_all_ranks(sums, cost);
            let item = TrainingItem::new(report, progress, Some(number), Some(step.rate));
            self.event_train(LearnerEvent::ProcessedItem(item))?;
        }
        Ok(Some(line))
    }
}
