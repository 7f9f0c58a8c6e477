//! Tasks without their types, as commands know them.

use std::marker::PhantomData;
use std::sync::Arc;

use burn::module::Module;
use burn::prelude::*;
use burn::tensor::Int;
use everburn_collectives::group::ProcessGroup;
use everburn_nn::{AnyActivation, DeviceSplit, ParameterShard};
use serde::Deserialize;
use toml::{Table, Value};

use super::blocks::{BlockTask, DrawnBlocks};
use super::data::LoadedData;
use super::{BlockRunner, Language, MeshModel, ModelBlocks, Task, TaskError};
use crate::activation_checkpointing::ActivationCheckpointing;
use crate::erased::AnyModel;
use crate::error::TrainError;
use crate::mesh_parallel::MeshParallelConfig;
use crate::objective::{Loss, Objective};
use crate::supervised::Supervised;

/// A task under its name, without its types.
#[derive(Clone)]
pub struct AnyTask(Arc<dyn NamedTask>);

impl AnyTask {
    /// Gives `task` a name, by which users ask for it.
    pub fn new<T: Task>(name: impl Into<String>, task: T) -> Self {
        Self(Arc::new(Named {
            name: name.into(),
            task: Arc::new(task),
        }))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// What it is, in one line.
    pub fn summary(&self) -> String {
        self.0.summary()
    }

    /// Settings of a run that suit it.
    pub fn preset(&self) -> Table {
        self.0.preset()
    }

    /// The sections of `config.toml` that are its own.
    pub fn sections(&self) -> Vec<&str> {
        self.0.sections()
    }

    /// The task with the settings of these sections.
    ///
    /// # Errors
    /// If a key is unknown, a value cannot be used, or settings do not fit together.
    pub fn configure(&self, sections: &Table) -> Result<ConfiguredTask, TaskError> {
        self.0.configure(sections)
    }
}

impl std::fmt::Debug for AnyTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("AnyTask").field(&self.name()).finish()
    }
}

/// A task with its settings.
pub struct ConfiguredTask(Box<dyn Configured>);

impl ConfiguredTask {
    /// The sections of `config.toml` with every setting of the task.
    ///
    /// # Errors
    /// If the settings cannot be written as TOML.
    pub fn sections(&self) -> Result<Table, TaskError> {
        self.0.sections()
    }

    /// Reads the data, which may decide settings that were left open.
    ///
    /// # Errors
    /// If they cannot be had.
    pub fn load(&mut self) -> Result<LoadedData, TaskError> {
        self.0.load()
    }

    /// Whether the data decide what the model is like: it is built after they are loaded.
    pub fn data_decide_model(&self) -> bool {
        self.0.data_decide_model()
    }

    /// How many samples all ranks together read at once in validation and test.
    pub fn evaluation_batch(&self) -> usize {
        self.0.evaluation_batch()
    }

    /// The model with its first weights, in one piece on `device`. Its parameters' paths are those of the task's own
    /// module.
    ///
    /// # Errors
    /// If there is no model with these settings.
    pub fn model(&self, device: &Device) -> Result<AnyModel, TaskError> {
        self.0.model(device)
    }

    /// The number of trainable and fixed numbers of the model; none of them is drawn.
    ///
    /// # Errors
    /// If there is no model with these settings.
    pub fn num_params(&self) -> Result<usize, TaskError> {
        Ok(self.model(&Device::default())?.num_params())
    }

    /// Makes the backward pass of a model of [`model`](Self::model) compute as much again as `checkpointing` says.
    ///
    /// # Errors
    /// If that is by blocks, and the task has none.
    pub fn checkpointed(
        &self,
        model: AnyModel,
        checkpointing: ActivationCheckpointing,
    ) -> Result<AnyModel, TaskError> {
        match checkpointing.blocks_a_segment() {
            None => Ok(model),
            Some(_) => self.0.checkpointed(model, checkpointing),
        }
    }

    /// A model of [`model`](Self::model), cut over `devices` so that all take about as long.
    ///
    /// # Errors
    /// If the task has no blocks, too few for the devices, or a device fails.
    ///
    /// # Panics
    /// Panics if there is no device.
    pub fn on_devices(
        &self,
        model: AnyModel,
        devices: &[Device],
        checkpointing: ActivationCheckpointing,
    ) -> Result<(AnyModel, DeviceSplit), TrainError> {
        self.0.on_devices(model, devices, checkpointing)
    }

    /// A model of [`model`](Self::model) over the ranks of `group`, whose layers are cut by the model's own rules.
    ///
    /// # Errors
    /// If the task has no blocks, or as [`MeshParallel::new`](crate::MeshParallel::new).
    pub fn over_ranks(
        &self,
        group: ProcessGroup,
        model: AnyModel,
        config: MeshParallelConfig,
        device: Device,
    ) -> Result<MeshModel, TrainError> {
        self.0.over_ranks(group, model, config, device)
    }

    /// The blocks of the model. No parameter is drawn.
    ///
    /// # Errors
    /// If the task has none.
    pub fn blocks(&self) -> Result<ModelBlocks, TaskError> {
        self.0.blocks()
    }

    /// The parameters of which each of `parts` ranks would have a part.
    ///
    /// # Errors
    /// If the task has no blocks, or its layers cannot be cut in so many parts.
    pub fn shards(&self, parts: usize) -> Result<Vec<ParameterShard>, TaskError> {
        self.0.shards(parts)
    }

    /// Runs blocks one by one on `samples` samples, on `device`.
    ///
    /// # Errors
    /// If the task has no blocks.
    pub fn block_runner(
        &self,
        samples: usize,
        device: &Device,
    ) -> Result<Box<dyn BlockRunner + '_>, TaskError> {
        self.0.block_runner(samples, device)
    }

    /// How the model writes text, if it does.
    ///
    /// # Errors
    /// If the settings do not say which tokens there are.
    pub fn language(&self) -> Result<Option<Language<AnyModel>>, TaskError> {
        self.0.language()
    }
}

trait NamedTask: Send + Sync {
    fn name(&self) -> &str;
    fn summary(&self) -> String;
    fn preset(&self) -> Table;
    fn sections(&self) -> Vec<&str>;
    fn configure(&self, sections: &Table) -> Result<ConfiguredTask, TaskError>;
}

struct Named<T> {
    name: String,
    task: Arc<T>,
}

impl<T: Task> NamedTask for Named<T> {
    fn name(&self) -> &str {
        &self.name
    }

    fn summary(&self) -> String {
        self.task.summary()
    }

    fn preset(&self) -> Table {
        self.task.preset()
    }

    fn sections(&self) -> Vec<&str> {
        match self.task.sections() {
            [] => vec![&self.name],
            sections => sections.to_vec(),
        }
    }

    fn configure(&self, sections: &Table) -> Result<ConfiguredTask, TaskError> {
        let own = match self.task.sections() {
            [] => match sections.get(&self.name) {
                Some(Value::Table(own)) => own.clone(),
                Some(_) => {
                    let name = &self.name;
                    return Err(TaskError::new(format!("`{name}` is no section")));
                }
                None => Table::new(),
            },
            names => {
                let own = sections.iter();
                let own = own.filter(|(name, _)| names.contains(&name.as_str()));
                own.map(|(name, value)| (name.clone(), value.clone()))
                    .collect()
            }
        };
        let config = T::Config::deserialize(Value::Table(own)).map_err(|error| {
            TaskError::new(crate::run_directory::configuration_fault(&error, ""))
        })?;
        self.task.check(&config)?;
        Ok(ConfiguredTask(Box::new(WithConfig {
            name: self.name.clone(),
            task: Arc::clone(&self.task),
            config: Arc::new(config),
        })))
    }
}

trait Configured: Send + Sync {
    fn sections(&self) -> Result<Table, TaskError>;
    fn load(&mut self) -> Result<LoadedData, TaskError>;
    fn data_decide_model(&self) -> bool;
    fn evaluation_batch(&self) -> usize;
    fn model(&self, device: &Device) -> Result<AnyModel, TaskError>;
    fn checkpointed(
        &self,
        model: AnyModel,
        checkpointing: ActivationCheckpointing,
    ) -> Result<AnyModel, TaskError>;
    fn on_devices(
        &self,
        model: AnyModel,
        devices: &[Device],
        checkpointing: ActivationCheckpointing,
    ) -> Result<(AnyModel, DeviceSplit), TrainError>;
    fn over_ranks(
        &self,
        group: ProcessGroup,
        model: AnyModel,
        config: MeshParallelConfig,
        device: Device,
    ) -> Result<MeshModel, TrainError>;
    fn blocks(&self) -> Result<ModelBlocks, TaskError>;
    fn shards(&self, parts: usize) -> Result<Vec<ParameterShard>, TaskError>;
    fn block_runner(
        &self,
        samples: usize,
        device: &Device,
    ) -> Result<Box<dyn BlockRunner + '_>, TaskError>;
    fn language(&self) -> Result<Option<Language<AnyModel>>, TaskError>;
}

struct WithConfig<T: Task> {
    name: String,
    task: Arc<T>,
    config: Arc<T::Config>,
}

impl<T: Task> WithConfig<T> {
    fn block_task(&self) -> Result<Arc<dyn BlockTask<T>>, TaskError> {
        let blocks = self.task.blocks().ok_or_else(|| {
            TaskError::new(format!("the model of `{}` does not list its blocks", self.name))
                .with_help("implement `Task::blocks`; without it, each rank holds the whole model on one device")
        })?;
        Ok(blocks.0)
    }
}

fn config_error(error: &TaskError) -> TrainError {
    TrainError::Config(error.to_string())
}

impl<T: Task> Configured for WithConfig<T> {
    fn sections(&self) -> Result<Table, TaskError> {
        let own = Table::try_from(&*self.config)?;
        Ok(match self.task.sections() {
            [] if own.is_empty() => own,
            [] => Table::from_iter([(self.name.clone(), Value::Table(own))]),
            _ => own,
        })
    }

    fn load(&mut self) -> Result<LoadedData, TaskError> {
        let config = Arc::make_mut(&mut self.config);
        let loaded = self.task.data(config)?;
        Ok(LoadedData::of(Arc::clone(&self.task), loaded))
    }

    fn data_decide_model(&self) -> bool {
        self.task.data_decide_model()
    }

    fn evaluation_batch(&self) -> usize {
        self.task.evaluation_batch(&self.config)
    }

    fn model(&self, device: &Device) -> Result<AnyModel, TaskError> {
        let model = self.task.model(&self.config, device)?;
        if let Some(blocks) = self.task.blocks() {
            return Ok(blocks.0.supervised(model));
        }
        let (task, config) = (Arc::clone(&self.task), Arc::clone(&self.config));
        let loss = move |model: &T::Model, batch: T::Batch| task.loss(&config, model, batch);
        Ok(AnyModel::new(Supervised::<T::Model, OwnLoss<T>>::new(
            model, loss,
        )))
    }

    fn checkpointed(
        &self,
        model: AnyModel,
        checkpointing: ActivationCheckpointing,
    ) -> Result<AnyModel, TaskError> {
        Ok(self.block_task()?.checkpointed(model, checkpointing))
    }

    fn on_devices(
        &self,
        model: AnyModel,
        devices: &[Device],
        checkpointing: ActivationCheckpointing,
    ) -> Result<(AnyModel, DeviceSplit), TrainError> {
        let blocks = self.block_task().map_err(|error| config_error(&error))?;
        blocks.on_devices((&self.task, &self.config), model, devices, checkpointing)
    }

    fn over_ranks(
        &self,
        group: ProcessGroup,
        model: AnyModel,
        config: MeshParallelConfig,
        device: Device,
    ) -> Result<MeshModel, TrainError> {
        let blocks = self.block_task().map_err(|error| config_error(&error))?;
        blocks.over_ranks(group, model, config, device)
    }

    fn blocks(&self) -> Result<ModelBlocks, TaskError> {
        let blocks = self.block_task()?;
        Ok(blocks.list(&self.task.model(&self.config, &Device::default())?))
    }

    fn shards(&self, parts: usize) -> Result<Vec<ParameterShard>, TaskError> {
        let blocks = self.block_task()?;
        self.task.check_tensor_parallel(&self.config)?;
        let model = self.task.model(&self.config, &Device::default())?;
        Ok(blocks.shards(&model, parts)?)
    }

    fn block_runner(
        &self,
        samples: usize,
        device: &Device,
    ) -> Result<Box<dyn BlockRunner + '_>, TaskError> {
        Ok(Box::new(Runner {
            of: self,
            blocks: self.block_task()?,
            samples,
            device: device.clone(),
        }))
    }

    fn language(&self) -> Result<Option<Language<AnyModel>>, TaskError> {
        let Some(language) = self.task.language(&self.config)? else {
            return Ok(None);
        };
        let blocks = self.task.blocks();
        let scores =
            move |model: &AnyModel,
                  tokens: Tensor<2, Int>,
                  own: &dyn Fn(&T::Model, Tensor<2, Int>) -> Tensor<3>| {
                // A model over several devices knows the way through its blocks.
                let scores = |blocks: &super::BlocksOf<T>| blocks.0.scores(model, tokens.clone());
                match blocks.as_ref().and_then(scores) {
                    Some(scores) => scores,
                    None => own(
                        model.inner::<Supervised<T::Model, OwnLoss<T>>>().model(),
                        tokens,
                    ),
                }
            };
        Ok(Some(language.of(scores)))
    }
}

/// The loss is the task's own: what a model "yields" for a batch is its loss.
struct OwnLoss<T>(PhantomData<fn(T)>);

impl<T> std::fmt::Debug for OwnLoss<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OwnLoss")
    }
}

impl<T> Clone for OwnLoss<T> {
    fn clone(&self) -> Self {
        Self(self.0)
    }
}

impl<T: Task> Objective for OwnLoss<T> {
    type Input = T::Batch;
    type Output = Loss;
    type Targets = ();

    fn loss(loss: Loss, (): ()) -> Loss {
        loss
    }
}

struct Runner<'a, T: Task> {
    of: &'a WithConfig<T>,
    blocks: Arc<dyn BlockTask<T>>,
    samples: usize,
    device: Device,
}

impl<T: Task> BlockRunner for Runner<'_, T> {
    fn input(&self) -> Box<dyn AnyActivation> {
        let of = (&*self.of.task, &*self.of.config);
        self.blocks.input(of, self.samples, &self.device)
    }

    fn draw(&self) -> Result<Box<dyn DrawnBlocks>, TaskError> {
        let model = self.of.task.model(&self.of.config, &self.device)?;
        Ok(self.blocks.drawn(model))
    }
}
