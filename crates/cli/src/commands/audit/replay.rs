//! Steps of a run, trained again.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use everburn_launch::{ChildError, Children, StartedChild, forget_ranks};
use everburn_record::EventKind;
use everburn_record::units::counted;
use everburn_report::Events;
use everburn_train::checkpoint::{Checkpoint, CheckpointFolder};
use everburn_train::{Chaos, RunDirectory, StateHashes, TrainingConfig};
use tempfile::TempDir;

use super::record::Record;
use super::{AuditArguments, undone};
use crate::commands::verify::compare::Difference;
use crate::commands::{ToolError, this_program};
use crate::config::RunConfig;

/// What errors call it.
const NAME: &str = "the replay";

/// How often its record is read.
const LOOK: Duration = Duration::from_millis(100);

/// How long it may take to stop after its last step.
const STOPS_WITHIN: Duration = Duration::from_secs(90);

/// The newest checkpoint of which step `step` is later, verified.
pub(super) fn newest_before(
    folder: &CheckpointFolder,
    step: usize,
) -> Result<Option<Checkpoint>, ToolError> {
    let places = folder.places().map_err(undone)?.into_iter().rev();
    let mut places = places.filter_map(|place| Some((place, folder.progress(place)?.step)));
    let Some((place, made)) = places.find(|(_, made)| *made < step) else {
        return Ok(None);
    };
    let read = folder.read(place).map_err(|error| {
        undone(format!(
            "the replay would begin after step {made}: {error}; give --from a recorded step up to {made}, or move this \
             checkpoint away"
        ))
    });
    read.map(Some)
}

/// A training of steps that are recorded.
pub(super) struct Replay<'a> {
    pub(super) options: &'a AuditArguments,
    pub(super) run: &'a RunDirectory,
    pub(super) record: &'a Record,
    /// That of the run.
    pub(super) config: RunConfig,
    pub(super) ranks: usize,
    /// Where it begins, if not at the start.
    pub(super) start: Option<Checkpoint>,
    /// The last step.
    pub(super) last: usize,
    /// For its files.
    pub(super) folder: TempDir,
}

impl fmt::Display for Replay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ranks, made) = (counted(self.ranks, "rank"), self.steps_made());
        write!(f, "steps {} to {} on {ranks}, ", made + 1, self.last)?;
        match &self.start {
            Some(checkpoint) => write!(f, "from the checkpoint {}", checkpoint.progress.place()),
            None => f.write_str("from the start"),
        }
    }
}

impl Replay<'_> {
    fn steps_made(&self) -> usize {
        self.start.as_ref().map_or(0, |start| start.progress.step)
    }

    /// The steps that are compared.
    fn compared(&self) -> Vec<usize> {
        self.record.steps(self.steps_made() + 1..=self.last)
    }

    fn run_dir(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// Trains until the last step is compared, or one differs: the first difference.
    pub(super) fn follow(&self, children: &Children) -> Result<Option<Difference>, ToolError> {
        let child = children.start(NAME, &mut self.command()?, self.folder.path())?;
        let timeout = Duration::from_secs(self.options.run_timeout);
        let begun = Instant::now();
        let mut lines = NewLines::of(self.run_dir().join(StateHashes::FILE));
        let mut left = VecDeque::from(self.compared());
        loop {
            // Before its lines are read: none comes later.
            let has_ended = child.has_ended();
            for line in lines.read().map_err(undone)? {
                let replayed: StateHashes = serde_json::from_str(&line).map_err(undone)?;
                let difference = self.record.compare(&mut left, &replayed)?;
                if difference.is_some() || left.is_empty() {
                    stop(child);
                    return Ok(difference);
                }
            }
            if has_ended {
                let ended = child.wait(STOPS_WITHIN)?;
                let (status, words) = (ended.status, ended.last_words());
                return Err(undone(format!(
                    "{NAME} ended before step {} ({status}):\n{words}",
                    self.last
                )));
            }
            children.check_interrupted()?;
            if begun.elapsed() >= timeout {
                let name = NAME.to_owned();
                return Err(ChildError::TooLong { name, timeout }.into());
            }
            sleep(LOOK);
        }
    }

    /// The run's own training, on these ranks, into a folder of its own.
    fn command(&self) -> Result<Command, ToolError> {
        let mut config = self.config.clone();
        (config.ranks.ranks, config.ranks.nodes) = (self.ranks, 1);
        config.ranks.elastic = None;
        let training = &mut config.training;
        training.hash_every = Some(hash_every(training, &self.compared()));
        (training.hash_key, training.chaos) = (None, Chaos::default());
        (training.keep_checkpoints, training.tensorboard) = (1, false);
        let mut command = Command::new(this_program()?);
        forget_ranks(&mut command);
        command.args(["train", "--no-dashboard"]);
        let folder = match &self.start {
            Some(_) => self.run_dir(),
            None => self.folder.path().join("configuration"),
        };
        let prepared = RunDirectory::create(folder).map_err(undone)?;
        prepared.write_config(&config).map_err(undone)?;
        match &self.start {
            Some(checkpoint) => {
                let checkpoints = CheckpointFolder::new(prepared.checkpoints(), 1);
                checkpoints.save(checkpoint).map_err(undone)?;
                command.arg("--resume");
            }
            None => {
                command.arg("--config").arg(prepared.config_path());
            }
        }
        command.arg("--run-dir").arg(self.run_dir());
        command.args(&self.options.train);
        Ok(command)
    }

    /// What may be the cause of a difference although the record is right.
    pub(super) fn possible_causes(&self, difference: &Difference) -> Vec<String> {
        let data = |folder: PathBuf| {
            let progress = CheckpointFolder::new(folder, 1).newest_progress();
            progress.map(|progress| progress.data.all)
        };
        let mut causes = Vec::new();
        let ours = data(self.run_dir().join("checkpoints"));
        if let (Some(theirs), Some(ours)) = (data(self.run.checkpoints()), ours)
            && theirs != ours
        {
            causes.push("the data are not those of the run".to_owned());
        }
        let events = Events::read(self.run.path(), &mut Vec::new());
        let newest = |kind: EventKind, steps: RangeInclusive<u64>| {
            let of_kind = events.iter().filter(|event| event.kind == kind);
            let of_kind = of_kind.filter_map(|event| event.step);
            of_kind.filter(|step| steps.contains(step)).max()
        };
        // What was trained before the newest resume may have had other settings, on whichever side of the difference that is.
        let made = self.steps_made() as u64;
        if let Some(step) = newest(EventKind::Resume, made + 1..=u64::MAX) {
            causes.push(format!(
                "the run was resumed after step {step}, perhaps with other settings; config.toml has those since then"
            ));
        }
        let regrouped = newest(EventKind::Regroup, 1..=difference.step);
        if let (Some(step), None) = (regrouped, self.config.training.virtual_ranks) {
            causes.push(format!(
                "ranks of the run were lost, or came back, before step {step}: without --virtual-ranks, that changes the bits"
            ));
        }
        causes.extend(other_checkpoints(&self.config.training, self.ranks));
        causes
    }
}

/// With local steps on several ranks, other checkpoints are other bits.
fn other_checkpoints(training: &TrainingConfig, ranks: usize) -> Option<String> {
    let has_means = training.sync.steps().is_some() && ranks > 1;
    has_means.then(|| {
        "a checkpoint that the run has written, or at which it was resumed, and the replay has not: with --local-steps, it \
         averages the optimizer's states of the ranks"
            .to_owned()
    })
}

/// How often a replay writes hashes: so often that it has those of all steps that are compared. Before it was resumed, the run
/// may have written them more often than its configuration says.
fn hash_every(training: &TrainingConfig, compared: &[usize]) -> usize {
    // With fragments in flight, hashes decide where the whole model is exchanged: they must be those of the run.
    let is_fixed = training.outer.fragments.is_some();
    let has_all =
        |every: &usize| is_fixed || compared.iter().all(|step| step.is_multiple_of(*every));
    training.hash_every.filter(has_all).unwrap_or(1)
}

/// Ends a replay that has done its work. It leaves a checkpoint, which has the fingerprint of its data.
fn stop(child: StartedChild) {
    child.interrupt();
    // However it ends, its steps are compared.
    let _ = child.wait(STOPS_WITHIN);
}

/// The lines of a file that grows.
struct NewLines {
    path: PathBuf,
    /// How many bytes of it were read.
    read: u64,
}

impl NewLines {
    fn of(path: PathBuf) -> Self {
        Self { path, read: 0 }
    }

    /// The whole lines since the last call; none while there is no file.
    fn read(&mut self) -> io::Result<Vec<String>> {
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            file => file?,
        };
        file.seek(SeekFrom::Start(self.read))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let end = text.iter().rposition(|byte| *byte == b'\n');
        text.truncate(end.map_or(0, |end| end + 1));
        self.read += text.len() as u64;
        let text = String::from_utf8_lossy(&text);
        Ok(text.lines().map(str::to_owned).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_explain_a_difference_of_local_steps_on_several_ranks() {
        let mut training = TrainingConfig::default();
        assert_eq!(other_checkpoints(&training, 2), None);
        training.sync = "4".parse().unwrap();
        assert_eq!(other_checkpoints(&training, 1), None);
        let cause = other_checkpoints(&training, 2).unwrap();
        assert!(cause.contains("with --local-steps"), "{cause}");
    }

    #[test]
    fn a_replay_has_the_hashes_of_every_step_that_is_compared() {
        let chosen = |every, fragments, compared: &[usize]| {
            let mut training = TrainingConfig {
                hash_every: every,
                ..TrainingConfig::default()
            };
            training.outer.fragments = fragments;
            hash_every(&training, compared)
        };
        assert_eq!(chosen(Some(5), None, &[5, 10]), 5);
        // The run was resumed with fewer of them, or without any.
        assert_eq!(chosen(Some(5), None, &[1, 2, 5]), 1);
        assert_eq!(chosen(None, None, &[5]), 1);
        // Rounds of four steps.
        assert_eq!(chosen(Some(3), Some(2), &[4, 8]), 3);
    }
}
