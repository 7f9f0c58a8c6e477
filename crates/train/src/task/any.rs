//! Tasks without their types, as programs register them.

use std::sync::Arc;

use toml::Table;

use super::with_config::configure;
use super::{ConfiguredTask, Task, TaskError};

type Configure = dyn Fn(&Table) -> Result<Box<dyn ConfiguredTask>, TaskError> + Send + Sync;

/// A task under its name, without its types.
#[derive(Clone)]
pub struct AnyTask {
    name: String,
    summary: String,
    preset: Table,
    sections: Vec<String>,
    configure: Arc<Configure>,
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
        Self {
            name,
            summary,
            preset,
            sections,
            configure: Arc::new(move |sections| configure(&named, &task, sections)),
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
}

impl std::fmt::Debug for AnyTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("AnyTask").field(&self.name).finish()
    }
}
