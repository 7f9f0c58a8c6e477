//! One training: its checks, its loop, its test, and what is written of it.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use burn::prelude::*;
use burn_train::logger::InMemoryMetricLogger;
use burn_train::metric::LearningRateMetric;
use burn_train::{Interrupter, Learner, SupervisedTraining, TrainingStrategy};
use everburn_distributed::name_of;
use everburn_record::{Saving, TrainingReport, sync::lock};

use super::Trainer;
use super::trial::Trial;
use crate::checkpoint::Checkpoint;
use crate::checkpoint::training_state::TrainingState;
use crate::config::conflicts::RunFeatures;
use crate::device::memory::PeakMemory;
use crate::device::verification::verify_device;
use crate::elastic::agreement::Agreement;
use crate::error::TrainError;
use crate::metrics::{NewestReport, RankMetric};
use crate::model::erased::{AnyData, AnyLoader, AnyModel, AnyModelOverRanks};
use crate::model::samples::Samples;
use crate::record::live_file::LiveSlot;
use crate::record::outcome::LoopOutcome;
use crate::record::run_directory::RunDirectory;
use crate::renderer::NamedMetrics;
use crate::training_loop::{RankSetup, RankStrategy};

struct Loaders {
    train: AnyLoader,
    validation: Option<AnyLoader>,
    /// Of an elastic job, whose loop tests too.
    test: Option<AnyLoader>,
}

impl Trainer {
    pub(super) fn train(
        &self,
        model: AnyModel,
        data: &AnyData,
        samples: Option<Samples<AnyModel>>,
        over: Option<&AnyModelOverRanks>,
        trial: Option<&Trial>,
    ) -> Result<(AnyModel, TrainingReport), TrainError> {
        let result = self.train_and_test(model, data, samples, over, trial);
        if let Err(error) = &result {
            error.abort(&self.present_group());
        }
        result
    }

    fn train_and_test(
        &self,
        model: AnyModel,
        data: &AnyData,
        samples: Option<Samples<AnyModel>>,
        over: Option<&AnyModelOverRanks>,
        trial: Option<&Trial>,
    ) -> Result<(AnyModel, TrainingReport), TrainError> {
        let start = Instant::now();
        let model = self.freeze(model)?;
        self.check(over)?;
        let agreement = self.agreement(data)?;
        self.elasticity
            .outside_loop(|| agreement.clone().check(&self.group))?;
        let model = match trial {
            Some(_) => model,
            None => {
                self.config.check_test(data.test.len())?;
                self.warn_of_data(model, data)
            }
        };
        self.begin_profile()?;
        let loaders = self.loaders(data, over)?;
        let newest = || self.resume.then(|| self.newest_checkpoint()).transpose();
        let resume = self.elasticity.outside_loop(newest)?.flatten();
        let model = match over.is_some() || self.elasticity.is_elastic() {
            false => {
                let (train, validation) = (&loaders.train, loaders.validation.as_ref());
                self.warm_up_together(model, train, validation, data)?
            }
            true => {
                self.announce_kernels();
                model
            }
        };
        let per_epoch = loaders.train.sampler().samples_per_epoch();
        let total_steps = self.config.total_steps(per_epoch);
        self.warn_of_a_finished_run(resume.as_ref(), total_steps);
        let scheduler = match trial {
            Some(trial) => (self.scheduler_of_rates(&model, &trial.rates)?, false),
            None => self.scheduler(&model, total_steps)?,
        };
        let state = self.state(&model, scheduler)?;
        let (own_optimizer, own_schedule) = (state.own_optimizer, state.own_schedule);
        let setup = RankSetup {
            resume,
            samples,
            started: start,
            ..self.setup(data, (over, trial), loaders, state, agreement)
        };
        let (live, hooks) = (setup.live.clone(), Arc::clone(&setup.hooks));
        let (model, outcome) = self.run_loop(model, setup, data)?;
        // Until rank 0 has written everything: all ranks wait for it.
        let _saving = Saving::begin();
        let (trained, written) = self.write_model(&model, over, &outcome)?;
        let (tested, recorded) =
            self.test_at_the_end(&model, data, over, trial, (&live, &outcome))?;
        let (resumed_after_epoch, resumed_after_step) = outcome.resumed_after.unzip();
        let mut earlier_data = outcome.earlier_data.iter();
        let data_changed = earlier_data.any(|earlier| earlier.all != data.fingerprint.all);
        let report = TrainingReport {
            dataset: data.name.clone(),
            dataset_origin: data.origin.clone(),
            steps_since_resume: outcome.step - resumed_after_step.unwrap_or(0),
            resumed_after_epoch,
            data_changed,
            own_optimizer,
            own_schedule,
            seconds: (outcome.earlier + start.elapsed()).as_secs_f64(),
            ..self.report(&outcome, tested.as_ref(), trial)
        };
        if self.is_first() {
            self.write_end(written.and(recorded), &report)?;
            self.record_end(&report);
        }
        self.end_hooks(&hooks, &report)?;
        // Nobody leaves before rank 0 has written everything. On the way, what the last step was.
        let left = self.tell_last_step(outcome.step, outcome.past);
        match self.elasticity.after_the_end(left)? {
            None => live.finish(),
            // Rank 0 may have been lost before its report was written.
            Some(_) => self.write_report(&report)?,
        }
        Ok((trained, report))
    }

    /// Whether the configuration can be used with this model, these ranks and this device.
    fn check(&self, over: Option<&AnyModelOverRanks>) -> Result<(), TrainError> {
        let readers = over.map_or(&self.group, |over| over.replicas());
        self.config.validate(readers.world_size())?;
        self.config.precision.check_device(&name_of(&self.device))?;
        self.config.precision.check_type(&self.device)?;
        verify_device(&self.device, &self.kernels)?;
        if let Some(over) = over {
            self.config.validate_over(&**over)?;
        }
        self.config.check_conflicts(RunFeatures {
            parallel_model: over.is_some(),
            tensor: over.is_some_and(|over| over.cuts_layers()),
            elastic: self.elasticity.is_elastic(),
            profile: self.recorder.is_some(),
            ..RunFeatures::default()
        })
    }

    /// What the loop has from this trainer and its data. What the training begins with is the caller's.
    fn setup(
        &self,
        data: &AnyData,
        (over, trial): (Option<&AnyModelOverRanks>, Option<&Trial>),
        loaders: Loaders,
        state: TrainingState,
        agreement: Agreement,
    ) -> RankSetup {
        let checkpointing = self.config.activation_checkpointing;
        let learnt = loaders.train.sampler().samples_per_epoch();
        RankSetup {
            config: self.config.clone(),
            model_name: self.model_name.clone(),
            group: self.group.clone(),
            device: checkpointing.autodiff(self.device.clone()),
            train: loaders.train,
            validation: loaders.validation,
            state,
            resume: None,
            data_fingerprint: data.fingerprint.clone(),
            held_out_from: data.validation.is_none().then_some(learnt),
            run: self.run.clone(),
            agreement,
            connector: self.connector.clone(),
            initial_values: self.initial_values.clone(),
            elasticity: self.elasticity.clone(),
            resume_wanted: self.resume,
            begun_before: self.begun_before,
            started: Instant::now(),
            test: loaders.test,
            class_names: self.class_names.clone(),
            live: LiveSlot::default(),
            rank_statuses: self.rank_statuses.clone(),
            stop: self.stop.clone(),
            samples: None,
            hooks: Arc::new(Mutex::new(self.hooks.make())),
            display: self.display(),
            recorder: self.recorder.clone(),
            compute_seconds: self.compute_seconds.clone(),
            over: over.cloned(),
            task: self.task.clone(),
            is_trial: trial.is_some(),
        }
    }

    fn loaders(
        &self,
        data: &AnyData,
        over: Option<&AnyModelOverRanks>,
    ) -> Result<Loaders, TrainError> {
        let readers = over.map_or(&self.group, |over| over.replicas());
        let (train, validation) = self.split(data, readers)?;
        let train = train.recording(self.recorder.clone());
        let train = match over.map(|over| over.micro_batches()) {
            Some(count) => train.in_micro_batches(count),
            None => train,
        };
        let test = || self.ordered_loader(data.test.clone(), data, readers);
        let test = self.elasticity.in_loop(test)?;
        Ok(Loaders {
            train,
            validation,
            test,
        })
    }

    fn warn_of_a_finished_run(&self, resume: Option<&Checkpoint>, total_steps: usize) {
        let Some(step) = resume.map(|checkpoint| checkpoint.progress.step) else {
            return;
        };
        if let Some(why) = self.config.nothing_left(step, total_steps)
            && self.is_first()
        {
            tracing::warn!("{why}");
        }
    }

    /// Trains with burn-train, whose strategy is the loop of a rank.
    fn run_loop(
        &self,
        model: AnyModel,
        setup: RankSetup,
        data: &AnyData,
    ) -> Result<(AnyModel, LoopOutcome), TrainError> {
        let (optimizer, scheduler) = (&setup.state.optimizer, &setup.state.scheduler);
        let learner = Learner::new(model.train(), optimizer.clone(), scheduler.clone());
        let interrupter = Interrupter::new();
        let renderer = {
            let run = self.run.as_ref();
            self.display().renderer(&interrupter, run, &self.stop)
        };
        let newest = NewestReport::default();
        let folder = self.run.as_ref().map(RunDirectory::path);
        let train = setup.train.clone();
        let validation = setup.validation.clone().unwrap_or_else(|| train.clone());
        let resumed_after_epoch = setup.resume.as_ref().map(|it| it.progress.epoch);
        let (strategy, outcome) = RankStrategy::new(setup);
        let training = SupervisedTraining::<AnyModel>::new(
            folder.unwrap_or(std::path::Path::new(".")),
            Arc::new(train),
            Arc::new(validation),
        )
        .with_training_strategy(TrainingStrategy::Custom(Arc::new(strategy)))
        .with_interrupter(interrupter)
        .with_metric_logger(InMemoryMetricLogger::new())
        .with_application_logger(None)
        .renderer(Box::new(NamedMetrics::on(renderer, &newest)))
        .num_epochs(self.config.epochs)
        .label(&format!("{} on {}", self.model_name, data.name))
        .metrics((RankMetric::loss().telling(&newest),))
        .metric_train_numeric(RankMetric::samples_per_second())
        .metric_train_numeric(RankMetric::waiting())
        .metric_train_numeric(RankMetric::exposed_communication())
        .metric_train_numeric(LearningRateMetric::new());
        let training = match PeakMemory::of(&self.device).bytes() {
            Some(_) => training.metric_train_numeric(RankMetric::peak_memory()),
            None => training,
        };
        // A run that continues within its first epoch has none after it.
        let training = match resumed_after_epoch.filter(|epoch| *epoch > 0) {
            Some(epoch) => training.checkpoint(epoch),
            None => training,
        };
        let result = training.launch(learner);
        // Dropping the renderer gives the terminal back before anything else is printed.
        drop(result.renderer);
        let outcome = lock(&outcome).clone();
        if let Some(error) = outcome.error {
            return Err(error);
        }
        match result.error {
            Some(error) => Err(TrainError::BurnTrain(error.to_string())),
            None => Ok((result.model, outcome)),
        }
    }
}
