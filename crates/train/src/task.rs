//! What is trained: a model, its data and its loss, under a name.
//!
//! A [`Task`] is all that a program says of its own; every command works on any task. Its types end at
//! [`AnyTask`], by which commands know it.

mod any;
mod blocks;
mod configured;
mod data;
mod error;
mod language;
mod no_settings;
mod on_device;
mod own_loss;
mod predict;
mod pretrained;
mod settings;
mod with_config;

use std::fmt::Display;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::Table;

pub use self::any::AnyTask;
pub use self::blocks::{BlocksOf, DrawnBlocks, ModelBlocks, block_loss};
pub use self::configured::ConfiguredTask;
pub use self::data::LoadedData;
pub use self::error::{OtherClasses, TaskError};
pub use self::language::{Conversation, Language, Scorer};
pub use self::no_settings::NoSettings;
pub use self::on_device::OnDevice;
pub use self::predict::{Predict, Predictor};
pub use self::pretrained::{Pretrained, PretrainedFormat};
pub use self::settings::settings_by_path;
use crate::model::objective::Loss;
use crate::trainer::TrainingData;

/// The samples that all ranks together read at once in validation and test, where a task does not say.
const EVALUATION_BATCH: usize = 1_000;

/// What is trained: a configuration, a model, data and a loss.
///
/// Three methods are required. The others have defaults; each unlocks something more.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use std::sync::Arc;
///
/// use burn::data::dataloader::batcher::Batcher;
/// use burn::data::dataset::InMemDataset;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::prelude::*;
/// use everburn::train::{Loss, Task, TaskData, TaskError, TrainingData};
/// use serde::{Deserialize, Serialize};
///
/// /// Learns y = 2 x.
/// struct Line;
///
/// #[derive(Clone, Serialize, Deserialize)]
/// #[serde(default, deny_unknown_fields)]
/// struct LineConfig {
///     bias: bool,
/// }
///
/// impl Default for LineConfig {
///     fn default() -> Self {
///         Self { bias: true }
///     }
/// }
///
/// struct Points;
///
/// impl Batcher<f32, (Tensor<2>, Tensor<2>)> for Points {
///     fn batch(&self, items: Vec<f32>, device: &Device) -> (Tensor<2>, Tensor<2>) {
///         let x = Tensor::<1>::from_floats(items.as_slice(), device).unsqueeze_dim(1);
///         (x.clone(), x * 2.0)
///     }
/// }
///
/// impl Task for Line {
///     type Config = LineConfig;
///     type Model = Linear;
///     type Item = f32;
///     type Batch = (Tensor<2>, Tensor<2>);
///
///     fn model(&self, config: &LineConfig, device: &Device) -> Result<Linear, TaskError> {
///         Ok(LinearConfig::new(1, 1).with_bias(config.bias).init(device))
///     }
///
///     fn data(&self, _config: &mut LineConfig) -> Result<TaskData<f32, Self::Batch>, TaskError> {
///         let points = |n: usize| (0..n).map(|x| x as f32 / n as f32).collect::<Vec<_>>();
///         let (train, test) = (InMemDataset::new(points(100)), InMemDataset::new(points(10)));
///         Ok(TaskData::from(TrainingData::new("a line", train, test, Points)))
///     }
///
///     fn loss(&self, _config: &LineConfig, model: &Linear, (x, y): Self::Batch) -> Loss {
///         let samples = x.dims()[0];
///         let error = model.forward(x) - y;
///         Loss::new(error.powi_scalar(2).mean(), samples)
///     }
/// }
/// ```
pub trait Task: Sized + Send + Sync + 'static {
    /// The task's own settings. They are in `config.toml` in a section of the task's name, and are set by
    /// `--set NAME.KEY=VALUE`. `#[serde(default, deny_unknown_fields)]` refuses keys with a typing error; [`NoSettings`] are none.
    type Config: Clone + Default + Serialize + DeserializeOwned + Send + Sync + 'static;
    /// An ordinary Burn module.
    type Model: Module + Display + Sync + 'static;
    /// A sample of the data sets.
    type Item: Clone + Send + Sync + 'static;
    /// What the batcher makes of several samples.
    type Batch: Send + 'static;

    /// The model with its first weights, on `device`. Weights that are drawn must be drawn lazily, as Burn's
    /// layers do: models are also built to be looked at.
    ///
    /// # Errors
    /// If there is no model with this configuration.
    fn model(&self, config: &Self::Config, device: &Device) -> Result<Self::Model, TaskError>;

    /// The data. What they decide (how many classes or tokens there are, say) may be put into `config`: the
    /// model is built afterwards, and `config.toml` says it.
    ///
    /// # Errors
    /// If the data cannot be had.
    fn data(
        &self,
        config: &mut Self::Config,
    ) -> Result<TaskData<Self::Item, Self::Batch>, TaskError>;

    /// The data that a trained model is tested on where others are named than those that it was trained on. All of their
    /// samples are test samples, unless they have a test set of their own. By default they are those of
    /// [`data`](Self::data).
    ///
    /// # Errors
    /// As [`data`](Self::data).
    fn test_data(
        &self,
        config: &mut Self::Config,
    ) -> Result<TaskData<Self::Item, Self::Batch>, TaskError> {
        self.data(config)
    }

    /// Looks for damaged files of the data before a training starts: once on each machine, by its launcher. It should take no
    /// longer than some seconds.
    ///
    /// # Errors
    /// Which files are damaged.
    fn check_files(&self, config: &Self::Config) -> Result<(), TaskError> {
        let _ = config;
        Ok(())
    }

    /// How far the model is off on a batch. It is called while training, validating and testing.
    fn loss(&self, config: &Self::Config, model: &Self::Model, batch: Self::Batch) -> Loss;

    /// What the task is, in one line, for `train --list`.
    fn summary(&self) -> String {
        String::new()
    }

    /// What the model takes and what it yields, for `train --list`, as in `color images 32 x 32` and `10 classes`. An empty
    /// text is shown as `-`.
    fn input_and_output(&self) -> [String; 2] {
        [String::new(), String::new()]
    }

    /// The names of the sections of `config.toml` that make the configuration, each a field of it; none if the
    /// whole configuration is one section, named as the task.
    fn sections(&self) -> &'static [&'static str] {
        &[]
    }

    /// Settings of a run (`[training]`, ...) that suit this task better than the defaults. Files and flags go
    /// before them.
    fn preset(&self) -> Table {
        Table::new()
    }

    /// Refuses settings that do not fit together, before anything is read or started.
    ///
    /// # Errors
    /// What does not fit, and what to do.
    fn check(&self, config: &Self::Config) -> Result<(), TaskError> {
        let _ = config;
        Ok(())
    }

    /// Refuses settings that do not go together with layers that several ranks share.
    ///
    /// # Errors
    /// What does not fit, and what to do.
    fn check_tensor_parallel(&self, config: &Self::Config) -> Result<(), TaskError> {
        let _ = config;
        Ok(())
    }

    /// Whether [`data`](Self::data) decides settings that the model is built with.
    fn data_decide_model(&self) -> bool {
        false
    }

    /// Settings that need not be the same on all ranks, by their paths in the configuration: where a machine has its
    /// files, say. A rank that is started with another value of any other setting is refused.
    fn local_settings(&self) -> &'static [&'static str] {
        &[]
    }

    /// An optimizer of the task's own, in the place of the one that `[training.optimizer]` says: any of Burn's, with
    /// groups by [`ParamGroup`](burn::module::ParamGroup), or one's own. The learning rate is the schedule's.
    ///
    /// ```
    /// # mod everburn { pub use everburn_train as train; }
    /// # use burn::nn::{Linear, LinearConfig};
    /// # use burn::prelude::*;
    /// # use everburn_train::{Loss, TaskData};
    /// use burn::optim::{LionConfig, ModuleOptimizer};
    /// use everburn::train::{Task, TaskError};
    ///
    /// struct Line;
    ///
    /// impl Task for Line {
    /// #     type Config = everburn::train::NoSettings;
    /// #     type Model = Linear;
    /// #     type Item = f32;
    /// #     type Batch = Tensor<2>;
    /// #     fn model(&self, _: &Self::Config, device: &Device) -> Result<Linear, TaskError> {
    /// #         Ok(LinearConfig::new(1, 1).init(device))
    /// #     }
    /// #     fn data(&self, _: &mut Self::Config) -> Result<TaskData<f32, Self::Batch>, TaskError> {
    /// #         Err(TaskError::new("there are none"))
    /// #     }
    /// #     fn loss(&self, _: &Self::Config, model: &Linear, batch: Self::Batch) -> Loss {
    /// #         Loss::new(model.forward(batch).mean(), 1)
    /// #     }
    ///     // Besides the model, the data and the loss:
    ///     fn optimizer(
    ///         &self,
    ///         _config: &Self::Config,
    ///         _model: &Linear,
    ///     ) -> Result<Option<ModuleOptimizer>, TaskError> {
    ///         Ok(Some(LionConfig::new().with_beta_2(0.98).init()))
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// If there is none with these settings.
    fn optimizer(
        &self,
        config: &Self::Config,
        model: &Self::Model,
    ) -> Result<Option<ModuleOptimizer>, TaskError> {
        let _ = (config, model);
        Ok(None)
    }

    /// A schedule of the learning rate of the task's own, in the place of the configuration's, for a run of
    /// `total_steps` steps. A run that continues must say the same steps again; where it then has more steps, or fewer, its
    /// learning rates follow the schedule of a run of that length from there on.
    ///
    /// # Errors
    /// If there is none with these settings.
    fn schedule(
        &self,
        config: &Self::Config,
        total_steps: usize,
    ) -> Result<Option<ModuleLrScheduler>, TaskError> {
        let _ = (config, total_steps);
        Ok(None)
    }

    /// How many samples all ranks together read at once in validation and test.
    fn evaluation_batch(&self, config: &Self::Config) -> usize {
        let _ = config;
        EVALUATION_BATCH
    }

    /// The blocks of the model in order, for pipelines, meshes, several devices and activation checkpointing.
    fn blocks(&self) -> Option<BlocksOf<Self>> {
        None
    }

    /// How the data are kept on the device as a whole (`--data-on-device`).
    fn on_device(&self) -> Option<OnDevice<Self>> {
        None
    }

    /// How the model predicts something of samples, for `predict`: `Some(Predictor::by_task())` of a task that
    /// implements [`Predict`].
    fn predictor(&self) -> Option<Predictor<Self>> {
        None
    }

    /// How the model reads its input where no setting says it, as in "pixels from 0 to 1". Weights that have learned
    /// otherwise fit all the same, so an import says it.
    fn fixed_input(&self) -> Option<&'static str> {
        None
    }

    /// How the model comes from folders of Hugging Face's transformers and goes to them, for `--init-from FOLDER` and
    /// `export --to hugging-face`: `Some(PretrainedFormat::by_task())` of a task that implements [`Pretrained`].
    fn pretrained(&self) -> Option<PretrainedFormat<Self>> {
        None
    }

    /// How the model writes text, for `generate` and for samples while it trains.
    ///
    /// # Errors
    /// If the configuration does not say which tokens there are.
    fn language(&self, config: &Self::Config) -> Result<Option<Language<Self::Model>>, TaskError> {
        let _ = config;
        Ok(None)
    }
}

/// The data of a task, and their description.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{TaskData, TrainingData};
///
/// fn describe<I, B>(data: TrainingData<I, B>) -> TaskData<I, B> {
///     TaskData { description: "my photos".into(), ..TaskData::from(data) }
/// }
/// ```
pub struct TaskData<I, B> {
    /// The data sets and the batcher.
    pub data: TrainingData<I, B>,
    /// A line about them; their name, size and origin if empty.
    pub description: String,
    /// The names of the classes, in the order of their numbers, where there are classes with names.
    pub class_names: Vec<String>,
}

impl<I, B> TaskData<I, B> {
    /// Data without samples, whose batcher makes batches of the samples of a file
    /// ([`Predict::input_data`](crate::Predict::input_data)).
    pub fn for_input(batcher: impl Batcher<I, B> + 'static) -> Self
    where
        I: Clone + Send + Sync + 'static,
    {
        let none = || InMemDataset::new(Vec::new());
        Self::from(TrainingData::new(String::new(), none(), none(), batcher))
    }
}

impl<I, B> From<TrainingData<I, B>> for TaskData<I, B> {
    fn from(data: TrainingData<I, B>) -> Self {
        Self {
            data,
            description: String::new(),
            class_names: Vec::new(),
        }
    }
}
