//! What comes after the steps of an epoch, and after the last.

use std::ops::RangeInclusive;
use std::time::Instant;

use burn::module::Module;
use burn_train::{EventProcessorTraining, LearnerEvent, TrainingItem};
use everburn_record::{
    BestEpoch, MetricKind, MetricLine, Phase, Saving, StepCost, stopped_on_request,
};

use super::{RankLoop, items};
use crate::checkpoint::adapter::Adapter;
use crate::checkpoint::weights::write_trained;
use crate::config::best_by::Direction;
use crate::error::{HELD_OUT_OF, TrainError, VALIDATION_LOSS};
use crate::evaluation::{self, Evaluated, evaluate, infer};
use crate::metrics::step_report::StepReport;
use crate::metrics::sums::MetricSums;
use crate::model::erased::AnyModel;
use crate::model::finite::{require_finite, require_finite_loss};
use crate::record::outcome::Stopped;

pub(super) struct Validated {
    pub(super) sums: MetricSums,
    pub(super) line: MetricLine,
}

impl RankLoop {
    /// What all validation samples have shown; `None` without any, or if a rank wanted to stop first.
    pub(super) fn validate(
        &mut self,
        model: &AnyModel,
        epoch: usize,
    ) -> Result<Option<Validated>, TrainError> {
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
        let (is_first, mut before, mut iteration) = (self.is_first(), MetricSums::default(), 0);
        let (group, step) = (self.setup.group.clone(), self.outcome.step);
        let stop = (self.setup.stop.clone(), self.interrupter.clone());
        let stop_wanted = || stop.0.is_set() || stop.1.should_stop();
        let model = self.measured(model)?;
        let over = self.setup.over.clone();
        let infer = |part| infer(&model, over.as_deref(), part, None);
        let held_out_from = self.setup.held_out_from;
        let first = held_out_from.unwrap_or(0);
        let evaluated = evaluate(infer, (&loader, first), &group, stop_wanted, |batch| {
            iteration += 1;
            if !is_first {
                return Ok(());
            }
            let report = StepReport::OfAllRanks {
                sums: batch.clone(),
                cost: StepCost::default(),
                before: before.clone(),
            };
            before += batch;
            let progress = items(before.samples, total_items);
            let item = TrainingItem::new(report, progress, Some(iteration), None);
            self.event_valid(LearnerEvent::ProcessedItem(item))
        });
        let evaluated = evaluated.map_err(|error| error.in_validation(held_out_from))?;
        self.event_valid(LearnerEvent::EndSplit(epoch))?;
        let Some(Evaluated { sums, broken }) = evaluated else {
            let why = stopped_on_request(self.setup.stop.by(), step);
            self.outcome.stopped = Some(Stopped::Interrupted(why));
            return Ok(None);
        };
        require_finite_loss(VALIDATION_LOSS, sums.mean_loss(), Some((epoch, step))).map_err(
            |error| {
                let of = held_out_from.map_or("the validation", |_| HELD_OUT_OF);
                self.with_measured_inputs(error, &model, (&loader, broken), (of, first))
            },
        )?;
        self.setup.config.best_by.value(&sums)?;
        let mut line = sums.line(MetricKind::Validation, epoch, step);
        line.cost.seconds = start.elapsed().as_secs_f64();
        self.log(&line)?;
        Ok(Some(Validated { sums, line }))
    }

    /// Writes the checkpoint of an epoch whose validation loss is not finite, before that error ends the training: the data may
    /// be at fault, and a resume needs what was learned. It is for nothing where the parameters are not finite either.
    pub(super) fn keep_before_error(
        &mut self,
        model: &AnyModel,
        epoch: usize,
        finished: bool,
        error: TrainError,
    ) -> TrainError {
        let of_loss = matches!(
            error,
            TrainError::LossNotFinite { .. } | TrainError::InputNotFinite(_)
        );
        let step = self.outcome.step;
        if !of_loss
            || !finished
            || self.setup.is_trial
            || require_finite(model, epoch, step).is_err()
        {
            return error;
        }
        self.count_epoch(epoch);
        let _saving = Saving::begin();
        let written = self.make_states_equal(model);
        let written = written.and_then(|()| self.save_checkpoint(model));
        let written = written.and_then(|()| match &mut self.records.checkpoints {
            Some(checkpoints) => checkpoints.finish(),
            None => Ok(()),
        });
        match written {
            Ok(()) if self.records.checkpoints.is_some() => tracing::warn!(
                "the checkpoint of epoch {epoch} has what was learned before this validation"
            ),
            Ok(()) => {}
            Err(unwritten) => tracing::warn!("epoch {epoch} has no checkpoint: {unwritten}"),
        }
        // A rank that ends has the launcher end the others.
        let _ = self.setup.group.barrier().wait();
        error
    }

    /// Whether a sample is to be drawn after one of `steps`.
    pub(super) fn shows_after(&self, mut steps: RangeInclusive<usize>) -> bool {
        let samples = self.setup.samples.as_ref();
        samples.is_some_and(|samples| steps.any(|step| samples.is_due(step)))
    }

    /// Rank 0 draws; where several ranks hold the model, all of them bring their part.
    pub(super) fn show_sample(&self, model: &AnyModel) -> Result<(), TrainError> {
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
        model: &AnyModel,
        epoch: usize,
        validated: Option<&MetricSums>,
    ) -> Result<(), TrainError> {
        if self.setup.is_trial {
            return Ok(());
        }
        let by = &self.setup.config.best_by;
        if let Some(sums) = validated
            && self.outcome.epoch == epoch
        {
            let best = self.outcome.best;
            let best = best.map(|best| best.value.unwrap_or(best.validation_loss));
            let value = by.value(sums)?;
            if by.is_better(value, best) {
                self.outcome.best = Some(BestEpoch {
                    epoch,
                    validation_loss: sums.mean_loss(),
                    value: (!by.is_loss()).then_some(value),
                });
            } else if !value.is_finite() && self.is_first() {
                let metric = by.metric();
                tracing::warn!(
                    "epoch {epoch} is not the best one by `{metric}`, which is {value} over the validation samples"
                );
            }
        }
        // Before the checkpoint: a run that stops here has one, whatever the interval.
        if let (Some(rule), Some(best)) = (&self.setup.config.early_stopping, self.outcome.best)
            && epoch < self.setup.config.epochs
            && epoch - best.epoch >= rule.patience
        {
            let better = match by.direction() {
                Direction::Lower => "lower",
                Direction::Higher => "higher",
            };
            let (metric, epoch) = (by.metric(), best.epoch);
            self.outcome.stopped = Some(Stopped::Early(format!(
                "early: no {better} validation {metric} since epoch {epoch}"
            )));
        }
        if self.outcome.epoch == epoch {
            if validated.is_none() {
                require_finite(model, epoch, self.outcome.step)?;
            }
            if self.saves_at_the_end_of(epoch) {
                let _saving = Saving::begin();
                self.make_states_equal(model)?;
                self.save_checkpoint(model)?;
            }
        }
        Ok(())
    }

    /// Rank 0 of an elastic job writes what was learned.
    fn write_model(&self, model: &AnyModel) -> Result<(), TrainError> {
        let Some(run) = self.setup.run.as_ref().filter(|_| self.is_first()) else {
            return Ok(());
        };
        let averaged = self.outcome.averaged.as_deref();
        match self.setup.config.lora.is_some() {
            false => write_trained(run, model, None, averaged),
            true => {
                let adapter = Adapter::of(model);
                write_trained(run, &model.clone().materialize(), Some(&adapter), averaged)
            }
        }
    }

    /// Writes the model and measures it on the test samples, unless the user has stopped the training; in a fixed group,
    /// whose loop has no test samples, the trainer does so.
    pub(super) fn test(&mut self, model: &AnyModel) -> Result<(), TrainError> {
        let Some(loader) = self.setup.test.clone() else {
            return Ok(());
        };
        // Before the test: one that fails costs no training.
        self.write_model(model)?;
        if self.outcome.is_interrupted() {
            return Ok(());
        }
        let model = self.measured(model)?;
        self.setup.live.enter(Phase::Testing);
        let tested = evaluation::test(
            (&model, self.setup.over.as_deref()),
            (&loader, &self.setup.group),
            || self.setup.stop.is_set(),
            Some(&self.setup.class_names[..]),
            Some((self.outcome.epoch, self.outcome.step)),
            |error, batch| {
                self.with_measured_inputs(error, &model, (&loader, batch), ("the test", 0))
            },
        );
        self.outcome.test = tested.map_err(TrainError::in_test)?;
        Ok(())
    }

    fn event_valid(&mut self, event: LearnerEvent<StepReport>) -> Result<(), TrainError> {
        if !self.shows() {
            return Ok(());
        }
        let result = self.events.process_valid(event);
        result.map_err(|error| TrainError::BurnTrain(error.to_string()))
    }
}
