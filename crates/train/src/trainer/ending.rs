//! The end of a training: its model is written, tested and reported.

use burn::module::Module;
use everburn_record::{Phase, TrainingReport, Versions};

use super::Trainer;
use super::trial::Trial;
use crate::checkpoint::adapter::Adapter;
use crate::checkpoint::weights::write_trained;
use crate::error::TrainError;
use crate::metrics::sums::MetricSums;
use crate::model::erased::{AnyData, AnyModel, AnyModelOverRanks};
use crate::record::live_file::LiveSlot;
use crate::record::outcome::{LoopOutcome, Stopped};

impl Trainer {
    /// Rank 0 writes what was learned, before the test: a test that fails costs no training. Returns the whole model,
    /// with what adaptation has learned as part of the weights, and whether it was written: the test needs no disk, and what
    /// it finds is known before the training fails of a full one.
    pub(super) fn write_model(
        &self,
        model: &AnyModel,
        over: Option<&AnyModelOverRanks>,
        outcome: &LoopOutcome,
    ) -> Result<(AnyModel, Result<(), TrainError>), TrainError> {
        let lora = self.config.lora.as_ref();
        let whole = match over {
            Some(over) => over.gather(model.clone())?,
            None if lora.is_some() => model.clone().materialize(),
            None => model.clone(),
        };
        // The loop of an elastic job has written it.
        let written = self.elasticity.outside_loop(|| {
            let Some(run) = self.run.as_ref().filter(|_| self.is_first()) else {
                return Ok(());
            };
            let adapter = lora.map(|_| Adapter::of(model));
            write_trained(run, &whole, adapter.as_ref(), outcome.averaged.as_deref())
        });
        Ok((whole, written.map(|_| ())))
    }

    /// Tests a model that has come to the training's end; the loop of an elastic job has done so. Also returns whether the
    /// result was written.
    pub(super) fn test_at_the_end(
        &self,
        model: &AnyModel,
        data: &AnyData,
        over: Option<&AnyModelOverRanks>,
        trial: Option<&Trial>,
        (live, outcome): (&LiveSlot, &LoopOutcome),
    ) -> Result<(Option<MetricSums>, Result<(), TrainError>), TrainError> {
        if outcome.is_interrupted() || trial.is_some() {
            return Ok((None, Ok(())));
        }
        let tested = self.elasticity.outside_loop(|| {
            live.enter(Phase::Testing);
            let measured = self.measured(model, outcome)?;
            let over = over.map(|over| &**over);
            let tested = self.test(&measured, data, over, Some(outcome));
            tested.map_err(TrainError::in_test)
        })?;
        let Some(tested) = tested.unwrap_or_else(|| outcome.test.clone()) else {
            return Ok((None, Ok(())));
        };
        let recorded = self.record_test(&tested, outcome);
        Ok((Some(tested.sums), recorded))
    }

    /// What the loop and the test have found; the data and the times of this process are the caller's.
    pub(super) fn report(
        &self,
        outcome: &LoopOutcome,
        test: Option<&MetricSums>,
        trial: Option<&Trial>,
    ) -> TrainingReport {
        let stopped_in_test = (!outcome.is_interrupted() && test.is_none() && trial.is_none())
            .then(|| "on request in the test".into());
        let tested = test.cloned().unwrap_or_default();
        let (outcome, cost) = (outcome.clone(), outcome.cost);
        let by = &self.config.best_by;
        TrainingReport {
            model: self.model_name.clone(),
            test_accuracy: tested.accuracy(),
            test_loss: test.map(MetricSums::mean_loss),
            test_metrics: tested.other_means(),
            test_samples: tested.samples,
            test_predictions: tested.predictions,
            best_epoch: outcome.best,
            best_by: (!by.is_loss()).then(|| by.to_string()),
            samples_per_second: outcome.samples as f64 / cost.seconds.max(f64::MIN_POSITIVE),
            world_size: self.present_group().world_size(),
            batch_size: self.config.batch_size,
            epochs: outcome.epoch,
            unfinished_epoch: (outcome.batches > 0).then_some(outcome.epoch + 1),
            steps: outcome.step,
            train_seconds: cost.seconds,
            exposed_seconds: cost.exposed,
            gradient_bytes: cost.gradient_bytes,
            gradients_by: self.gradients_by(),
            peak_memory: cost.peak_memory,
            skipped_steps: outcome.loss_scaling.map(|scaling| scaling.skipped_steps),
            averaged: test.is_some() && self.config.ema.is_some_and(|ema| ema.validate),
            finished: !outcome.is_interrupted() && stopped_in_test.is_none(),
            outer: outcome.outer,
            sharding: outcome.sharding,
            stopped: outcome
                .stopped
                .map(|(Stopped::Early(why) | Stopped::Interrupted(why))| why)
                .or(stopped_in_test),
            versions: Versions::default(),
            ..TrainingReport::default()
        }
    }

    /// Writes the report where all before it was `written`. Else the error has it: it is all that is left to tell of.
    pub(super) fn write_end(
        &self,
        written: Result<(), TrainError>,
        report: &TrainingReport,
    ) -> Result<(), TrainError> {
        let written = written.and_then(|()| self.write_report(report));
        written.map_err(|reason| TrainError::NotRecorded {
            report: Box::new(report.clone()),
            reason: Box::new(reason),
        })
    }

    pub(super) fn write_report(&self, report: &TrainingReport) -> Result<(), TrainError> {
        let run = self.run.as_ref();
        run.map_or(Ok(()), |run| run.write_report(report))
    }
}
