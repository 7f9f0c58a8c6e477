//! When the disk does not take a checkpoint.

use std::io;
use std::path::Path;

use everburn_record::units::bytes;
use serde::{Deserialize, Serialize};

use crate::checkpoint::Place;
use crate::error::{TrainError, with_hint};

/// What a training does when a checkpoint, or a line of its metrics, cannot be written.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::OnCheckpointFailure;
///
/// assert_eq!("stop".parse(), Ok(OnCheckpointFailure::Stop));
/// assert_eq!(OnCheckpointFailure::default().to_string(), "continue");
/// assert!("wait".parse::<OnCheckpointFailure>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnCheckpointFailure {
    /// It ends with the error.
    Stop,
    /// It warns and continues; the next checkpoint that is due is tried again.
    #[default]
    Continue,
}

everburn_record::named!(OnCheckpointFailure, "neither stop nor continue", Self::Stop => "stop", Self::Continue => "continue");

impl OnCheckpointFailure {
    /// Passes on what the disk has not to do with, and all else under [`Stop`](Self::Stop); says the rest.
    pub(crate) fn decide<T: Default>(self, result: Result<T, TrainError>) -> Result<T, TrainError> {
        use TrainError::{File, Write, WriteCheckpoint};
        match (self, result) {
            (
                Self::Continue,
                Err(error @ (File { .. } | Write { .. } | WriteCheckpoint { .. })),
            ) => {
                tracing::warn!(
                    "{error}; the training continues, because `training.on_checkpoint_failure` is not `stop`"
                );
                Ok(T::default())
            }
            (_, result) => result,
        }
    }
}

/// The error of a checkpoint at `target` that needs this many bytes; `newest` is the one that stays.
pub(crate) fn explain(
    error: &io::Error,
    target: &Path,
    needed: u64,
    newest: Option<Place>,
) -> TrainError {
    // The folder itself may be what could not be made.
    let folder = target.ancestors().skip(1).find(|folder| folder.is_dir());
    let left = folder.and_then(|folder| rustix::fs::statvfs(folder).ok());
    let left = left.map_or("unknown".to_string(), |disk| {
        bytes(disk.f_bavail.saturating_mul(disk.f_frsize))
    });
    let newest = match newest {
        Some(place) => format!("{place} is the newest good one"),
        None => "there is no earlier one".to_string(),
    };
    TrainError::WriteCheckpoint {
        path: target.to_path_buf(),
        reason: format!(
            "{}; it needs {}, and {left} are free; {newest}",
            with_hint(error),
            bytes(needed)
        ),
    }
}
