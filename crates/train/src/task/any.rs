//! Tasks without their types, as programs register them.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use toml::Table;

use super::with_config::{adopt, configure};
use super::{ConfiguredTask, Task, TaskError};
use crate::config::parameter_groups::Patterns;

type Configure = dyn Fn(&Table) -> Result<Box<dyn ConfiguredTask>, TaskError> + Send + Sync;
type Adopt = dyn Fn(&Path, &Value, &Patterns) -> Result<Option<Table>, TaskError> + Send + Sync;

/// A task under its name, without its types.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{AnyTask, Task};
///
/// fn register<T: Task>(task: T) -> AnyTask {
///     AnyTask::new("flowers", task)
/// }
/// ```
#[derive(Clone)]
pub struct AnyTask {
    name: String,
    summary: String,
    preset: Table,
    sections: Vec<String>,
    configure: Arc<Configure>,
    adopt: Arc<Adopt>,
}

impl AnyTask {
    /// Gives `task` a name, by which users ask for it.
    pub fn new<T: Task>(name: impl Into<String>, task: T) -> Self {
        let name = name.into();
        let sections = match task.sections() {
            [] => vec![name.clone()],
            sections => sections.iter().map(ToString::to_string).collect(),
        };
        let (summary, preset) = (task.summary(), task.preset());
        let (named, task) = (name.clone(), Arc::new(task));
        let (name_of_other, other) = (name.clone(), Arc::clone(&task));
        Self {
            name,
            summary,
            preset,
            sections,
            configure: Arc::new(move |sections| configure(&named, &task, sections)),
            adopt: Arc::new(move |folder, json, skip| {
                adopt(&name_of_other, &other, (folder, json), skip)
            }),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is, in one line.
    pub fn summary(&self) -> &str {
        &self.summary
    }

    /// Settings of a run that suit it.
    pub fn preset(&self) -> Table {
        self.preset.clone()
    }

    /// The sections of `config.toml` that are its own.
    pub fn sections(&self) -> Vec<&str> {
        self.sections.iter().map(String::as_str).collect()
    }

    /// The task with the settings of these sections.
    ///
    /// # Errors
    /// If a key is unknown, a value cannot be used, or settings do not fit together.
    pub fn configure(&self, sections: &Table) -> Result<Box<dyn ConfiguredTask>, TaskError> {
        (self.configure)(sections)
    }

    /// The sections for the pretrained model in a folder of Hugging Face's transformers, whose `config.json` this is;
    /// `None` if it is no model of this task. Parameters that match `skip` are not taken.
    ///
    /// # Errors
    /// If the model is of this kind, but has something that the task's has not.
    pub fn adopt(
        &self,
        folder: &Path,
        config_json: &Value,
        skip: &Patterns,
    ) -> Result<Option<Table>, TaskError> {
        (self.adopt)(folder, config_json, skip)
    }
}

impl std::fmt::Debug for AnyTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("AnyTask").field(&self.name).finish()
    }
}
