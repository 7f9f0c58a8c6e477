//! What comes after the steps of an epoch, and after the last.

use std::cell::RefCell;
use std::time::Instant;

use burn_train::{InferenceStep, LearnerEvent, LearnerModel, TrainStep, TrainingItem};
use everburn_record::Phase;

use super::{RankLoop, items};
use crate::error::TrainError;
use crate::evaluation::{evaluate, infer};
use crate::finite::{require_finite, require_finite_loss};
use crate::outcome::stopped_by_user;
use crate::predictions::Counts;
use crate::report::BestEpoch;
use crate::run_directory::{MetricKind, MetricLine};
use crate::tally::{Report, StepCost};

impl<M, I, B> RankLoop<M, I, B>
where
    M: LearnerModel + TrainStep<Input = B> + InferenceStep<Input = B>,
    <M as TrainStep>::Output: Report,
    <M as InferenceStep>::Output: Report,
    I: Send + Sync + Clone + 'static,
    B: Send + 'static,
{
    pub(super) fn validate(&mut self, model: &M, epoch: usize) -> Result<Option<f64>, TrainError> {
        let Some(loader) = self.setup.validation.clone() else {
            return Ok(None);
        };
        self.setup.live.enter(Phase::Validating);
        let total_items = loader.sampler().samples_per_epoch();
        self.event_valid(LearnerEvent::StartSplit {
            epoch_number: epoch,
            total_items,
        })?;
        let start = Instant::now();
        let (is_first, mut processed, mut iteration) = (self.is_first(), 0, 0);
        let (group, step) = (self.setup.group.clone(), self.outcome.step);
        let stop = (self.setup.stop.clone(), self.interrupter.clone());
        let stop_wanted = || stop.0.is_set() || stop.1.should_stop();
        let model = self.measured(model)?;
        let over = self.setup.over.clone();
        let infer = |batch| infer(&model, over.as_deref(), batch, None);
        let evaluated = evaluate(infer, &loader, &group, stop_wanted, |batch| {
            if !is_first {
                return Ok(());
            }
            processed += batch.samples;
            iteration += 1;
            let report = Report::of_all_ranks(batch, StepCost::default());
            let progress = items(processed, total_items);
            let item = TrainingItem::new(report, progress, Some(iteration), None);
            self.event_valid(LearnerEvent::ProcessedItem(item))
        })?;
        self.event_valid(LearnerEvent::EndSplit(epoch))?;
        let Some(tally) = evaluated else {
            self.outcome.stopped = Some(stopped_by_user(step));
            return Ok(None);
        };
        require_finite_loss("validation loss", tally.mean_loss(), epoch, step)?;
        let mut line = MetricLine::new(MetricKind::Validation, epoch, step, &tally);
        line.cost.seconds = start.elapsed().as_secs_f64();
        self.log(&line)?;
        Ok(Some(tally.mean_loss()))
    }

    /// Rank 0 draws; where several ranks hold the model, all of them bring their part.
    pub(super) fn show_sample(&self, model: &M) -> Result<(), TrainError> {
        let Some(samples) = &self.setup.samples else {
            return Ok(());
        };
        let model = match &self.setup.over {
            Some(over) => over.gather(model.valid())?,
            None if self.is_first() => model.valid(),
            None => return Ok(()),
        };
        if self.is_first()
            && let Some(text) = samples.draw(&model, self.outcome.step)?
        {
            self.setup.display.show(&text);
        }
        Ok(())
    }

    /// Remembers the best epoch, decides about stopping early and writes the checkpoint. The
    /// numbers are equal to the bit on every rank, and so is the decision.
    pub(super) fn finish_epoch(
        &mut self,
        model: &M,
        epoch: usize,
        validation_loss: Option<f64>,
    ) -> Result<(), TrainError> {
        if self.is_first() {
            self.event_train(LearnerEvent::EndEpoch(epoch))?;
        }
        if let Some(validation_loss) = validation_loss
            && self.outcome.epoch == epoch
            && self
                .outcome
                .best
                .is_none_or(|best| validation_loss < best.validation_loss)
        {
            self.outcome.best = Some(BestEpoch {
                epoch,
                validation_loss,
            });
        }
        // Before the checkpoint: a run that stops here has one, whatever the interval.
        if let (Some(rule), Some(best)) = (&self.setup.config.early_stopping, self.outcome.best)
            && epoch < self.setup.config.epochs
            && epoch - best.epoch >= rule.patience
        {
            self.outcome.stopped = Some(format!(
                "early: no lower validation loss since epoch {}",
                best.epoch
            ));
        }
        if self.outcome.epoch == epoch {
            if validation_loss.is_none() {
                require_finite(model, epoch, self.outcome.step)?;
            }
            if self.saves_at_the_end_of(epoch) {
                self.make_states_equal(model)?;
                self.save_checkpoint(model)?;
            }
        }
        Ok(())
    }

    /// Measures the model on the test samples, unless the user has stopped the training.
    pub(super) fn test(&mut self, model: &M) -> Result<(), TrainError> {
        let Some(loader) = self.setup.test.clone() else {
            return Ok(());
        };
        let by_user = |why: &String| why.starts_with("by ");
        if self.outcome.stopped.as_ref().is_some_and(by_user) {
            return Ok(());
        }
        let start = Instant::now();
        let stop_wanted = || self.setup.stop.is_set();
        let model = self.measured(model)?;
        self.setup.live.enter(Phase::Testing);
        let counts = RefCell::new(Counts::default());
        let infer = |batch| infer(&model, self.setup.over.as_deref(), batch, Some(&counts));
        let group = &self.setup.group;
        let tally = evaluate(infer, &loader, group, stop_wanted, |_| Ok(()))?;
        if tally.is_some() {
            let confusion = counts
                .into_inner()
                .all_reduce(group, &self.setup.class_names)?;
            self.outcome.confusion = confusion;
        }
        self.outcome.test = tally.map(|tally| (tally, start.elapsed().as_secs_f64()));
        Ok(())
    }
}
