//! A run directory, read: what it holds, and what of it could not be read.

mod checkpoints;
mod events;
mod files;
mod grid;
mod json_lines;
mod logs;
mod metrics;
mod ranks;
pub(crate) mod results;
mod sentences;

use std::io;
use std::path::{Path, PathBuf};

pub use events::Events;
pub use grid::{Grid, Quantity};
pub use metrics::{Curve, EpochMetrics, Metrics};
pub use ranks::{RankTimes, RankTotal};

use everburn_record::{
    ConfusionMatrix, Environment, EventKind, MetricLine, Settings, TrainingReport, file,
    name_of_run,
};

use crate::ReportError;

/// How long `report.json`, `config.toml` and `environment.json` may be: they are some hundred bytes.
const LONGEST_DOCUMENT: u64 = 1 << 20;

/// A matrix of a thousand classes, with counts of millions, fits.
const LONGEST_CONFUSION: u64 = 1 << 24;

/// Something about a run directory that its report must say: a file is missing, or a part of it damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Note {
    /// The file, as it is called in the run directory.
    pub file: String,
    /// What is wrong with it, and what that means.
    pub what: String,
}

impl Note {
    pub(crate) fn new(file: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            file: file.into(),
            what: what.into(),
        }
    }
}

/// All that a run directory says.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The folder, as it was given.
    pub path: PathBuf,
    /// `metrics.jsonl`.
    pub metrics: Metrics,
    /// `report.json`, which is written at the end of a run.
    pub results: Option<TrainingReport>,
    /// `config.toml`.
    pub config: Settings,
    /// `environment.json`.
    pub environment: Option<Environment>,
    /// What happened: of `events.jsonl`, or where there is none of logs and checkpoints.
    pub events: Events,
    /// `ranks.jsonl`.
    pub ranks: Option<RankTimes>,
    /// `confusion.json`.
    pub confusion: Option<ConfusionMatrix>,
    /// The files of the folder, and how many bytes they have.
    pub files: Vec<(String, u64)>,
    /// What could not be read.
    pub notes: Vec<Note>,
}

impl Run {
    /// The files of which a run has one: what is damaged is reported, too.
    const FILES: [&str; 3] = [Settings::FILE, MetricLine::FILE, TrainingReport::FILE];

    /// Reads the run directory `path`. Memory is bounded, however long the run was.
    ///
    /// # Errors
    /// [`ReportError::File`] if the folder cannot be read, [`ReportError::NoRun`] if it holds nothing of a run.
    pub fn read(path: impl Into<PathBuf>) -> Result<Self, ReportError> {
        let path = path.into();
        let mut notes = Vec::new();
        let files = files::list(&path, &mut notes)?;
        let is_there = |name: &str| files.iter().any(|(file, _)| file == name);
        if !Self::FILES.iter().any(|name| is_there(name)) {
            return Err(ReportError::NoRun { path });
        }
        let mut documents = Documents {
            folder: &path,
            notes: &mut notes,
        };
        let results = documents.read(TrainingReport::FILE, LONGEST_DOCUMENT, json);
        let config = documents.read(Settings::FILE, LONGEST_DOCUMENT, str::parse);
        let environment = documents.read(Environment::FILE, LONGEST_DOCUMENT, json);
        let confusion = documents.read(ConfusionMatrix::FILE, LONGEST_CONFUSION, |text| {
            let matrix: ConfusionMatrix = json(text)?;
            matrix.check().map(|()| matrix)
        });
        let metrics = Metrics::read(&path, &mut notes);
        let ranks = RankTimes::read(&path, &mut notes);
        let events = Events::read(&path, &mut notes);
        if config.is_none() && !is_there(Settings::FILE) {
            notes.push(Note::new(
                Settings::FILE,
                "it is missing: the configuration is not known",
            ));
        }
        if results.is_none() && !is_there(TrainingReport::FILE) {
            let what = "it is missing, as it is until a run has ended by itself: there are no test results";
            notes.push(Note::new(TrainingReport::FILE, what));
        }
        Ok(Self {
            path,
            metrics,
            results,
            config: config.unwrap_or_default(),
            environment,
            events,
            ranks,
            confusion,
            files,
            notes,
        })
    }

    /// What the run is called: the name of its folder.
    #[must_use]
    pub fn name(&self) -> String {
        name_of_run(&self.path)
    }

    /// How many ranks it had at its start, where that is known.
    #[must_use]
    pub fn ranks_at_start(&self) -> Option<usize> {
        let per_machine = self.config.ranks_per_machine();
        let of_config = per_machine.map(|ranks| ranks.saturating_mul(self.config.machines()));
        of_config.or_else(|| {
            let at_end = self.results.as_ref()?.world_size;
            (at_end > 0).then_some(at_end)
        })
    }

    /// How the run stands, in a few words.
    #[must_use]
    pub fn state(&self) -> String {
        match &self.results {
            Some(results) => match &results.stopped {
                Some(why) => format!("stopped: {why}"),
                None => "finished".to_owned(),
            },
            None if self.events.count(EventKind::Failure) > 0 => "failed".to_owned(),
            None => "not finished".to_owned(),
        }
    }
}

/// The small files of a run directory.
struct Documents<'a> {
    folder: &'a Path,
    notes: &'a mut Vec<Note>,
}

impl Documents<'_> {
    /// Reads a file; what is wrong with it is noted. That it is missing is for the caller to judge.
    fn read<T>(
        &mut self,
        name: &str,
        longest: u64,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<T> {
        let text = file::read_text(&self.folder.join(name), longest);
        let parsed = parse(&found(text, name, self.notes)?);
        let note = |why: &String| Note::new(name, format!("it is damaged and was left out: {why}"));
        parsed.inspect_err(|why| self.notes.push(note(why))).ok()
    }
}

/// What was read of the file `name`; why it was not is noted, unless there is no such file.
fn found<T>(read: io::Result<T>, name: &str, notes: &mut Vec<Note>) -> Option<T> {
    match read {
        Ok(found) => Some(found),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            notes.push(Note::new(name, format!("it was not read: {error}")));
            None
        }
    }
}

/// Why a file was not read, of which it was known that it was there; `gone` is said where it is not.
fn why(error: &io::Error, gone: &str) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => gone.to_owned(),
        _ => error.to_string(),
    }
}

fn json<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}
