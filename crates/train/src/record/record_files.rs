//! What a run records for those who look on and for its report, besides `metrics.jsonl`.
//!
//! None of it is needed to train: what cannot be written is logged once, and the training continues.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use everburn_record::{Environment, Event, RankLine, RankStep, file, unix_time_ms};
use serde::{Deserialize, Serialize};

use crate::error::TrainError;
use crate::record::run_directory::{RunDirectory, write_file};

/// A line at least so often, however long a step takes and however seldom steps are logged.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// A pause of so much for each rank follows a line: it has about 200 bytes for each.
const PAUSE_A_RANK: Duration = Duration::from_millis(1);

/// `ranks.jsonl`, open for writing.
#[derive(Debug)]
pub(crate) struct RankLines {
    path: PathBuf,
    file: Option<File>,
    log_every: usize,
    /// When the newest line was written.
    written: Option<Instant>,
}

impl RankLines {
    /// Opens the file of `run` for steps after `step`; later lines are taken out, because they will come again.
    pub(crate) fn open(run: &RunDirectory, step: usize, log_every: usize) -> Self {
        let path = run.path().join(RankLine::FILE);
        let file = keep_until(&path, step).and_then(|()| file::append_to(&path));
        let file = file
            .inspect_err(|error| tell(&path, error))
            .ok()
            .filter(|_| log_every > 0);
        Self {
            path,
            file,
            log_every,
            written: None,
        }
    }

    /// Writes what `step` was for `ranks`, if a line is due.
    pub(crate) fn write(&mut self, step: usize, ranks: Vec<RankStep>) {
        if ranks.is_empty() {
            return;
        }
        let pause = self.written.map(|written| written.elapsed());
        let shortest = PAUSE_A_RANK * u32::try_from(ranks.len()).unwrap_or(u32::MAX);
        let due = match pause {
            None => true,
            Some(pause) => {
                pause >= LONGEST_PAUSE.max(shortest)
                    || step.is_multiple_of(self.log_every) && pause >= shortest
            }
        };
        if due {
            self.write_now(step, ranks);
        }
    }

    pub(crate) fn write_now(&mut self, step: usize, ranks: Vec<RankStep>) {
        let Some(file) = self.file.as_mut().filter(|_| !ranks.is_empty()) else {
            return;
        };
        let line = RankLine {
            step: step as u64,
            unix_time_ms: Some(unix_time_ms()),
            ranks,
        };
        self.written = Some(Instant::now());
        if let Err(error) = append(file, &line) {
            tell(&self.path, &error);
            self.file = None;
        }
    }
}

/// A line of JSON, in one call: what several processes append does not mix.
fn append<T: Serialize>(file: &mut File, line: &T) -> std::io::Result<()> {
    let mut text = serde_json::to_string(line).map_err(std::io::Error::other)?;
    text.push('\n');
    file.write_all(text.as_bytes())
}

fn tell(path: &Path, error: &std::io::Error) {
    tracing::warn!(
        "{} is not written from now on, and training continues: {error}",
        path.display()
    );
}

/// Takes the lines of steps after `step` out of `path`, if there are any.
fn keep_until(path: &Path, step: usize) -> std::io::Result<()> {
    #[derive(Deserialize)]
    struct OfStep {
        step: usize,
    }
    let stays =
        |line: &str| serde_json::from_str::<OfStep>(line).is_ok_and(|line| line.step <= step);
    let file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    // Mostly the last line stays, and so do all before it.
    let mut last = None;
    for line in BufReader::new(&file).lines() {
        last = Some(line?);
    }
    if last.is_none_or(|line| stays(&line)) {
        return Ok(());
    }
    file::replace(path, |kept| {
        for line in BufReader::new(File::open(path)?).lines() {
            let line = line?;
            if stays(&line) {
                writeln!(kept, "{line}")?;
            }
        }
        Ok(())
    })
}

impl RunDirectory {
    /// Appends an event to `events.jsonl`, with the time if it has none. Any process of a job may do so.
    ///
    /// ```
    /// # mod everburn { pub use everburn_train as train; }
    /// use everburn::train::RunDirectory;
    /// use everburn_record::{Event, EventKind};
    ///
    /// let folder = tempfile::tempdir().unwrap();
    /// let run = RunDirectory::create(folder.path().join("a")).unwrap();
    /// run.note(Event { step: Some(3), ..Event::new(EventKind::Stop, "on request after step 3") });
    /// let text = std::fs::read_to_string(run.path().join("events.jsonl")).unwrap();
    /// assert!(text.contains(r#""kind":"stop""#) && text.contains("unix_time_ms"));
    /// ```
    pub fn note(&self, event: Event) {
        let path = self.path().join(Event::FILE);
        let event = Event {
            unix_time_ms: event.unix_time_ms.or_else(|| Some(unix_time_ms())),
            ..event
        };
        let file = file::append_to(&path);
        if let Err(error) = file.and_then(|mut file| append(&mut file, &event)) {
            // A full disk stays full: the next events would say the same.
            static SAID: AtomicBool = AtomicBool::new(false);
            let path = path.display();
            match SAID.swap(true, Ordering::Relaxed) {
                false => tracing::warn!("{path} is not written: {error}; this is said once"),
                true => tracing::debug!("{path} is not written: {error}"),
            }
        }
    }

    /// Writes `environment.json`.
    ///
    /// # Errors
    /// [`TrainError::Write`] if it cannot be written.
    pub fn write_environment(&self, environment: &Environment) -> Result<(), TrainError> {
        self.write_json(Environment::FILE, environment)
    }

    pub(crate) fn write_json<T: Serialize>(&self, name: &str, value: &T) -> Result<(), TrainError> {
        let path = self.path().join(name);
        let text = serde_json::to_string(value);
        let mut text = text.map_err(|error| TrainError::write(&path, error))?;
        text.push('\n');
        write_file(&path, text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks() -> Vec<RankStep> {
        let one = |rank| RankStep {
            rank,
            seconds: 0.5,
            ..RankStep::default()
        };
        (0..2).map(one).collect()
    }

    fn steps(run: &RunDirectory) -> Vec<u64> {
        let text = std::fs::read_to_string(run.path().join("ranks.jsonl")).unwrap();
        let lines = text.lines().map(serde_json::from_str::<RankLine>);
        lines.map(|line| line.unwrap().step).collect()
    }

    #[test]
    fn steps_that_are_made_again_are_recorded_once() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::create(folder.path().join("a")).unwrap();
        let mut lines = RankLines::open(&run, 0, 1);
        for step in 1..=4 {
            lines.write_now(step, ranks());
        }
        let mut lines = RankLines::open(&run, 2, 1);
        lines.write_now(3, ranks());
        assert_eq!(steps(&run), [1, 2, 3]);
        drop(RankLines::open(&run, 9, 1));
        assert_eq!(steps(&run), [1, 2, 3]);
    }

    #[test]
    fn nothing_is_written_of_no_ranks() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::create(folder.path().join("a")).unwrap();
        RankLines::open(&run, 0, 1).write(1, Vec::new());
        assert!(steps(&run).is_empty());
    }

    #[test]
    fn a_folder_that_is_gone_stops_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::create(folder.path().join("a")).unwrap();
        std::fs::remove_dir_all(run.path()).unwrap();
        RankLines::open(&run, 0, 1).write(1, ranks());
        run.note(Event::new(everburn_record::EventKind::Start, "it begins"));
    }
}
