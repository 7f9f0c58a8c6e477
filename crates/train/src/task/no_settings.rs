//! A task without settings.

use serde::{Deserialize, Serialize};

/// The [`Task::Config`](super::Task::Config) of a task without settings: any key is refused.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{NoSettings, configuration_fault};
///
/// let error = toml::from_str::<NoSettings>("width = 3").unwrap_err();
/// assert!(configuration_fault(&error, "").starts_with("unknown key `width`"));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoSettings {}
