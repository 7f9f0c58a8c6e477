//! Writes checkpoints while the training goes on.

use std::thread::{self, JoinHandle};

use crate::checkpoint::{Checkpoint, CheckpointFolder};
use crate::error::TrainError;

/// A thread at a time that writes to a folder. The training waits for a copy of what is written, and for
/// an earlier checkpoint that is still on its way.
#[derive(Debug)]
pub(crate) struct CheckpointWriter {
    folder: CheckpointFolder,
    writing: Option<JoinHandle<Result<(), TrainError>>>,
}

impl CheckpointWriter {
    pub(crate) fn new(folder: CheckpointFolder) -> Self {
        Self {
            folder,
            writing: None,
        }
    }

    /// Begins to write; fails if the checkpoint before could not be written.
    pub(crate) fn write(&mut self, checkpoint: Checkpoint) -> Result<(), TrainError> {
        self.finish()?;
        let folder = self.folder.clone();
        let thread = thread::Builder::new()
            .name("everburn-checkpoint".to_string())
            .spawn(move || folder.save(&checkpoint).map(drop));
        let thread =
            thread.map_err(|e| TrainError::Config(format!("no thread to write with: {e}")))?;
        self.writing = Some(thread);
        Ok(())
    }

    /// Waits until all is written.
    pub(crate) fn finish(&mut self) -> Result<(), TrainError> {
        match self.writing.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(TrainError::Config(
                "the thread that writes checkpoints panicked; see the log".to_string(),
            )),
        }
    }
}

impl Drop for CheckpointWriter {
    /// What has been begun is written, whatever ends the training.
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::error!("{error}");
        }
    }
}
