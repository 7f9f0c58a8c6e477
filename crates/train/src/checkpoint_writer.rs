//! Writes checkpoints while the training goes on.

use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crate::checkpoint::{Checkpoint, CheckpointFolder};
use crate::checkpoint_failure::OnCheckpointFailure;
use crate::error::TrainError;

/// A thread at a time that reads a checkpoint's tensors from their devices and writes them to a folder. The
/// training waits only for an earlier checkpoint that is still on its way.
#[derive(Debug)]
pub(crate) struct CheckpointWriter {
    folder: CheckpointFolder,
    on_failure: OnCheckpointFailure,
    writing: Option<JoinHandle<Result<(), TrainError>>>,
}

impl CheckpointWriter {
    pub(crate) fn new(folder: CheckpointFolder, on_failure: OnCheckpointFailure) -> Self {
        Self {
            folder,
            on_failure,
            writing: None,
        }
    }

    /// Begins to write what `checkpoint` gives on the writer's thread, and calls `written` there when its folder
    /// is complete.
    ///
    /// # Errors
    /// That of the checkpoint before, by the policy.
    pub(crate) fn write(
        &mut self,
        checkpoint: impl FnOnce() -> Result<Checkpoint, TrainError> + Send + 'static,
        written: impl FnOnce(&Path) + Send + 'static,
    ) -> Result<(), TrainError> {
        self.finish()?;
        let folder = self.folder.clone();
        let thread = thread::Builder::new()
            .name("everburn-checkpoint".to_string())
            .spawn(move || {
                let start = Instant::now();
                let checkpoint = checkpoint()?;
                let read = start.elapsed();
                let path = folder.save(&checkpoint)?;
                let took = start.elapsed() - read;
                tracing::debug!("{}: read in {read:?}, written in {took:?}", path.display());
                written(&path);
                Ok(())
            });
        let thread =
            thread.map_err(|e| TrainError::Config(format!("no thread to write with: {e}")))?;
        self.writing = Some(thread);
        Ok(())
    }

    /// Looks whether a checkpoint has failed meanwhile, without waiting for it.
    ///
    /// # Errors
    /// That of the checkpoint, by the policy.
    pub(crate) fn check(&mut self) -> Result<(), TrainError> {
        match &self.writing {
            Some(thread) if thread.is_finished() => self.finish(),
            _ => Ok(()),
        }
    }

    /// Waits until all is written.
    ///
    /// # Errors
    /// That of the last checkpoint, by the policy.
    pub(crate) fn finish(&mut self) -> Result<(), TrainError> {
        let written = match self.writing.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(TrainError::Config(
                "the thread that writes checkpoints panicked; see the log".to_string(),
            )),
        };
        self.on_failure.decide(written)
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
