//! Writes checkpoints while the training continues.

use std::path::PathBuf;
use std::time::Instant;

use everburn_collectives::worker::{Answer, Worker, WorkerError};

use crate::checkpoint::{Checkpoint, CheckpointFolder};
use crate::config::checkpoint_failure::OnCheckpointFailure;
use crate::error::TrainError;

/// A thread that reads a checkpoint's tensors from their devices and writes them to a folder. The
/// training waits only for an earlier checkpoint that is still on its way.
#[derive(Debug)]
pub(crate) struct CheckpointWriter {
    folder: CheckpointFolder,
    on_failure: OnCheckpointFailure,
    /// There is none before the first checkpoint, and after a panic.
    worker: Option<Worker<CheckpointFolder>>,
    writing: Option<Answer<Result<(), TrainError>>>,
}

impl CheckpointWriter {
    pub(crate) fn new(folder: CheckpointFolder, on_failure: OnCheckpointFailure) -> Self {
        Self {
            folder,
            on_failure,
            worker: None,
            writing: None,
        }
    }

    /// Begins to write what `checkpoint` gives on the writer's thread, and calls `ended` there with the complete folder,
    /// or why there is none.
    ///
    /// # Errors
    /// That of the checkpoint before, by the policy.
    pub(crate) fn write(
        &mut self,
        checkpoint: impl FnOnce() -> Result<Checkpoint, TrainError> + Send + 'static,
        ended: impl FnOnce(&Result<PathBuf, TrainError>) + Send + 'static,
    ) -> Result<(), TrainError> {
        self.finish()?;
        let write = move |folder: &mut CheckpointFolder| {
            let start = Instant::now();
            let saved = checkpoint().and_then(|checkpoint| {
                let read = start.elapsed();
                let path = folder.save(&checkpoint)?;
                let took = start.elapsed() - read;
                tracing::debug!("{}: read in {read:?}, written in {took:?}", path.display());
                Ok(path)
            });
            ended(&saved);
            saved.map(drop)
        };
        let worker = match &mut self.worker {
            Some(worker) => worker,
            none => {
                let started = Worker::start("everburn-checkpoint", self.folder.clone(), |_| ());
                none.insert(started.map_err(|error| {
                    TrainError::Config(format!("no thread to write with: {error}"))
                })?)
            }
        };
        self.writing = Some(worker.ask(write));
        Ok(())
    }

    /// Looks whether a checkpoint has failed meanwhile, without waiting for it.
    ///
    /// # Errors
    /// That of the checkpoint, by the policy.
    pub(crate) fn check(&mut self) -> Result<(), TrainError> {
        match self.writing.take().map(Answer::poll) {
            None => Ok(()),
            Some(Ok(written)) => self.decide(written),
            Some(Err(writing)) => {
                self.writing = Some(writing);
                Ok(())
            }
        }
    }

    /// Waits until all is written.
    ///
    /// # Errors
    /// That of the last checkpoint, by the policy.
    pub(crate) fn finish(&mut self) -> Result<(), TrainError> {
        match self.writing.take() {
            None => Ok(()),
            // A disk takes as long as it takes.
            Some(writing) => self.decide(writing.wait()),
        }
    }

    fn decide(
        &mut self,
        written: Result<Result<(), TrainError>, WorkerError>,
    ) -> Result<(), TrainError> {
        let written = written.unwrap_or_else(|lost| {
            // The next checkpoint has a thread of its own.
            self.worker = None;
            Err(TrainError::Config(format!(
                "no checkpoint is written: {lost}"
            )))
        });
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_told_in_its_own_words_and_the_next_checkpoint_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let folder = CheckpointFolder::new(folder.path(), 1);
        let mut writer = CheckpointWriter::new(folder.clone(), OnCheckpointFailure::Stop);
        writer.write(|| panic!("no such device"), |_| ()).unwrap();
        let error = writer.finish().unwrap_err().to_string();
        assert!(error.contains("panicked: no such device"), "{error}");
        let empty = || {
            Ok(Checkpoint {
                progress: Default::default(),
                files: Default::default(),
            })
        };
        writer.write(empty, |_| ()).unwrap();
        writer.finish().unwrap();
        assert_eq!(folder.places().unwrap().len(), 1);
    }

    #[test]
    fn a_checkpoint_that_cannot_be_written_is_told_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let in_the_way = folder.path().join("checkpoints");
        std::fs::write(&in_the_way, "a file").unwrap();
        let folder = CheckpointFolder::new(&in_the_way, 1);
        let mut writer = CheckpointWriter::new(folder, OnCheckpointFailure::Continue);
        let (tell, told) = std::sync::mpsc::channel();
        let ended = move |saved: &Result<PathBuf, TrainError>| {
            tell.send(saved.as_ref().map_err(ToString::to_string).cloned())
                .unwrap();
        };
        writer.write(|| Ok(Checkpoint::default()), ended).unwrap();
        writer.finish().unwrap();
        let reason = told.recv().unwrap().unwrap_err();
        assert!(reason.contains("writing the checkpoint"), "{reason}");
    }
}
