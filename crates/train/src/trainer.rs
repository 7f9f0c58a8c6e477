//! One call that trains, validates, tests and records, on every rank.

mod evaluating;
mod find_batch_size;
mod find_learning_rate;
mod loaders;
mod optimizing;
mod predicting;
mod profiling;
mod recording;
mod training_data;
mod trial;
mod warm_up;

use std::sync::{Arc, Mutex};
use std::time::Instant;

use burn::prelude::*;
use burn_train::logger::InMemoryMetricLogger;
use burn_train::metric::LearningRateMetric;
use burn_train::{Interrupter, Learner, SupervisedTraining, TrainingStrategy};
use everburn_collectives::group::ProcessGroup;
use everburn_distributed::{ConnectExchange, InitialValues, name_of};
use everburn_profile::Recorder;
use everburn_record::Phase;

pub use self::find_batch_size::{BatchSizeLimit, BatchSizeSearch, FreeMemory, TriedBatchSize};
pub use self::find_learning_rate::{LearningRateRange, LearningRateSweep, SweepPoint};
pub use self::predicting::PredictionInput;
pub use self::training_data::TrainingData;
use self::trial::Trial;
pub use self::warm_up::WarmUp;
use crate::checkpoint::adapter::{Adapter, write_adapter};
use crate::checkpoint::training_state::TrainingState;
use crate::checkpoint::weights::save_safetensors;
use crate::config::TrainingConfig;
use crate::config::conflicts::RunFeatures;
use crate::device::kernels::KernelCache;
use crate::device::memory::PeakMemory;
use crate::device::verification::verify_device;
use crate::elastic::regroup::Regroup;
use crate::error::TrainError;
use crate::hook::Hooks;
use crate::metrics::sums::MetricSums;
use crate::metrics::{NewestReport, RankMetric};
use crate::model::erased::{
    AnyData, AnyModel, AnyModelOverRanks, Trainable, erase_data, erase_over_ranks, erase_samples,
};
use crate::model::samples::Samples;
use crate::parallel::model::ParallelModel;
use crate::record::live_file::{LiveSlot, RankStatuses};
use crate::record::report::{TrainingReport, Versions};
use crate::record::run_directory::{RunDirectory, write_file};
use crate::renderer::{Display, NamedMetrics};
use crate::stop::StopSignal;
use crate::strategy::{RankSetup, RankStrategy};
use crate::task::ConfiguredTask;

/// The usual batch size of an evaluation: no gradients, so larger than in training.
const EVALUATION_BATCH: usize = 1_000;

/// Trains a model on the ranks of a process group: every rank makes the same call.
///
/// Rank 0 shows the progress and writes the run directory. A process group of one rank
/// ([`ProcessGroup::alone`]) trains on a single device by the same code.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_train as train; }
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::train::{Trainer, TrainingConfig};
///
/// let group = ProcessGroup::alone(GroupOptions::default()); // or a group of several ranks
/// let trainer = Trainer::new(TrainingConfig::default(), group);
/// // `trainer.fit(model, data)` trains and returns the model and a report.
/// ```
pub struct Trainer {
    /// How to train.
    pub config: TrainingConfig,
    /// The ranks.
    pub group: ProcessGroup,
    /// The device of this rank.
    pub device: Device,
    /// Where rank 0 records the run; `None` to record nothing.
    pub run: Option<RunDirectory>,
    /// Continue from the newest good checkpoint of the run directory.
    pub resume: bool,
    /// How rank 0 shows the progress.
    pub display: Display,
    /// Asks for a stop after the current step.
    pub stop: StopSignal,
    /// The name that goes into report and checkpoints.
    pub model_name: String,
    /// How many samples all ranks together read at once in validation and test.
    pub evaluation_batch: usize,
    /// By which way gradients travel that are on GPUs; `None` for [`Ddp::new`](everburn_distributed::Ddp::new)'s
    /// own choice.
    pub exchange: Option<Arc<dyn ConnectExchange>>,
    /// How the training continues when ranks are lost or come; `None` to end then. The first group is
    /// [`Regroup::group`]; every rank needs the run directory, because any may become rank 0.
    pub regroup: Option<Arc<dyn Regroup>>,
    /// This process takes the place of one that was lost: where no rank remembers anything, the training
    /// continues from the newest checkpoint.
    pub begun_before: bool,
    /// The names of the classes, in the order of their numbers; for the report of a classifier.
    pub class_names: Vec<String>,
    /// The status of each rank, for monitoring; called on rank 0.
    pub rank_statuses: Option<RankStatuses>,
    /// Whether each shape of batch is run once before the training, so that kernels are ready
    /// ([`Trainer::warm_up`]); if `None`, on devices whose kernels are compiled as they are met. Ranks that hold a
    /// model together, or that may be lost, do without.
    pub warm_up: Option<bool>,
    /// Where compiled kernels are kept, for the message.
    pub kernels: KernelCache,
    /// The task whose model is trained: its settings must be the same on all ranks, and an optimizer or a schedule of
    /// its own takes the place of the configuration's.
    pub task: Option<Arc<dyn ConfiguredTask>>,
    /// Records where each step's time goes; on all ranks or on none. On a device that computes by itself, each phase
    /// of a step is then waited for.
    pub recorder: Option<Recorder>,
    /// Code of the user's own that is called after steps, epochs, checkpoints and failures; the same on all ranks.
    pub hooks: Hooks,
    /// Where each rank reads its part of the first model, which has none; where parameters are sharded, and for meshes.
    pub initial_values: Option<Arc<dyn InitialValues>>,
}

impl Trainer {
    /// A trainer on Burn's default device that records and shows nothing.
    pub fn new(config: TrainingConfig, group: ProcessGroup) -> Self {
        Self {
            config,
            group,
            device: Device::default(),
            run: None,
            resume: false,
            display: Display::Silent,
            stop: StopSignal::default(),
            model_name: "model".to_string(),
            evaluation_batch: EVALUATION_BATCH,
            exchange: None,
            regroup: None,
            begun_before: false,
            class_names: Vec::new(),
            rank_statuses: None,
            warm_up: None,
            kernels: KernelCache::Nowhere("no folder was given".to_string()),
            task: None,
            recorder: None,
            hooks: Hooks::default(),
            initial_values: None,
        }
    }

    /// The present group: [`Trainer::group`], unless ranks were lost or came.
    pub fn present_group(&self) -> ProcessGroup {
        let regroup = self.regroup.as_ref();
        regroup.map_or_else(|| self.group.clone(), |regroup| regroup.group())
    }

    fn is_first(&self) -> bool {
        self.present_group().rank() == 0
    }

    /// Seeds the device for the model's initial weights; call it before the model is built. All
    /// ranks start from rank 0's weights.
    pub fn seed(&self) {
        self.config.seed_for_weights(&self.device);
    }

    /// Trains `model` and returns it with the report: the same on every rank, but for the times,
    /// which each rank measures itself.
    ///
    /// # Errors
    /// [`TrainError`] on every rank when anything fails on any of them: the first to fail says
    /// what, the others that it did.
    pub fn fit<M, I>(
        &self,
        model: M,
        data: &TrainingData<I, M::Batch>,
    ) -> Result<(M, TrainingReport), TrainError>
    where
        M: Trainable,
        I: Send + Sync + Clone + 'static,
    {
        self.fit_and_sample(model, data, None)
    }

    /// As [`fit`](Self::fit), and shows `samples` of what the model can do by then.
    ///
    /// # Errors
    /// As [`fit`](Self::fit); also what drawing a sample fails with.
    pub fn fit_and_sample<M, I>(
        &self,
        model: M,
        data: &TrainingData<I, M::Batch>,
        samples: Option<Samples<M>>,
    ) -> Result<(M, TrainingReport), TrainError>
    where
        M: Trainable,
        I: Send + Sync + Clone + 'static,
    {
        let (model, samples) = (AnyModel::new(model), samples.map(erase_samples));
        let (model, report) = self.train(model, &erase_data(data), samples, None, None)?;
        Ok((model.open(), report))
    }

    /// As [`fit_and_sample`](Self::fit_and_sample), with a model that several ranks hold together. Rank 0
    /// is given the whole model back, the others their part; samples are drawn from the whole one.
    ///
    /// # Errors
    /// As [`fit`](Self::fit).
    pub fn fit_over_ranks<M, I>(
        &self,
        model: M,
        data: &TrainingData<I, M::Batch>,
        samples: Option<Samples<M>>,
        over: &Arc<dyn ParallelModel<M, M::Batch>>,
    ) -> Result<(M, TrainingReport), TrainError>
    where
        M: Trainable,
        I: Send + Sync + Clone + 'static,
    {
        let (model, samples) = (AnyModel::new(model), samples.map(erase_samples));
        let over = erase_over_ranks(Arc::clone(over));
        let (model, report) = self.train(model, &erase_data(data), samples, Some(&over), None)?;
        Ok((model.open(), report))
    }

    fn train(
        &self,
        model: AnyModel,
        data: &AnyData,
        samples: Option<Samples<AnyModel>>,
        over: Option<&AnyModelOverRanks>,
        trial: Option<&Trial>,
    ) -> Result<(AnyModel, TrainingReport), TrainError> {
        let result = self.train_to_the_end(model, data, samples, over, trial);
        if let Err(error) = &result {
            error.abort(&self.present_group());
        }
        result
    }

    fn train_to_the_end(
        &self,
        model: AnyModel,
        data: &AnyData,
        samples: Option<Samples<AnyModel>>,
        over: Option<&AnyModelOverRanks>,
        trial: Option<&Trial>,
    ) -> Result<(AnyModel, TrainingReport), TrainError> {
        let start = Instant::now();
        let model = self.freeze(model)?;
        let readers = over.map_or(&self.group, |over| over.replicas());
        let micro_batches = over.map(|over| over.micro_batches());
        self.config.validate(readers.world_size())?;
        let device = name_of(&self.device);
        self.config.precision.check_device(&device)?;
        self.config.precision.check_type(&self.device)?;
        verify_device(&self.device, &self.kernels)?;
        if let Some(over) = over {
            self.config.validate_over(&**over)?;
        }
        self.config.check_conflicts(RunFeatures {
            parallel_model: over.is_some(),
            elastic: self.regroup.is_some(),
            profile: self.recorder.is_some(),
            ..RunFeatures::default()
        })?;
        let agreement = self.agreement(data)?;
        if self.regroup.is_none() {
            agreement.clone().check(&self.group)?;
        }
        let autodiff = self
            .config
            .activation_checkpointing
            .autodiff(self.device.clone());
        self.begin_profile()?;
        let (train, validation) = self.split(data, readers)?;
        let train = train.recording(self.recorder.clone());
        let train = match micro_batches {
            Some(count) => train.in_micro_batches(count),
            None => train,
        };
        // Where ranks may be lost, those that are left have to come to terms each time.
        let resume = match self.regroup {
            None if self.resume => Some(self.newest_checkpoint()?),
            _ => None,
        };
        let test = match self.regroup {
            Some(_) => Some(self.ordered_loader(data.test.clone(), data, readers)?),
            None => None,
        };
        let model = match (over, &self.regroup) {
            (None, None) => self.warm_up_together(model, &train, validation.as_ref(), data)?,
            _ => {
                self.announce_kernels();
                model
            }
        };
        let resumed_after_epoch = resume.as_ref().map(|checkpoint| checkpoint.progress.epoch);
        let resumed_after_step = resume
            .as_ref()
            .map_or(0, |checkpoint| checkpoint.progress.step);
        let total_steps = self.config.total_steps(train.sampler().samples_per_epoch());
        if resume.is_some() && resumed_after_step >= total_steps && self.is_first() {
            let advice = self.config.schedule.how_to_train_on();
            tracing::warn!(
                "nothing to train: {resumed_after_step} of {total_steps} steps are made; {advice}"
            );
        }
        let scheduler = match trial {
            Some(trial) => self.scheduler_of_rates(&model, &trial.rates)?,
            None => self.scheduler(&model, total_steps)?,
        };
        let state = TrainingState::new(self.optimizer(&model)?, scheduler);
        let learner = Learner::new(
            model.train(),
            state.optimizer.clone(),
            state.scheduler.clone(),
        );
        let live = LiveSlot::default();
        let hooks = Arc::new(Mutex::new(self.hooks.make()));
        let setup = RankSetup {
            config: self.config.clone(),
            model_name: self.model_name.clone(),
            group: self.group.clone(),
            device: autodiff.clone(),
            train: train.clone(),
            validation: validation.clone(),
            state,
            resume,
            run: self.run.clone(),
            checkpoints: None,
            metrics: None,
            tensor_board: None,
            ranks: None,
            hashes: None,
            agreement,
            exchange: self.exchange.clone(),
            initial_values: self.initial_values.clone(),
            regroup: self.regroup.clone(),
            resume_wanted: self.resume,
            begun_before: self.begun_before,
            test,
            class_names: self.class_names.clone(),
            live: live.clone(),
            rank_statuses: self.rank_statuses.clone(),
            stop: self.stop.clone(),
            samples,
            hooks: Arc::clone(&hooks),
            display: self.display(),
            recorder: self.recorder.clone(),
            over: over.cloned(),
            is_trial: trial.is_some(),
        };
        let (strategy, outcome) = RankStrategy::new(setup);
        let interrupter = Interrupter::new();
        let renderer = self.display().renderer(&interrupter, self.run.as_ref());
        let newest = NewestReport::default();
        let folder = self
            .run
            .as_ref()
            .map_or(std::path::Path::new("."), RunDirectory::path);
        let validation_loader = validation.unwrap_or_else(|| train.clone());
        let training = SupervisedTraining::<AnyModel>::new(
            folder,
            Arc::new(train),
            Arc::new(validation_loader),
        )
        .with_training_strategy(TrainingStrategy::Custom(Arc::new(strategy)))
        .with_interrupter(interrupter.clone())
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

        let outcome = outcome
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone();
        if let Some(error) = outcome.error {
            return Err(error);
        }
        if let Some(error) = result.error {
            return Err(TrainError::BurnTrain(error.to_string()));
        }
        let model = result.model;
        let interrupted = outcome
            .stopped
            .as_deref()
            .is_some_and(|why| why.starts_with("by "));
        let test_start = Instant::now();
        let (test, confusion) = match self.regroup {
            _ if interrupted || trial.is_some() => (None, None),
            Some(_) => (outcome.test.clone(), outcome.confusion.clone()),
            None => {
                live.enter(Phase::Testing);
                let measured = self.measured(&model, &outcome)?;
                match self.test(&measured, data, over.map(|over| &**over))? {
                    None => (None, None),
                    Some((sums, confusion)) => {
                        (Some((sums, test_start.elapsed().as_secs_f64())), confusion)
                    }
                }
            }
        };
        if let Some((sums, seconds)) = &test {
            self.record_test(sums, *seconds, confusion, &outcome)?;
        }
        let test = test.map(|(sums, _)| sums);
        let adapter = self.config.lora.as_ref().map(|_| Adapter::of(&model));
        let model = match over {
            Some(over) => over.gather(model)?,
            // What adaptation has learned becomes part of the weights.
            None if self.config.lora.is_some() => model.materialize(),
            None => model,
        };
        let stopped_in_test = (!interrupted && test.is_none() && trial.is_none())
            .then(|| "by the user in the test".into());
        let tested = test.clone().unwrap_or_default();
        let report = TrainingReport {
            model: self.model_name.clone(),
            dataset: data.name.clone(),
            dataset_origin: data.origin.clone(),
            test_accuracy: tested.accuracy(),
            test_loss: test.as_ref().map(MetricSums::mean_loss),
            test_metrics: tested.other_means(),
            test_samples: tested.samples,
            test_predictions: tested.predictions,
            best_epoch: outcome.best,
            best_by: self.config.best_by.clone(),
            samples_per_second: outcome.samples as f64
                / outcome.cost.seconds.max(f64::MIN_POSITIVE),
            world_size: self.present_group().world_size(),
            batch_size: self.config.batch_size,
            epochs: outcome.epoch,
            steps: outcome.step,
            steps_since_resume: outcome.step - resumed_after_step,
            seconds: start.elapsed().as_secs_f64(),
            train_seconds: outcome.cost.seconds,
            exposed_seconds: outcome.cost.exposed,
            gradient_bytes: outcome.cost.gradient_bytes,
            gradients_by: self.gradients_by(),
            outer: outcome.outer,
            sharding: outcome.sharding,
            skipped_steps: outcome.loss_scaling.map(|scaling| scaling.skipped_steps),
            averaged: test.is_some() && self.config.ema.is_some_and(|ema| ema.validate),
            peak_memory: outcome.cost.peak_memory,
            finished: !interrupted && stopped_in_test.is_none(),
            stopped: outcome.stopped.or(stopped_in_test),
            resumed_after_epoch,
            versions: Versions::default(),
        };
        let write = || match &self.run {
            None => Ok(()),
            Some(run) => {
                save_safetensors(&model, run)?;
                write_adapter(adapter.as_ref(), run)?;
                if let Some(averaged) = &outcome.averaged {
                    write_file(&run.ema_path(), averaged)?;
                }
                run.write_report(&report)
            }
        };
        if self.is_first() {
            write()?;
        }
        if self.is_first() {
            self.record_end(&report);
        }
        self.end_hooks(&hooks, &report)?;
        // Nobody leaves before rank 0 has written everything. On the way, what the last step was.
        match self.tell_last_step(outcome.step, outcome.past) {
            // Whoever is left has all that is to be written.
            Err(_) if self.regroup.is_some() => write()?,
            told => told?,
        }
        Ok((model, report))
    }
}
