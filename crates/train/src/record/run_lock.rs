//! Who uses a run directory.

use std::fs::File;

use everburn_record::{Live, file};

use crate::error::TrainError;
use crate::record::run_directory::RunDirectory;

/// How long a process waits for another one that writes the same.
const LOCK_PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

/// A run directory that belongs to this process; see [`RunDirectory::lock`].
///
/// ```no_run
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::RunDirectory;
///
/// let run = RunDirectory::create("runs/a")?;
/// let lock = run.lock()?; // released when it is dropped
/// # drop(lock);
/// # Ok::<(), everburn_train::TrainError>(())
/// ```
#[derive(Debug)]
#[must_use = "the folder is free again when the lock is dropped"]
pub struct RunLock {
    _file: File,
}

impl RunDirectory {
    /// Takes the folder for this process, until the lock is dropped or the process ends.
    ///
    /// # Errors
    /// [`TrainError::RunInUse`] if another process has it.
    pub fn lock(&self) -> Result<RunLock, TrainError> {
        let path = self.path().join(Live::LOCK);
        let file = file::lock_file(&path);
        let file = file.map_err(|error| TrainError::file("opening", &path, &error))?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(RunLock { _file: file }),
            Err(_) => Err(TrainError::RunInUse {
                path: self.path().to_path_buf(),
            }),
        }
    }

    /// Runs `action` while no other process runs one under the same name in this folder.
    pub(crate) fn with_lock<R>(
        &self,
        name: &str,
        action: impl FnOnce() -> Result<R, TrainError>,
    ) -> Result<R, TrainError> {
        let path = self.path().join(name);
        let file = file::lock_file(&path);
        let file = file.map_err(|error| TrainError::file("opening", &path, &error))?;
        let patience = std::time::Instant::now() + LOCK_PATIENCE;
        while rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .is_err()
        {
            if std::time::Instant::now() > patience {
                return Err(TrainError::File {
                    action: "taking",
                    path,
                    reason: "another process holds it".to_string(),
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        action()
    }
}
