//! What rank 0 records, and what another needs to record in its place.

use std::ops::RangeInclusive;

use everburn_record::units::counted;
use everburn_record::{
    Environment, Event, EventKind, Live, MetricKind, MetricLine, Phase, RankStep,
};
use serde::{Deserialize, Serialize};

use super::RankLoop;
use crate::checkpoint::state_hashes::{HashesFile, StateHashes};
use crate::checkpoint::writer::CheckpointWriter;
use crate::checkpoint::{CheckpointFolder, Place};
use crate::error::TrainError;
use crate::metrics::line::{EpochsOver, MetricsFile};
use crate::metrics::sums::MetricSums;
use crate::model::erased::AnyModel;
use crate::record::live_file::LiveFile;
use crate::record::record_files::RankLines;
use crate::record::run_directory::RunDirectory;
use crate::record::tensor_board::TensorBoard;

/// What rank 0 writes to while it trains, and no other rank has.
#[derive(Default)]
pub(super) struct Records {
    pub(super) checkpoints: Option<CheckpointWriter>,
    metrics: Option<MetricsFile>,
    ranks: Option<RankLines>,
    /// Where it is asked for.
    tensor_board: Option<TensorBoard>,
    /// Where fingerprints are to be written.
    hashes: Option<HashesFile>,
}

impl Records {
    /// The link of the newest line of hashes, where this rank writes them.
    pub(super) fn chain(&self) -> Option<String> {
        self.hashes.as_ref().map(|file| file.head().to_string())
    }

    /// What syncs the lines of hashes, where this rank writes them, before a checkpoint that has their link.
    pub(super) fn begin_sync(
        &mut self,
    ) -> Option<impl FnOnce() -> Result<(), TrainError> + Send + 'static + use<>> {
        self.hashes.as_mut().map(HashesFile::begin_sync)
    }
}

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

impl RankLoop {
    /// Opens what rank 0 records in, forgets what was recorded and will come again, and writes what a lost
    /// rank 0 did not come to.
    pub(super) fn open_records(&mut self) -> Result<(), TrainError> {
        // What has failed meanwhile counts, though another writer follows.
        if let Some(checkpoints) = &mut self.records.checkpoints {
            checkpoints.finish()?;
        }
        let run = self.setup.run.clone().filter(|_| self.is_first());
        let Some(run) = run else {
            self.records = Records::default();
            self.setup.live.open(None);
            return Ok(());
        };
        self.open_for_onlookers(&run);
        let (setup, records) = (&self.setup, &mut self.records);
        let step = self.outcome.step;
        let on_failure = setup.config.on_checkpoint_failure;
        let folder = CheckpointFolder::new(run.checkpoints(), setup.config.keep_checkpoints);
        records.checkpoints = Some(CheckpointWriter::new(folder, on_failure));
        // The lines of an epoch that is not over come again, as far as there were any.
        let (validated, trained) = (self.outcome.epoch, self.outcome.trained.is_some());
        let over = EpochsOver {
            trained: validated + usize::from(trained),
            validated,
        };
        let metrics = match run.metrics_from(step, over) {
            Ok(metrics) => Some(metrics),
            Err(error) => {
                on_failure.decide::<()>(Err(error))?;
                run.metrics().ok()
            }
        };
        records.metrics = metrics.map(|file| file.on_failure(on_failure));
        records.hashes = match setup.config.hash_every {
            Some(_) => {
                let key = setup.config.hash_key.as_deref();
                Some(HashesFile::from(run.path(), step, key)?)
            }
            None => None,
        };
        // Of a round of steps that ranks take by themselves, all come at once.
        let earliest = self.elastic.recent.lines.iter().map(|line| line.step).min();
        let recorded = run.recorded_lines(earliest.unwrap_or(step));
        let is_missing = |line: &&MetricLine| {
            let same = |other: &(MetricKind, usize)| *other == (line.kind, line.step);
            let is_over = over.includes(line);
            line.step <= step && is_over && !recorded.iter().any(same)
        };
        let missing = self.elastic.recent.lines.iter().filter(is_missing);
        for line in missing {
            if let Some(metrics) = &mut records.metrics {
                metrics.write(line)?;
            }
        }
        if let (Some(file), Some(hashes)) = (&mut records.hashes, &self.elastic.recent.hashes)
            && hashes.step == step
            && file.newest() < step
        {
            file.write(hashes)?;
        }
        Ok(())
    }

    /// Opens what is recorded for people who look on, and for the report.
    fn open_for_onlookers(&mut self, run: &RunDirectory) {
        let (step, members) = (self.outcome.step, self.members());
        let (setup, records) = (&self.setup, &mut self.records);
        records.ranks = Some(RankLines::open(run, step, setup.config.log_every));
        let wanted = setup.config.tensorboard;
        records.tensor_board = wanted.then(|| TensorBoard::open(run, step)).flatten();
        let samples = setup.train.sampler().samples_per_epoch();
        if !setup.live.is_open() {
            let live = Live {
                phase: Phase::Starting,
                epochs: setup.config.epochs as u64,
                epoch: self.outcome.epoch as u64,
                step: step as u64,
                steps: Some(setup.config.total_steps(samples) as u64),
                epoch_samples: Some(samples as u64),
                ..Live::default()
            };
            let file = LiveFile::start(run, live, setup.rank_statuses.clone());
            setup.live.open(Some(file));
        }
        let ranks = counted(members.len(), "rank");
        setup.live.members(members.clone());
        let model = &setup.model_name;
        let begun = if self.outcome.has_just_resumed() {
            let mut text = format!("{model} continues after step {step}, on {ranks}");
            let environment = Environment::of_run(run.path());
            let changes = environment.map_or_else(Vec::new, |it| it.resume_changes);
            if !changes.is_empty() {
                text += &format!("; changed by this resume: {}", changes.join(", "));
            }
            Event::new(EventKind::Resume, text)
        } else if step == 0 && self.outcome.past.is_none() {
            let text = format!("{model} begins, on {ranks}");
            Event::new(EventKind::Start, text)
        } else {
            return;
        };
        run.note(Event {
            step: Some(step as u64),
            ranks: Some(members),
            ..begun
        });
    }

    /// Notes an event, on a rank that has the run directory.
    pub(super) fn note(&self, event: Event) {
        if let Some(run) = &self.setup.run {
            run.note(Event {
                step: event.step.or(Some(self.outcome.step as u64)),
                ..event
            });
        }
    }

    /// Writes what `step` was for each rank of the group, on rank 0.
    pub(super) fn record_ranks(&mut self, step: usize, mut past: Vec<RankStep>) {
        if self.records.ranks.is_none() || past.is_empty() {
            return;
        }
        let members = self.members();
        for told in &mut past {
            told.rank = members.get(told.rank).copied().unwrap_or(told.rank);
        }
        if let Some(lines) = &mut self.records.ranks {
            lines.write(step, past);
        }
    }

    /// Whether the next step is one of those for which kernels are compiled and tuned: the first of a process on
    /// a GPU.
    pub(super) fn compiles(&self) -> bool {
        self.outcome.cost.seconds == 0.0 && self.setup.device.memory_pool_usage().is_some()
    }

    /// Writes a line on rank 0.
    pub(super) fn log(&mut self, line: &MetricLine) -> Result<(), TrainError> {
        if self.setup.elasticity.any_may_be_first() {
            self.elastic.recent.lines.push(line.clone());
        }
        if let Some(tensor_board) = &mut self.records.tensor_board {
            tensor_board.write(line);
        }
        match &mut self.records.metrics {
            Some(metrics) => metrics.write(line),
            None => Ok(()),
        }
    }

    /// Writes the fingerprints of all that has been learnt by the last of `steps`, where that is asked for and
    /// due in one of them.
    pub(super) fn hash(
        &mut self,
        model: &AnyModel,
        steps: RangeInclusive<usize>,
        sums: &MetricSums,
    ) -> Result<(), TrainError> {
        let last = *steps.end();
        let due = |every| {
            steps
                .into_iter()
                .any(|step: usize| step.is_multiple_of(every))
        };
        let wanted = self.records.hashes.is_some() || self.setup.elasticity.any_may_be_first();
        if wanted && self.setup.config.hash_every.is_some_and(due) {
            let optimizer = self.setup.state.optimizer_bytes()?;
            let hashes = StateHashes::of(last, sums, model, optimizer)?;
            if let Some(file) = &mut self.records.hashes {
                file.write(&hashes)?;
            }
            self.elastic.recent.hashes = Some(hashes);
        }
        Ok(())
    }
}
