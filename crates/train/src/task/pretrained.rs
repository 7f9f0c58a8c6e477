//! Models that other libraries have too.

use std::collections::BTreeMap;
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

    /// The files beside it by which other libraries prepare what the model reads: names, and what is in them.
    ///
    /// # Errors
    /// If one of them cannot be read or made.
    fn files_beside(&self, config: &Self::Config) -> Result<Vec<(String, Vec<u8>)>, TaskError> {
        let _ = config;
        Ok(Vec::new())
    }

    /// Takes from the shapes of a file's tensors what data would decide, such as the number of classes, so that
    /// `import FILE` needs no data. Whether all is decided now.
    ///
    /// # Errors
    /// If the shapes are those of no such model.
    fn adopt_shapes(
        &self,
        config: &mut Self::Config,
        shapes: &BTreeMap<String, Vec<usize>>,
    ) -> Result<bool, TaskError> {
        let _ = (config, shapes);
        Ok(false)
    }

    /// How the model's tensors are in these folders.
    fn layout(&self, config: &Self::Config) -> StateDictLayout;
}

type AdoptShapes<T> =
    fn(&T, &mut <T as Task>::Config, &BTreeMap<String, Vec<usize>>) -> Result<bool, TaskError>;
type FilesBeside<T> = fn(&T, &<T as Task>::Config) -> Result<Vec<(String, Vec<u8>)>, TaskError>;
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
    pub(super) files_beside: FilesBeside<T>,
    pub(super) adopt_shapes: AdoptShapes<T>,
    pub(super) layout: fn(&T, &T::Config) -> StateDictLayout,
}

impl<T: Pretrained> PretrainedFormat<T> {
    /// As the task's [`Pretrained`] says.
    pub fn by_task() -> Self {
        Self {
            adopt: T::adopt,
            config_json: T::config_json,
            files_beside: T::files_beside,
            adopt_shapes: T::adopt_shapes,
            layout: T::layout,
        }
    }
}
