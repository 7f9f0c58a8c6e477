//! Models that other libraries have too.

use std::path::Path;

use serde_json::Value;

use super::{Task, TaskError};
use crate::checkpoint::state_dict::StateDictLayout;
use crate::config::parameter_groups::Patterns;

/// What a [`Task`] implements besides whose model comes from, and goes to, folders of Hugging Face's transformers
/// (`config.json` beside `model.safetensors`). [`Task::pretrained`] makes it known; `--init-from FOLDER` and
/// `export RUN --to hugging-face` then work.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{Pretrained, StateDictLayout};
///
/// fn layout<T: Pretrained>(task: &T, config: &T::Config) -> StateDictLayout {
///     task.layout(config)
/// }
/// ```
pub trait Pretrained: Task {
    /// The settings for the model of `folder`, whose `config.json` this is; `None` if it is of another kind. Parameters
    /// that match `skip` (`--init-skip`) are not taken: without its head, a model may have other classes.
    ///
    /// # Errors
    /// If the model is of this kind, but has something that the task's has not.
    fn adopt(
        &self,
        folder: &Path,
        config_json: &Value,
        skip: &Patterns,
    ) -> Result<Option<Self::Config>, TaskError>;

    /// The `config.json` by which other libraries build the model.
    ///
    /// # Errors
    /// If there is none for it.
    fn config_json(&self, config: &Self::Config) -> Result<Value, TaskError>;

    /// The `preprocessor_config.json` by which other libraries prepare what the model reads, if there is one.
    fn preprocessor_json(&self, config: &Self::Config) -> Option<Value> {
        let _ = config;
        None
    }

    /// How the model's tensors are in these folders.
    fn layout(&self, config: &Self::Config) -> StateDictLayout;
}

type Adopt<T> = fn(&T, &Path, &Value, &Patterns) -> Result<Option<<T as Task>::Config>, TaskError>;

/// How a task's model comes from other libraries, and goes to them: see [`Pretrained`].
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{Pretrained, PretrainedFormat};
///
/// fn of<T: Pretrained>() -> PretrainedFormat<T> {
///     PretrainedFormat::by_task()
/// }
/// ```
pub struct PretrainedFormat<T: Task> {
    pub(super) adopt: Adopt<T>,
    pub(super) config_json: fn(&T, &T::Config) -> Result<Value, TaskError>,
    pub(super) preprocessor_json: fn(&T, &T::Config) -> Option<Value>,
    pub(super) layout: fn(&T, &T::Config) -> StateDictLayout,
}

impl<T: Pretrained> PretrainedFormat<T> {
    /// As the task's [`Pretrained`] says.
    pub fn by_task() -> Self {
        Self {
            adopt: T::adopt,
            config_json: T::config_json,
            preprocessor_json: T::preprocessor_json,
            layout: T::layout,
        }
    }
}
