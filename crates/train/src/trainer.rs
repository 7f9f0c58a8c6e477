//! One call that trains, validates, tests and records, on every rank.

mod loaders;

use std::sync::Arc;
use std::time::Instant;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::Dataset;
use burn::prelude::*;
use burn_train::logger::InMemoryMetricLogger;
use burn_train::metric::{Adaptor, LearningRateMetric};
use burn_train::{
    InferenceStep, Interrupter, Learner, LearnerModel, SupervisedTraining, TrainStep,
    TrainingStrategy,
};
use everburn_collectives::group::ProcessGroup;

use crate::agreement::Agreement;
use crate::checkpoint::CheckpointFolder;
use crate::checkpoint_writer::CheckpointWriter;
use crate::config::TrainingConfig;
use crate::error::TrainError;
use crate::evaluation::{evaluate, infer};
use crate::finite::require_finite_loss;
use crate::memory::PeakMemory;
use crate::metrics::RankMetric;
use crate::model_over_ranks::ModelOverRanks;
use crate::outcome::LoopOutcome;
use crate::renderer::Display;
use crate::report::{TrainingReport, Versions};
use crate::run_directory::{MetricKind, MetricLine, RunDirectory};
use crate::samples::Samples;
use crate::state_hashes::HashesFile;
use crate::stop::StopSignal;
use crate::strategy::{RankSetup, RankStrategy};
use crate::tally::{Report, StepReport, Tally};
use crate::training_state::{TrainingState, agree_on_newest};
use crate::weights::save_safetensors;

/// The usual batch size of an evaluation: no gradients, so larger than in training.
const EVALUATION_BATCH: usize = 1_000;

/// The data of a run: every rank is given all of it and reads its own share.
pub struct TrainingData<I, B> {
    /// The samples to learn from; the last of them are held out to validate on.
    pub train: Arc<dyn Dataset<I>>,
    /// The samples that the report's accuracy is measured on, once, at the end.
    pub test: Arc<dyn Dataset<I>>,
    /// Makes a batch of several samples.
    pub batcher: Arc<dyn Batcher<I, B>>,
    /// The name that goes into the report.
    pub name: String,
    /// What tells this data from other of the same name, a hash say: ranks whose data differ are
    /// refused. May be empty.
    pub fingerprint: String,
    /// Where the data came from, for the report.
    pub origin: String,
}

/// Trains a model on the ranks of a process group: every rank makes the same call.
///
/// Rank 0 shows the progress and writes the run directory. A process group of one rank
/// ([`ProcessGroup::alone`]) trains on a single device by the same code.
pub struct Trainer {
    /// How to train.
    pub config: TrainingConfig,
    /// The ranks.
    pub group: ProcessGroup,
    /// The device of this rank.
    pub device: Device,
    /// Where rank 0 records the run; `None` to record nothing.
    pub run: Option<RunDirectory>,
    /// Go on from the newest good checkpoint of the run directory.
    pub resume: bool,
    /// How rank 0 shows the progress.
    pub display: Display,
    /// Asks for a stop after the current step.
    pub stop: StopSignal,
    /// The name that goes into report and checkpoints.
    pub model_name: String,
    /// How many samples all ranks together read at once in validation and test.
    pub evaluation_batch: usize,
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
        }
    }

    fn is_first(&self) -> bool {
        self.group.rank() == 0
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
    pub fn fit<M, I, B>(
        &self,
        model: M,
        data: &TrainingData<I, B>,
    ) -> Result<(M, TrainingReport), TrainError>
    where
        M: LearnerModel
            + TrainStep<Input = B, Output = StepReport>
            + InferenceStep<Input = B, Output = StepReport>
            + Send
            + Sync,
        StepReport: Adaptor<StepReport>,
        I: Send + Sync + Clone + 'static,
        B: Send + 'static,
    {
        self.fit_and_sample(model, data, None)
    }

    /// As [`fit`](Self::fit), and shows `samples` of what the model can do by then.
    ///
    /// # Errors
    /// As [`fit`](Self::fit); also what drawing a sample fails with.
    pub fn fit_and_sample<M, I, B>(
        &self,
        model: M,
        data: &TrainingData<I, B>,
        samples: Option<Samples<M>>,
    ) -> Result<(M, TrainingReport), TrainError>
    where
        M: LearnerModel
            + TrainStep<Input = B, Output = StepReport>
            + InferenceStep<Input = B, Output = StepReport>
            + Send
            + Sync,
        StepReport: Adaptor<StepReport>,
        I: Send + Sync + Clone + 'static,
        B: Send + 'static,
    {
        self.fit_over(model, data, samples, None)
    }

    /// As [`fit_and_sample`](Self::fit_and_sample), with a model that several ranks hold together. Rank 0
    /// is given the whole model back, the others their part; samples are drawn from the whole one.
    ///
    /// # Errors
    /// As [`fit`](Self::fit).
    pub fn fit_over_ranks<M, I, B>(
        &self,
        model: M,
        data: &TrainingData<I, B>,
        samples: Option<Samples<M>>,
        over: &Arc<dyn ModelOverRanks<M, B>>,
    ) -> Result<(M, TrainingReport), TrainError>
    where
        M: LearnerModel
            + TrainStep<Input = B, Output = StepReport>
            + InferenceStep<Input = B, Output = StepReport>
            + Send
            + Sync,
        StepReport: Adaptor<StepReport>,
        I: Send + Sync + Clone + 'static,
        B: Send + 'static,
    {
        self.fit_over(model, data, samples, Some(over))
    }

    fn fit_over<M, I, B>(
        &self,
        model: M,
        data: &TrainingData<I, B>,
        samples: Option<Samples<M>>,
        over: Option<&Arc<dyn ModelOverRanks<M, B>>>,
    ) -> Result<(M, TrainingReport), TrainError>
    where
        M: LearnerModel
            + TrainStep<Input = B, Output = StepReport>
            + InferenceStep<Input = B, Output = StepReport>
            + Send
            + Sync,
        I: Send + Sync + Clone + 'static,
        B: Send + 'static,
    {
        let result = self.fit_inner(model, data, samples, over);
        if let Err(error) = &result {
            self.group.abort(error.to_string());
        }
        result
    }

    fn fit_inner<M, I, B>(
        &self,
        model: M,
        data: &TrainingData<I, B>,
        samples: Option<Samples<M>>,
        over: Option<&Arc<dyn ModelOverRanks<M, B>>>,
    ) -> Result<(M, TrainingReport), TrainError>
    where
        M: LearnerModel
            + TrainStep<Input = B, Output = StepReport>
            + InferenceStep<Input = B, Output = StepReport>
            + Send
            + Sync,
        I: Send + Sync + Clone + 'static,
        B: Send + 'static,
    {
        let start = Instant::now();
        let readers = over.map_or(&self.group, |over| over.replicas());
        let micro_batches = over.map(|over| over.micro_batches());
        self.config.validate(readers.world_size())?;
        if let Some(over) = over {
            self.config.validate_over(&**over)?;
        }
        self.check_agreement(data)?;
        let autodiff = self
            .config
            .activation_checkpointing
            .autodiff(self.device.clone());
        let (train, validation) = self.split(data, readers)?;
        let train = match micro_batches {
            Some(count) => train.in_micro_batches(count),
            None => train,
        };
        let run = self.run.as_ref().filter(|_| self.is_first());
        let checkpoints =
            run.map(|run| CheckpointFolder::new(run.checkpoints(), self.config.keep_checkpoints));
        if let Some(checkpoints) = &checkpoints {
            checkpoints.clean()?;
        }
        let resume = self
            .resume
            .then(|| agree_on_newest(&self.group, checkpoints.as_ref()))
            .transpose()?;
        let resumed_after_epoch = resume.as_ref().map(|checkpoint| checkpoint.progress.epoch);
        let first_step = resume
            .as_ref()
            .map_or(0, |checkpoint| checkpoint.progress.step);
        let metrics = run.map(|run| run.metrics_from(first_step)).transpose()?;
        let hashes = match (run, self.config.hash_every) {
            (Some(run), Some(_)) => Some(HashesFile::from(run.path(), first_step)?),
            _ => None,
        };
        let rate = self.config.optimizer.learning_rate;
        let total_steps = self.config.total_steps(train.sampler().samples_per_epoch());
        let state = TrainingState {
            optimizer: self.config.optimizer.init()?,
            scheduler: self.config.schedule.init(rate, total_steps)?,
        };
        let learner = Learner::new(
            model.train(),
            state.optimizer.clone(),
            state.scheduler.clone(),
        );
        let setup = RankSetup {
            config: self.config.clone(),
            model_name: self.model_name.clone(),
            group: self.group.clone(),
            device: autodiff.clone(),
            train: train.clone(),
            validation: validation.clone(),
            state,
            resume,
            checkpoints: checkpoints.map(CheckpointWriter::new),
            metrics,
            hashes,
            stop: self.stop.clone(),
            samples,
            display: self.display(),
            over: over.cloned(),
        };
        let (strategy, outcome) = RankStrategy::new(setup);

        let interrupter = Interrupter::new();
        let folder = self
            .run
            .as_ref()
            .map_or(std::path::Path::new("."), RunDirectory::path);
        let validation_loader = validation.unwrap_or_else(|| train.clone());
        let training =
            SupervisedTraining::<M>::new(folder, Arc::new(train), Arc::new(validation_loader))
                .with_training_strategy(TrainingStrategy::Custom(Arc::new(strategy)))
                .with_interrupter(interrupter.clone())
                .with_metric_logger(InMemoryMetricLogger::new())
                .with_application_logger(None)
                .renderer(self.display().renderer(&interrupter))
                .num_epochs(self.config.epochs)
                .label(&format!("{} on {}", self.model_name, data.name))
                .metrics((RankMetric::loss(), RankMetric::accuracy()))
                .metric_train_numeric(RankMetric::samples_per_second())
                .metric_train_numeric(RankMetric::waiting())
                .metric_train_numeric(RankMetric::exposed_communication())
                .metric_train_numeric(LearningRateMetric::new());
        let training = match PeakMemory::of(&self.device).bytes() {
            Some(_) => training.metric_train_numeric(RankMetric::peak_memory()),
            None => training,
        };
        // A run that goes on within its first epoch has none behind it.
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
        let test = if interrupted {
            None
        } else {
            self.test(&model, data, &outcome, over.map(|over| &**over))?
        };
        let model = match over {
            Some(over) => over.gather(model)?,
            None => model,
        };
        let stopped_in_test =
            (!interrupted && test.is_none()).then(|| "by the user in the test".into());
        let report = TrainingReport {
            model: self.model_name.clone(),
            dataset: data.name.clone(),
            dataset_origin: data.origin.clone(),
            test_accuracy: test.map(|tally| tally.accuracy()),
            test_loss: test.map(|tally| tally.mean_loss()),
            test_samples: test.map_or(0, |tally| tally.samples),
            test_predictions: test.map_or(0, |tally| tally.predictions),
            best_epoch: outcome.best,
            samples_per_second: outcome.samples as f64
                / outcome.cost.seconds.max(f64::MIN_POSITIVE),
            world_size: self.group.world_size(),
            batch_size: self.config.batch_size,
            epochs: outcome.epoch,
            steps: outcome.step,
            seconds: start.elapsed().as_secs_f64(),
            train_seconds: outcome.cost.seconds,
            exposed_seconds: outcome.cost.exposed,
            gradient_bytes: outcome.cost.gradient_bytes,
            peak_memory: outcome.cost.peak_memory,
            stopped: outcome.stopped.or(stopped_in_test),
            resumed_after_epoch,
            versions: Versions::default(),
        };
        if let Some(run) = run {
            save_safetensors(&model, run)?;
            run.write_report(&report)?;
        }
        // Nobody leaves before rank 0 has written everything.
        self.group.barrier().wait()?;
        Ok((model, report))
    }

    /// Evaluates `model` on the test samples, each counted once, over all ranks; `None` if a rank
    /// was asked to stop first.
    ///
    /// # Errors
    /// [`TrainError`] when a rank fails, or the ranks have different data.
    pub fn evaluate<M, I, B>(
        &self,
        model: &M,
        data: &TrainingData<I, B>,
    ) -> Result<Option<Tally>, TrainError>
    where
        M: Module + InferenceStep<Input = B>,
        <M as InferenceStep>::Output: Report,
        I: Send + Sync + Clone + 'static,
        B: Send + 'static,
    {
        self.evaluate_over(model, data, None)
    }

    fn evaluate_over<M, I, B>(
        &self,
        model: &M,
        data: &TrainingData<I, B>,
        over: Option<&dyn ModelOverRanks<M, B>>,
    ) -> Result<Option<Tally>, TrainError>
    where
        M: Module + InferenceStep<Input = B>,
        <M as InferenceStep>::Output: Report,
        I: Send + Sync + Clone + 'static,
        B: Send + 'static,
    {
        self.about_data(data).check(&self.group)?;
        let readers = over.map_or(&self.group, ModelOverRanks::replicas);
        let loader = self.ordered_loader(data.test.clone(), data, readers)?;
        let stop_wanted = || self.stop.is_set();
        let model = model.valid();
        let infer = |batch| infer(&model, over, batch);
        evaluate(infer, &loader, &self.group, stop_wanted, |_| Ok(()))
    }

    fn about_data<I, B>(&self, data: &TrainingData<I, B>) -> Agreement {
        Agreement::default()
            .and("model", &self.model_name)
            .and("data", &data.name)
            .and("training samples", data.train.len())
            .and("test samples", data.test.len())
            .and("fingerprint of the data", &data.fingerprint)
    }

    /// Ranks with other data, another seed or another batch size would train together and learn
    /// something that nobody asked for.
    fn check_agreement<I, B>(&self, data: &TrainingData<I, B>) -> Result<(), TrainError> {
        let about = self.about_data(data).and("resume", self.resume);
        about.and_config(&self.config)?.check(&self.group)
    }

    fn test<M, I, B>(
        &self,
        model: &M,
        data: &TrainingData<I, B>,
        outcome: &LoopOutcome,
        over: Option<&dyn ModelOverRanks<M, B>>,
    ) -> Result<Option<Tally>, TrainError>
    where
        M: Module + InferenceStep<Input = B>,
        <M as InferenceStep>::Output: Report,
        I: Send + Sync + Clone + 'static,
        B: Send + 'static,
    {
        let start = Instant::now();
        let Some(tally) = self.evaluate_over(model, data, over)? else {
            return Ok(None);
        };
        require_finite_loss("test loss", tally.mean_loss(), outcome.epoch, outcome.step)?;
        if let Some(run) = self.run.as_ref().filter(|_| self.is_first()) {
            let mut line = MetricLine::new(MetricKind::Test, outcome.epoch, outcome.step, &tally);
            line.cost.seconds = start.elapsed().as_secs_f64();
            run.metrics()?.write(&line)?;
        }
        Ok(Some(tally))
    }

    fn display(&self) -> Display {
        if self.is_first() {
            self.display
        } else {
            Display::Silent
        }
    }
}
