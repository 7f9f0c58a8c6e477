//! When the disk does not take a checkpoint.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

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

/// The error of a checkpoint at `target` that needs this many bytes; `newest` is the one that stays, or why the earlier ones
/// cannot be read.
pub(crate) fn explain(
    error: &io::Error,
    target: &Path,
    needed: u64,
    newest: Result<Option<Place>, String>,
) -> TrainError {
    let newest = match newest {
        Ok(Some(place)) => format!("{place} is the newest good one"),
        Ok(None) => "there is no earlier one".to_string(),
        Err(why) => format!("earlier ones cannot be read: {why}"),
    };
    TrainError::WriteCheckpoint {
        path: target.to_path_buf(),
        reason: format!("{}; {}; {newest}", with_hint(error), room(target, needed)),
    }
}

/// The reason why a file of a run with this many bytes could not be written: of a full disk, with the room that there is.
pub(crate) fn with_room(error: &io::Error, path: &Path, needed: usize) -> String {
    let hint = with_hint(error);
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            format!("{hint}; {}", room(path, needed as u64))
        }
        _ => hint,
    }
}

/// What a file or folder at `path` needs, and what there is, on which file system.
fn room(path: &Path, needed: u64) -> String {
    // The folder itself may be what could not be made.
    let folder = path.canonicalize().ok();
    let folder = folder.as_deref().unwrap_or(path);
    let folder = folder.ancestors().skip(1).find(|folder| folder.is_dir());
    let folder = folder.and_then(|folder| folder.canonicalize().ok());
    let disk = folder.as_ref().and_then(|it| rustix::fs::statvfs(it).ok());
    let left = disk.map_or("unknown".to_string(), |disk| {
        bytes(disk.f_bavail.saturating_mul(disk.f_frsize))
    });
    let of = folder.and_then(|folder| mount_of(&folder));
    let of = of.map_or_else(String::new, |mount| {
        format!(" on the file system at {}", mount.display())
    });
    format!("it needs {}, and {left} are free{of}", bytes(needed))
}

fn mount_of(folder: &Path) -> Option<PathBuf> {
    let device = folder.metadata().ok()?.dev();
    let is_same = |it: &&Path| it.metadata().is_ok_and(|it| it.dev() == device);
    let within = folder.ancestors().take_while(is_same);
    within.last().map(Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_named_with_its_room() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("none/report.json");
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let reason = with_room(&full, &file, 2048);
        let parts = [
            "free some space or choose another `run_dir`; it needs 2",
            ", and ",
            " are free on the file system at /",
        ];
        assert!(parts.iter().all(|part| reason.contains(part)), "{reason}");
        let other = io::Error::from(io::ErrorKind::PermissionDenied);
        let reason = with_room(&other, &file, 2048);
        assert!(!reason.contains("are free"), "{reason}");
    }

    #[test]
    fn a_file_system_begins_where_its_device_does() {
        let of_root = mount_of(Path::new("/"));
        assert_eq!(of_root.as_deref(), Some(Path::new("/")));
        let of_none = mount_of(Path::new("/there/is/none"));
        assert_eq!(of_none, None);
        if cfg!(target_os = "linux") {
            let of_processes = mount_of(Path::new("/proc/self"));
            assert!(of_processes.is_none_or(|mount| mount != Path::new("/")));
        }
    }
}
