//! A task without settings.

use serde::{Deserialize, Serialize};

/// The [`Task::Config`](super::Task::Config) of a task without settings: any key is refused.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{NoSettings, configuration_of};
///
/// let fault = configuration_of::<NoSettings>("width = 3".parse().unwrap()).unwrap_err();
/// assert!(fault.starts_with("unknown key `width`"), "{fault}");
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoSettings {}
