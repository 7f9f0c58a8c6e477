//! A task with its configuration, behind a trait object.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use burn::data::dataset::{Dataset, InMemDataset};
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::prelude::*;
use everburn_collectives::group::ProcessGroup;
use everburn_collectives::worker::message_of;
use everburn_distributed::is_gpu;
use everburn_nn::{AnyActivation, DeviceSplit, ParameterShard};
use everburn_record::task_method::within;
use everburn_record::{attempt, plain};
use toml::{Table, Value};

use super::blocks::BlockTask;
use super::data::LoadedData;
use super::own_loss::OwnLoss;
use super::settings::{remove, settings_by_path};
use super::{ConfiguredTask, DrawnBlocks, Language, ModelBlocks, Predictor, Task, TaskError};
use crate::checkpoint::state_dict::{PRETRAINED_CONFIG, StateDictLayout};
use crate::config::activation_checkpointing::ActivationCheckpointing;
use crate::config::fault::{configuration_of, known_keys};
use crate::config::parameter_groups::Patterns;
use crate::error::TrainError;
use crate::model::erased::{AnyBatch, AnyItem, AnyModel, AnyModelOverRanks};
use crate::model::generation::whole_text;
use crate::model::supervised::Supervised;
use crate::parallel::mesh_parallel::MeshParallelConfig;

/// The most characters of settings that an error shows.
const LONGEST_SETTINGS: usize = 400;

/// The task `name`, configured by these sections.
pub(super) fn configure<T: Task>(
    name: &str,
    task: &Arc<T>,
    sections: &Table,
) -> Result<Box<dyn ConfiguredTask>, TaskError> {
    let own = match task.sections() {
        [] => match sections.get(name) {
            Some(Value::Table(own)) => own.clone(),
            Some(_) => return Err(TaskError::new(format!("`{name}` is no section"))),
            None => Table::new(),
        },
        names => {
            let own = sections.iter();
            let own = own.filter(|(name, _)| names.contains(&name.as_str()));
            own.map(|(name, value)| (name.clone(), value.clone()))
                .collect()
        }
    };
    let config: T::Config = configuration_of(own.clone())
        .map_err(|fault| TaskError::new(fault).with_known_keys(known_keys::<T::Config>(own)))?;
    within("Task::check", || task.check(&config))?;
    Ok(Box::new(WithConfig {
        name: name.to_string(),
        task: Arc::clone(task),
        config: Arc::new(config),
    }))
}

/// The sections for the pretrained model in `folder`, whose `config.json` this is, if it is of the task's kind.
pub(super) fn adopt<T: Task>(
    name: &str,
    task: &Arc<T>,
    (folder, config_json): (&Path, &serde_json::Value),
    skip: &Patterns,
) -> Result<Option<Table>, TaskError> {
    let Some(format) = task.pretrained() else {
        return Ok(None);
    };
    let config = (format.adopt)(task, folder, config_json, skip)?;
    let configured = config.map(|config| WithConfig {
        name: name.to_string(),
        task: Arc::clone(task),
        config: Arc::new(config),
    });
    configured.map(|it| it.sections()).transpose()
}

struct WithConfig<T: Task> {
    name: String,
    task: Arc<T>,
    config: Arc<T::Config>,
}

impl<T: Task> WithConfig<T> {
    /// The task's own module with its first weights.
    fn new_model(&self, device: &Device) -> Result<T::Model, TaskError> {
        let build = || within("Task::model", || self.task.model(&self.config, device));
        // A panic of a GPU is seldom one of the settings, and a new start may get over it.
        if is_gpu(device) {
            return build();
        }
        attempt::run(build).unwrap_or_else(|panic| {
            let report = attempt::take_report();
            let report = report.unwrap_or_else(|| message_of(&*panic).to_owned());
            let settings = self.settings_in_words();
            let message = format!("building the model{settings} failed: {report}");
            Err(TaskError::new(message).with_help("refuse such settings in `Task::check`"))
        })
    }

    /// ` with [shapes] dropout = 1.5, width = 8`, without lists and tables; nothing where there are no settings.
    fn settings_in_words(&self) -> String {
        let sections = self.sections().unwrap_or_default();
        let in_words = sections.iter().filter_map(|(section, values)| {
            let values = values.as_table()?.iter();
            let single = values.filter(|(_, value)| !value.is_array() && !value.is_table());
            let single = single.map(|(key, value)| format!("{key} = {value}"));
            let single = single.collect::<Vec<_>>().join(", ");
            (!single.is_empty()).then(|| format!("[{section}] {single}"))
        });
        match in_words.collect::<Vec<_>>().join(", ") {
            words if words.is_empty() => words,
            words => format!(" with {}", plain::line(&words, LONGEST_SETTINGS)),
        }
    }

    fn block_task(&self) -> Result<Arc<dyn BlockTask<T>>, TaskError> {
        let blocks = self.task.blocks().ok_or_else(|| {
            TaskError::new(format!("the model of `{}` does not list its blocks", self.name))
                .with_help("implement `Task::blocks`; without it, each rank holds the whole model on one device")
        })?;
        Ok(blocks.0)
    }

    fn predictor(&self) -> Result<Predictor<T>, TaskError> {
        self.task.predictor().ok_or_else(|| {
            TaskError::new(format!("`{}` makes no predictions", self.name))
                .with_help("implement `Predict` for the task, and `Task::predictor`")
        })
    }
}

/// The task's own module in a model of [`ConfiguredTask::model`].
fn own_model<'a, T: Task>(task: &T, model: &'a AnyModel) -> &'a T::Model {
    match task.blocks() {
        Some(blocks) => blocks.0.model(model),
        None => model.inner::<Supervised<T::Model, OwnLoss<T>>>().model(),
    }
}

impl<T: Task> ConfiguredTask for WithConfig<T> {
    fn sections(&self) -> Result<Table, TaskError> {
        let own = Table::try_from(&*self.config)?;
        Ok(match self.task.sections() {
            [] if own.is_empty() => own,
            [] => Table::from_iter([(self.name.clone(), Value::Table(own))]),
            _ => own,
        })
    }

    fn agreed_settings(&self) -> Result<BTreeMap<String, String>, TaskError> {
        let mut own = Table::try_from(&*self.config)?;
        for path in self.task.local_settings() {
            remove(&mut own, path);
        }
        let prefix = match self.task.sections() {
            [] => format!("{}.", self.name),
            _ => String::new(),
        };
        let settings = settings_by_path(&own).into_iter();
        let settings = settings.map(|(path, value)| (format!("{prefix}{path}"), value));
        Ok(settings.collect())
    }

    fn shared(&self) -> Arc<dyn ConfiguredTask> {
        Arc::new(Self {
            name: self.name.clone(),
            task: Arc::clone(&self.task),
            config: Arc::clone(&self.config),
        })
    }

    fn load(&mut self) -> Result<LoadedData, TaskError> {
        let config = Arc::make_mut(&mut self.config);
        let loaded = within("Task::data", || self.task.data(config))?;
        Ok(LoadedData::of(Arc::clone(&self.task), loaded))
    }

    fn check_files(&self) -> Result<(), TaskError> {
        within("Task::check_files", || self.task.check_files(&self.config))
    }

    fn load_test(&mut self) -> Result<LoadedData, TaskError> {
        let config = Arc::make_mut(&mut self.config);
        let loaded = within("Task::test_data", || self.task.test_data(config))?;
        Ok(LoadedData::of(Arc::clone(&self.task), loaded))
    }

    fn load_for_input(&mut self) -> Result<LoadedData, TaskError> {
        let predictor = self.task.predictor();
        let known = predictor.and_then(|it| (it.input_data)(&self.task, &self.config));
        match known {
            Some(data) => Ok(LoadedData::of(Arc::clone(&self.task), data)),
            None => self.load(),
        }
    }

    fn data_decide_model(&self) -> bool {
        self.task.data_decide_model()
    }

    fn has_own_loss(&self) -> bool {
        self.task.blocks().is_none()
    }

    fn evaluation_batch(&self) -> usize {
        self.task.evaluation_batch(&self.config)
    }

    fn model(&self, device: &Device) -> Result<AnyModel, TaskError> {
        let model = self.new_model(device)?;
        if let Some(blocks) = self.task.blocks() {
            return Ok(blocks.0.supervised(model));
        }
        let (task, config) = (Arc::clone(&self.task), Arc::clone(&self.config));
        let loss = move |model: &T::Model, batch: T::Batch| {
            within("Task::loss", || task.loss(&config, model, batch))
        };
        Ok(AnyModel::new(Supervised::<T::Model, OwnLoss<T>>::new(
            model, loss,
        )))
    }

    fn num_params(&self) -> Result<usize, TaskError> {
        Ok(self.model(&Device::default())?.num_params())
    }

    fn optimizer(&self, model: &AnyModel) -> Result<Option<ModuleOptimizer>, TaskError> {
        let model = own_model(&*self.task, model);
        within("Task::optimizer", || {
            self.task.optimizer(&self.config, model)
        })
    }

    fn schedule(&self, total_steps: usize) -> Result<Option<ModuleLrScheduler>, TaskError> {
        within("Task::schedule", || {
            self.task.schedule(&self.config, total_steps)
        })
    }

    fn checkpointed(
        &self,
        model: AnyModel,
        checkpointing: ActivationCheckpointing,
    ) -> Result<AnyModel, TaskError> {
        match checkpointing.blocks_a_segment() {
            None => Ok(model),
            Some(_) => Ok(self.block_task()?.checkpointed(model, checkpointing)),
        }
    }

    fn on_devices(
        &self,
        model: AnyModel,
        devices: &[Device],
        checkpointing: ActivationCheckpointing,
    ) -> Result<(AnyModel, DeviceSplit), TrainError> {
        let blocks = self.block_task()?;
        blocks.on_devices((&self.task, &self.config), model, devices, checkpointing)
    }

    fn over_ranks(
        &self,
        group: ProcessGroup,
        model: &AnyModel,
        config: MeshParallelConfig,
        device: Device,
    ) -> Result<AnyModelOverRanks, TrainError> {
        let blocks = self.block_task()?;
        blocks.over_ranks(group, model, config, device)
    }

    fn blocks(&self) -> Result<ModelBlocks, TaskError> {
        let blocks = self.block_task()?;
        Ok(blocks.list(&self.new_model(&Device::default())?))
    }

    fn shards(&self, parts: usize) -> Result<Vec<ParameterShard>, TaskError> {
        let blocks = self.block_task()?;
        self.task.check_tensor_parallel(&self.config)?;
        let model = self.new_model(&Device::default())?;
        Ok(blocks.shards(&model, parts)?)
    }

    fn block_input(
        &self,
        samples: usize,
        device: &Device,
    ) -> Result<Box<dyn AnyActivation>, TaskError> {
        let of = (&*self.task, &*self.config);
        Ok(self.block_task()?.input(of, samples, device))
    }

    fn draw_blocks(&self, device: &Device) -> Result<Box<dyn DrawnBlocks>, TaskError> {
        let blocks = self.block_task()?;
        Ok(blocks.drawn(self.new_model(device)?))
    }

    fn language(&self) -> Result<Option<Language<AnyModel>>, TaskError> {
        let Some(language) = self.task.language(&self.config)? else {
            return Ok(None);
        };
        let task = Arc::clone(&self.task);
        let Language {
            context,
            sample_every,
            encode,
            decode,
            conversation,
            scorer: own,
        } = language;
        Ok(Some(Language {
            context,
            sample_every,
            encode,
            decode,
            conversation,
            scorer: Arc::new(move |model: &AnyModel| match task.blocks() {
                // The blocks may be on several devices.
                Some(blocks) if blocks.0.is_split(model) => {
                    Box::new(whole_text(move |tokens| blocks.0.scores(model, tokens)))
                }
                _ => own(own_model(&*task, model)),
            }),
        }))
    }

    fn layout(&self) -> StateDictLayout {
        let format = self.task.pretrained();
        let own = format.map(|format| (format.layout)(&self.task, &self.config));
        let mut layout = own.unwrap_or_default();
        layout.fixed_input = self.task.fixed_input();
        layout
    }

    fn adopt_shapes(&mut self, shapes: &BTreeMap<String, Vec<usize>>) -> Result<bool, TaskError> {
        let Some(format) = self.task.pretrained() else {
            return Ok(false);
        };
        (format.adopt_shapes)(&self.task, Arc::make_mut(&mut self.config), shapes)
    }

    fn pretrained_files(&self) -> Result<Vec<(String, Vec<u8>)>, TaskError> {
        let format = self.task.pretrained().ok_or_else(|| {
            TaskError::new(format!(
                "Hugging Face's transformers have no model like `{}`",
                self.name
            ))
        })?;
        let config = (format.config_json)(&self.task, &self.config)?;
        let config = format!("{config:#}\n").into_bytes();
        let mut files = vec![(PRETRAINED_CONFIG.to_string(), config)];
        files.extend((format.files_beside)(&self.task, &self.config)?);
        Ok(files)
    }

    fn predicts(&self) -> bool {
        self.task.predictor().is_some()
    }

    fn predict(&self, model: &AnyModel, batch: AnyBatch) -> Result<Vec<String>, TaskError> {
        let predictor = self.predictor()?;
        // Batches have the form that the way to the loss takes.
        let batch = match self.task.blocks() {
            Some(_) => batch.open::<T::Batch>(),
            None => batch.open::<(T::Batch, ())>().0,
        };
        let model = own_model(&*self.task, model);
        within("Predict::predict", || {
            (predictor.predict)(&self.task, &self.config, model, batch)
        })
    }

    fn sample_name(&self, item: &AnyItem) -> Option<String> {
        let predictor = self.task.predictor()?;
        // Samples that are on the device as a whole are of another type.
        (predictor.sample_name)(&self.task, item.open::<T::Item>()?)
    }

    fn read(&self, file: &Path) -> Result<Arc<dyn Dataset<AnyItem>>, TaskError> {
        let items = (self.predictor()?.read)(&self.task, &self.config, file)?;
        let items = items.into_iter().map(AnyItem::new).collect();
        Ok(Arc::new(InMemDataset::new(items)))
    }

    fn left_out(&self, folder: &Path) -> Option<String> {
        (self.predictor().ok()?.left_out)(&self.task, folder)
    }
}
