//! Tasks with their settings, without their types: as commands know them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use burn::data::dataset::Dataset;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::optim::ModuleOptimizer;
use burn::prelude::*;
use everburn_collectives::group::ProcessGroup;
use everburn_nn::{AnyActivation, DeviceSplit, ParameterShard};
use toml::Table;

use super::data::LoadedData;
use super::{DrawnBlocks, Language, ModelBlocks, TaskError};
use crate::checkpoint::state_dict::StateDictLayout;
use crate::config::activation_checkpointing::ActivationCheckpointing;
use crate::error::TrainError;
use crate::model::erased::{AnyBatch, AnyItem, AnyModel, AnyModelOverRanks};
use crate::parallel::mesh_parallel::MeshParallelConfig;

/// A task with its settings, without its types.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{AnyTask, TaskError};
///
/// fn parameters(task: &AnyTask) -> Result<usize, TaskError> {
///     task.configure(&task.preset())?.num_params()
/// }
/// ```
pub trait ConfiguredTask: Send + Sync {
    /// The sections of `config.toml` with every setting of the task.
    ///
    /// # Errors
    /// If the settings cannot be written as TOML.
    fn sections(&self) -> Result<Table, TaskError>;

    /// Every setting of the task that must be the same on all ranks, by its path in `config.toml`.
    ///
    /// # Errors
    /// If the settings cannot be written as TOML.
    fn agreed_settings(&self) -> Result<BTreeMap<String, String>, TaskError>;

    /// The same task with the same settings, to be kept.
    fn shared(&self) -> Arc<dyn ConfiguredTask>;

    /// Reads the data, which may decide settings that were left open.
    ///
    /// # Errors
    /// If they cannot be had.
    fn load(&mut self) -> Result<LoadedData, TaskError>;

    /// Looks for damaged files of the data: see [`Task::check_files`](crate::Task::check_files).
    ///
    /// # Errors
    /// Which files are damaged.
    fn check_files(&self) -> Result<(), TaskError>;

    /// Reads data that the model was not trained on, to test it: see [`Task::test_data`](crate::Task::test_data).
    ///
    /// # Errors
    /// As [`load`](Self::load).
    fn load_test(&mut self) -> Result<LoadedData, TaskError>;

    /// What is needed to predict samples of a file: no data, if the run knows all that they decide; else as
    /// [`load`](Self::load).
    ///
    /// # Errors
    /// As [`load`](Self::load).
    fn load_for_input(&mut self) -> Result<LoadedData, TaskError>;

    /// Whether the data decide what the model is like: it is built after they are loaded.
    fn data_decide_model(&self) -> bool;

    /// Whether the loss is the task's own ([`Task::loss`](crate::Task::loss)), and not that of an objective.
    fn has_own_loss(&self) -> bool;

    /// How many samples all ranks together read at once in validation and test.
    fn evaluation_batch(&self) -> usize;

    /// The model with its first weights, in one piece on `device`. Its parameters' paths are those of the task's own
    /// module.
    ///
    /// # Errors
    /// If there is no model with these settings.
    fn model(&self, device: &Device) -> Result<AnyModel, TaskError>;

    /// The number of trainable and fixed numbers of the model; none of them is drawn.
    ///
    /// # Errors
    /// If there is no model with these settings.
    fn num_params(&self) -> Result<usize, TaskError>;

    /// The optimizer that the task has of its own for a model of [`model`](Self::model), if it has.
    ///
    /// # Errors
    /// If there is none with these settings.
    fn optimizer(&self, model: &AnyModel) -> Result<Option<ModuleOptimizer>, TaskError>;

    /// The schedule that the task has of its own for a run of this many steps, if it has.
    ///
    /// # Errors
    /// If there is none with these settings.
    fn schedule(&self, total_steps: usize) -> Result<Option<ModuleLrScheduler>, TaskError>;

    /// Makes the backward pass of a model of [`model`](Self::model) compute as much again as `checkpointing` says.
    ///
    /// # Errors
    /// If that is by blocks, and the task has none.
    fn checkpointed(
        &self,
        model: AnyModel,
        checkpointing: ActivationCheckpointing,
    ) -> Result<AnyModel, TaskError>;

    /// A model of [`model`](Self::model), cut over `devices` so that all take about as long.
    ///
    /// # Errors
    /// If the task has no blocks, too few for the devices, or a device fails.
    ///
    /// # Panics
    /// Panics if there is no device.
    fn on_devices(
        &self,
        model: AnyModel,
        devices: &[Device],
        checkpointing: ActivationCheckpointing,
    ) -> Result<(AnyModel, DeviceSplit), TrainError>;

    /// How the ranks of `group` hold a model of [`model`](Self::model), whose layers are cut by its own rules: for
    /// [`Trainer::fit_over_ranks`](crate::Trainer::fit_over_ranks).
    ///
    /// # Errors
    /// If the task has no blocks, or as [`MeshParallel::new`](crate::MeshParallel::new).
    fn over_ranks(
        &self,
        group: ProcessGroup,
        model: &AnyModel,
        config: MeshParallelConfig,
        device: Device,
    ) -> Result<AnyModelOverRanks, TrainError>;

    /// The blocks of the model. No parameter is drawn.
    ///
    /// # Errors
    /// If the task has none.
    fn blocks(&self) -> Result<ModelBlocks, TaskError>;

    /// The parameters of which each of `parts` ranks would have a part.
    ///
    /// # Errors
    /// If the task has no blocks, or its layers cannot be cut in this many parts.
    fn shards(&self, parts: usize) -> Result<Vec<ParameterShard>, TaskError>;

    /// An input of the first block, of `samples` samples on `device`.
    ///
    /// # Errors
    /// If the task has no blocks.
    fn block_input(
        &self,
        samples: usize,
        device: &Device,
    ) -> Result<Box<dyn AnyActivation>, TaskError>;

    /// A new model, of which a block can be run by itself.
    ///
    /// # Errors
    /// If the task has no blocks, or there is no model with its settings.
    fn draw_blocks(&self, device: &Device) -> Result<Box<dyn DrawnBlocks>, TaskError>;

    /// How the model writes text, if it does.
    ///
    /// # Errors
    /// If the settings do not say which tokens there are.
    fn language(&self) -> Result<Option<Language<AnyModel>>, TaskError>;

    /// How the model's tensors are in files of other libraries.
    fn layout(&self) -> StateDictLayout;

    /// The files besides the weights by which Hugging Face's transformers build the model, by name: `config.json` and others.
    ///
    /// # Errors
    /// If they have no such model.
    fn pretrained_files(&self) -> Result<Vec<(String, Vec<u8>)>, TaskError>;

    /// Takes from the shapes of a file's tensors what data would decide: see
    /// [`Pretrained::adopt_shapes`](crate::Pretrained::adopt_shapes). Whether all is decided now.
    ///
    /// # Errors
    /// If the shapes are those of no such model.
    fn adopt_shapes(&mut self, shapes: &BTreeMap<String, Vec<usize>>) -> Result<bool, TaskError>;

    /// Whether its model predicts something of samples.
    fn predicts(&self) -> bool;

    /// What a model of [`model`](Self::model) predicts for each sample of a batch, as JSON.
    ///
    /// # Errors
    /// If the task makes no predictions, or cannot of this batch.
    fn predict(&self, model: &AnyModel, batch: AnyBatch) -> Result<Vec<String>, TaskError>;

    /// What a sample of the data, or of [`read`](Self::read), is called, if the task says so.
    fn sample_name(&self, item: &AnyItem) -> Option<String>;

    /// The samples in a file that is none of the data, to predict something of them.
    ///
    /// # Errors
    /// If the task makes no predictions, or does not read this file.
    fn read(&self, file: &Path) -> Result<Arc<dyn Dataset<AnyItem>>, TaskError>;

    /// What [`read`](Self::read) leaves out of a folder, in a line for the user.
    fn left_out(&self, folder: &Path) -> Option<String>;
}
