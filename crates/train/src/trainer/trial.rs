//! Short trainings whose model is dropped, by which the finders measure.
//!
//! A trial makes the steps of a training, by the same loop, with the same exchange of gradients and on all ranks. It
//! validates, tests and records nothing, and a loss that is not finite does not end it with an error.

use std::sync::{Arc, Mutex};

use burn::data::dataset::Dataset;
use burn::data::dataset::InMemDataset;
use burn::data::dataset::transform::PartialDataset;
use everburn_distributed::Buffers;
use everburn_record::MetricLine;
use everburn_record::sync::lock;

use super::Trainer;
use crate::config::TrainingConfig;
use crate::config::best_by::BestBy;
use crate::config::chaos::Chaos;
use crate::config::checkpoint_every::CheckpointEvery;
use crate::config::conflicts::RunFeatures;
use crate::config::read_metrics::ReadMetrics;
use crate::config::schedule::{LrSchedule, ScheduleNumbers};
use crate::error::TrainError;
use crate::hook::{Hook, HookError, Hooks};
use crate::model::erased::{AnyData, AnyItem, AnyModel};
use crate::training_loop::Run;

/// What is different from a training.
#[derive(Debug, Clone)]
pub(super) struct Trial {
    /// How many samples all ranks together read a step.
    pub(super) batch_size: usize,
    /// The learning rate of each step; there are as many steps.
    pub(super) rates: Vec<f64>,
}

/// What a trial has measured, the same on all ranks.
#[derive(Debug, Clone, Default)]
pub(super) struct TrialSteps {
    pub(super) lines: Vec<MetricLine>,
    /// The user has stopped it on some rank.
    pub(super) interrupted: bool,
}

/// Whether the newest of these lines is the last.
type IsLast = Arc<dyn Fn(&[MetricLine]) -> bool + Send + Sync>;

/// Keeps the lines of all steps, and ends the trial after one of which `is_last` says so.
struct Keeper {
    lines: Arc<Mutex<Vec<MetricLine>>>,
    is_last: IsLast,
    ends: bool,
}

impl Hook for Keeper {
    fn after_step(&mut self, step: &MetricLine, run: &mut Run<'_>) -> Result<(), HookError> {
        // A rank learns one step later that it is to end.
        if !self.ends {
            let mut lines = lock(&self.lines);
            lines.push(step.clone());
            self.ends = (self.is_last)(&lines);
            if self.ends {
                run.stop("the trial is over");
            }
        }
        Ok(())
    }
}

impl Trainer {
    /// Makes the steps of `trial` with a copy of `model`, until `is_last` says that the newest of these lines is the last.
    pub(super) fn try_steps(
        &self,
        model: &AnyModel,
        data: &AnyData,
        trial: &Trial,
        is_last: impl Fn(&[MetricLine]) -> bool + Send + Sync + 'static,
    ) -> Result<TrialSteps, TrainError> {
        let lines = Arc::<Mutex<Vec<MetricLine>>>::default();
        let is_last: IsLast = Arc::new(is_last);
        let kept = Arc::clone(&lines);
        let hooks = Hooks::default().with(move || Keeper {
            lines: Arc::clone(&kept),
            is_last: Arc::clone(&is_last),
            ends: false,
        });
        let data = self.data_of_trials(data);
        let trainer = Self {
            device: self.device.clone(),
            stop: self.stop.clone(),
            model_name: self.model_name.clone(),
            evaluation_batch: self.evaluation_batch,
            connector: self.connector.clone(),
            warm_up: self.warm_up,
            kernels: self.kernels.clone(),
            task: self.task.clone(),
            hooks,
            ..Self::new(self.config_of(trial, data.train.len()), self.group.clone())
        };
        // The statistics of batch norms belong to all copies of a model.
        let before = Buffers::read(model)?;
        let tried = trainer.train(model.clone(), &data, None, None, Some(trial));
        drop(before.write(model.clone()));
        let (_, report) = tried?;
        let lines = std::mem::take(&mut *lock(&lines));
        Ok(TrialSteps {
            lines,
            interrupted: !report.finished,
        })
    }

    /// Refuses trainings that a trial cannot measure.
    pub(super) fn check_trials(&self) -> Result<(), TrainError> {
        if self.resume {
            return Err(TrainError::Config(
                "a finder begins with fresh weights: find a value without `Trainer::resume`, and train with it then"
                    .to_string(),
            ));
        }
        self.config.check_conflicts(RunFeatures {
            elastic: self.elasticity.is_elastic(),
            profile: self.recorder.is_some(),
            trial: true,
            ..RunFeatures::default()
        })
    }

    /// The samples that the training learns from, and no others.
    pub(super) fn data_of_trials(&self, data: &AnyData) -> AnyData {
        let learnt = data.train.len().saturating_sub(self.held_out(data));
        AnyData {
            train: Arc::new(PartialDataset::new(data.train.clone(), 0, learnt)),
            validation: None,
            test: Arc::new(InMemDataset::<AnyItem>::new(Vec::new())),
            ..data.clone()
        }
    }

    fn config_of(&self, trial: &Trial, samples: usize) -> TrainingConfig {
        let in_an_epoch = samples.div_ceil(trial.batch_size.max(1)).max(1);
        let steps = trial.rates.len();
        TrainingConfig {
            steps: Some(steps),
            epochs: steps.div_ceil(in_an_epoch),
            batch_size: trial.batch_size,
            validation_samples: Some(0),
            hash_every: None,
            hash_key: None,
            tensorboard: false,
            checkpoint_every: CheckpointEvery::default(),
            read_metrics: ReadMetrics::EachStep,
            compare_every: 0,
            chaos: Chaos::default(),
            // The rates of the trial take its place.
            schedule: LrSchedule::Constant,
            schedule_numbers: ScheduleNumbers::default(),
            ema: None,
            early_stopping: None,
            best_by: BestBy::default(),
            ..self.config.clone()
        }
    }
}
