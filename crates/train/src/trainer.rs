//! One call that trains, validates, tests and records, on every rank.

mod ending;
mod evaluating;
mod find_batch_size;
mod find_learning_rate;
mod held_out;
mod loaders;
mod optimizing;
mod predicting;
mod profiling;
mod recording;
mod summed_loss;
mod training;
mod training_data;
mod trial;
mod warm_up;

use std::sync::Arc;

use burn::prelude::*;
use everburn_collectives::group::ProcessGroup;
use everburn_distributed::{Connector, InitialValues};
use everburn_profile::Recorder;
use everburn_record::{StopSignal, TrainingReport};

pub use self::find_batch_size::{BatchSizeLimit, BatchSizeSearch, FreeMemory, TriedBatchSize};
pub use self::find_learning_rate::{LearningRateRange, LearningRateSweep, SweepPoint};
pub use self::predicting::PredictionInput;
pub use self::training_data::TrainingData;
pub use self::warm_up::WarmUp;
use crate::config::TrainingConfig;
use crate::device::kernels::KernelCache;
use crate::elastic::elasticity::Elasticity;
use crate::error::TrainError;
use crate::hook::Hooks;
use crate::model::erased::{AnyModel, Trainable, erase_data, erase_over_ranks, erase_samples};
use crate::model::samples::Samples;
use crate::parallel::model::ParallelModel;
use crate::record::live_file::RankStatuses;
use crate::record::run_directory::RunDirectory;
use crate::renderer::Display;
use crate::task::ConfiguredTask;

/// How long this rank has computed on a local batch, in seconds, by the number of its samples and the seconds that the
/// host has measured.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use std::sync::Arc;
/// use everburn::train::ComputeSeconds;
///
/// // Of a simulated device.
/// let seconds: ComputeSeconds = Arc::new(|samples, _measured| samples as f64 * 1e-3);
/// assert_eq!(seconds(2, 0.5), 2e-3);
/// ```
pub type ComputeSeconds = Arc<dyn Fn(usize, f64) -> f64 + Send + Sync>;

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
    pub connector: Option<Arc<Connector>>,
    /// How the training continues when ranks are lost or come; by default it ends then. The first group is
    /// [`Regroup::group`](crate::Regroup::group); every rank needs the run directory, because any may become rank 0.
    pub elasticity: Elasticity,
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
    /// What a rank's speed is found by where ranks share samples in proportion to it ([`Balance::Auto`]); `None` for the
    /// host's clock.
    ///
    /// [`Balance::Auto`]: crate::Balance::Auto
    pub compute_seconds: Option<ComputeSeconds>,
    /// Code of the user's own that is called after steps, epochs, checkpoints and failures; the same on all ranks.
    pub hooks: Hooks,
    /// Where each rank reads its part of the first model, which has none; where parameters are sharded, and for meshes.
    pub initial_values: Option<Arc<dyn InitialValues>>,
    /// What the weights are before the first step, in words that all ranks must have in common; empty where the model
    /// draws them.
    pub begins_with: String,
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
            connector: None,
            elasticity: Elasticity::default(),
            begun_before: false,
            class_names: Vec::new(),
            rank_statuses: None,
            warm_up: None,
            kernels: KernelCache::Nowhere("no folder was given".to_string()),
            task: None,
            recorder: None,
            compute_seconds: None,
            hooks: Hooks::default(),
            initial_values: None,
            begins_with: String::new(),
        }
    }

    /// The present group: [`Trainer::group`], unless ranks were lost or came.
    pub fn present_group(&self) -> ProcessGroup {
        self.elasticity.group(&self.group)
    }

    fn is_first(&self) -> bool {
        self.present_group().rank() == 0
    }

    /// Seeds the device for the model's initial weights; call it before the model is built. All
    /// ranks start from rank 0's weights.
    #[doc(alias = "manual_seed")]
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
}
