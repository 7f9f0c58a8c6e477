//! Steps of a run, trained again.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use everburn_launch::{ChildError, Children, StartedChild, forget_ranks};
use everburn_record::EventKind;
use everburn_record::units::counted;
use everburn_report::Events;
use everburn_train::checkpoint::{Checkpoint, CheckpointFolder};
use everburn_train::{Chaos, RunDirectory, StateHashes};
use tempfile::TempDir;

use super::AuditArguments;
use super::record::Record;
use crate::commands::verify::compare::Difference;
use crate::commands::{ToolError, failed, this_program};
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
    let places = folder.places().map_err(failed)?.into_iter().rev();
    let mut places = places.filter_map(|place| Some((place, folder.progress(place)?.step)));
    let Some((place, made)) = places.find(|(_, made)| *made < step) else {
        return Ok(None);
    };
    let checkpoint = folder
        .read(place)
        .map_err(|error| failed(format!("the replay would begin after step {made}: {error}")))?;
    Ok(Some(checkpoint))
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

    fn run_dir(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// Trains until the last step is compared, or one differs: the first difference.
    pub(super) fn follow(&self, children: &Children) -> Result<Option<Difference>, ToolError> {
        let child = children.start(NAME, &mut self.command()?, self.folder.path())?;
        let timeout = Duration::from_secs(self.options.run_timeout);
        let begun = Instant::now();
        let mut lines = NewLines::of(self.run_dir().join(StateHashes::FILE));
        let mut left = VecDeque::from(self.record.steps(self.steps_made() + 1..=self.last));
        loop {
            // Before its lines are read: none comes later.
            let has_ended = child.has_ended();
            for line in lines.read().map_err(failed)? {
                let replayed: StateHashes = serde_json::from_str(&line).map_err(failed)?;
                let difference = self.record.compare(&mut left, &replayed)?;
                if difference.is_some() || left.is_empty() {
                    stop(child);
                    return Ok(difference);
                }
            }
            if has_ended {
                let ended = child.wait(STOPS_WITHIN)?;
                let (status, words) = (ended.status, ended.last_words());
                return Err(failed(format!(
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
        training.hash_every = training.hash_every.or(Some(1));
        (training.hash_key, training.chaos) = (None, Chaos::default());
        (training.keep_checkpoints, training.tensorboard) = (1, false);
        let mut command = Command::new(this_program()?);
        forget_ranks(&mut command);
        command.args(["train", "--no-dashboard"]);
        let folder = match &self.start {
            Some(_) => self.run_dir(),
            None => self.folder.path().join("configuration"),
        };
        let prepared = RunDirectory::create(folder).map_err(failed)?;
        prepared.write_config(&config).map_err(failed)?;
        match &self.start {
            Some(checkpoint) => {
                let checkpoints = CheckpointFolder::new(prepared.checkpoints(), 1);
                checkpoints.save(checkpoint).map_err(failed)?;
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
        let replayed = self.steps_made() as u64..difference.step;
        for event in Events::read(self.run.path(), &mut Vec::new()).iter() {
            let step = event.step.filter(|step| replayed.contains(step));
            if let (EventKind::Resume, Some(step)) = (event.kind, step) {
                causes.push(format!(
                    "the run was resumed after step {step}, perhaps with other settings; config.toml has those since then"
                ));
            }
        }
        causes
    }
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
