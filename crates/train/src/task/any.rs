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
    input_and_output: [String; 2],
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
        let input_and_output = task.input_and_output();
        let (named, task) = (name.clone(), Arc::new(task));
        let (name_of_other, other) = (name.clone(), Arc::clone(&task));
        Self {
            name,
            summary,
            input_and_output,
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

    /// What its model takes and what it yields, in words; empty where the task has none ([`Task::input_and_output`]).
    pub fn input_and_output(&self) -> [&str; 2] {
        self.input_and_output.each_ref().map(String::as_str)
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

    /// Its settings by their paths, `shapes.width`: all of a section that refuses unknown keys, and the defaults of another.
    ///
    /// ```
    /// # mod everburn { pub use everburn_train as train; }
    /// use everburn::train::AnyTask;
    ///
    /// fn has_width(task: &AnyTask) -> bool {
    ///     task.settings().contains(&format!("{}.width", task.name()))
    /// }
    /// ```
    pub fn settings(&self) -> Vec<String> {
        let defaults = self.configure(&Table::new());
        let defaults = defaults.and_then(|task| task.sections());
        let defaults = defaults.unwrap_or_default();
        let paths = |section: &String| {
            // No key is empty, so that this one is refused; defaults lack settings that are absent at first.
            let nameless = Table::from_iter([(String::new(), toml::Value::Boolean(true))]);
            let sections = Table::from_iter([(section.clone(), toml::Value::Table(nameless))]);
            let refusal = self.configure(&sections).err();
            let known = refusal.map_or(Vec::new(), |error| error.known_keys().to_vec());
            let keys = match known.is_empty() {
                false => known,
                true => {
                    let own = defaults.get(section).and_then(toml::Value::as_table);
                    own.into_iter().flat_map(Table::keys).cloned().collect()
                }
            };
            let paths = keys.iter().map(|key| format!("{section}.{key}"));
            paths.collect::<Vec<_>>()
        };
        self.sections.iter().flat_map(paths).collect()
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
