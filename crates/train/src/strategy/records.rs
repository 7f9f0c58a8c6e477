//! What rank 0 records, and what another needs to record in its place.

use burn_train::{InferenceStep, LearnerModel, TrainStep};
use serde::{Deserialize, Serialize};

use super::RankLoop;
use crate::checkpoint::{CheckpointFolder, Place};
use crate::checkpoint_writer::CheckpointWriter;
use crate::error::TrainError;
use crate::run_directory::{EpochsOver, MetricKind, MetricLine};
use crate::state_hashes::{HashesFile, StateHashes};
use crate::tally::{Report, Tally};

/// What the newest step had to record, on every rank of a training that may lose its rank 0: that may be
/// before it has written.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Recent {
    lines: Vec<MetricLine>,
    hashes: Option<StateHashes>,
    /// The newest checkpoint that was to be written.
    pub(super) due: Option<Place>,
}

impl Recent {
    /// Another step is finished.
    pub(super) fn begin(&mut self, step: usize) {
        self.lines
            .retain(|line| line.step + 1 >= step && line.kind != MetricKind::Step);
        self.hashes = None;
    }
}

impl<M, I, B> RankLoop<M, I, B>
where
    M: LearnerModel + TrainStep<Input = B> + InferenceStep<Input = B>,
    <M as TrainStep>::Output: Report,
    <M as InferenceStep>::Output: Report,
    I: Send + Sync + Clone + 'static,
    B: Send + 'static,
{
    /// Opens what rank 0 records in, forgets what was recorded and will come again, and writes what a lost
    /// rank 0 did not come to.
    pub(super) fn open_records(&mut self) -> Result<(), TrainError> {
        let again = self.setup.regroup.is_some() && self.resumed_at != Some(self.outcome.step);
        let setup = &mut self.setup;
        // What has failed meanwhile counts, though another writer follows.
        if let Some(checkpoints) = &mut setup.checkpoints {
            checkpoints.finish()?;
        }
        let run = setup.run.as_ref().filter(|_| setup.group.rank() == 0);
        let Some(run) = run else {
            (setup.checkpoints, setup.metrics, setup.hashes) = (None, None, None);
            return Ok(());
        };
        let step = self.outcome.step;
        let on_failure = setup.config.on_checkpoint_failure;
        let folder = CheckpointFolder::new(run.checkpoints(), setup.config.keep_checkpoints);
        setup.checkpoints = Some(CheckpointWriter::new(folder, on_failure));
        // The lines of an epoch that is not over come again, as far as there were any.
        let (validated, trained) = (self.outcome.epoch, self.outcome.trained.is_some());
        let over = again.then_some(EpochsOver {
            trained: validated + usize::from(trained),
            validated,
        });
        let metrics = match run.metrics_between(step, over) {
            Ok(metrics) => Some(metrics),
            Err(error) => {
                on_failure.decide::<()>(Err(error))?;
                run.metrics().ok()
            }
        };
        setup.metrics = metrics.map(|file| file.on_failure(on_failure));
        setup.hashes = match setup.config.hash_every {
            Some(_) => Some(HashesFile::from(run.path(), step)?),
            None => None,
        };
        let recorded = run.recorded_lines(step);
        let is_missing = |line: &&MetricLine| {
            let same = |other: &(MetricKind, usize)| *other == (line.kind, line.step);
            let is_over = over.is_none_or(|over| over.includes(line));
            line.step <= step && is_over && !recorded.iter().any(same)
        };
        let missing = self.recent.lines.iter().filter(is_missing);
        for line in missing.cloned().collect::<Vec<_>>() {
            if let Some(metrics) = &mut self.setup.metrics {
                metrics.write(&line)?;
            }
        }
        if let (Some(file), Some(hashes)) = (&mut self.setup.hashes, &self.recent.hashes)
            && hashes.step == step
            && file.newest() < step
        {
            file.write(hashes)?;
        }
        Ok(())
    }

    /// Writes a line on rank 0.
    pub(super) fn log(&mut self, line: &MetricLine) -> Result<(), TrainError> {
        if self.setup.regroup.is_some() {
            self.recent.lines.push(line.clone());
        }
        match &mut self.setup.metrics {
            Some(metrics) => metrics.write(line),
            None => Ok(()),
        }
    }

    /// Writes the fingerprints of all that has been learnt, where that is asked for and due.
    pub(super) fn hash(&mut self, model: &M, step: usize, tally: &Tally) -> Result<(), TrainError> {
        let due = |every| step.is_multiple_of(every);
        let wanted = self.setup.hashes.is_some() || self.setup.regroup.is_some();
        if wanted && self.setup.config.hash_every.is_some_and(due) {
            let optimizer = self.setup.state.optimizer_bytes()?;
            let hashes = StateHashes::of(step, tally, model, optimizer)?;
            if let Some(file) = &mut self.setup.hashes {
                file.write(&hashes)?;
            }
            self.recent.hashes = Some(hashes);
        }
        Ok(())
    }
}
