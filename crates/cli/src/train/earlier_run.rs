//! The run that a folder contained before a training started in it. It comes back if the training makes no step.

use std::fmt;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use everburn_record::sync::lock;
use everburn_record::{MetricLine, Place};
use everburn_train::{RunLock, TrainError};

use crate::error::CliError;
use crate::files;
use crate::prelude::*;
use crate::recording;

/// How to bring it back.
pub(crate) enum EarlierRun {
    /// A resume has replaced the run's configuration.
    Resumed {
        config: PathBuf,
        bytes: Vec<u8>,
        recorded: Recorded,
    },
    /// A new training has moved the run to this folder.
    Aside(PathBuf),
}

/// How far a run has come: the bytes of its metrics, and its newest checkpoint.
type Recorded = (u64, Option<Place>);

impl EarlierRun {
    /// The run that is resumed, before its configuration is replaced. `None` if it has none.
    pub(super) fn resumed(run: &RunDirectory) -> Option<Self> {
        let config = run.config_path();
        Some(Self::Resumed {
            bytes: std::fs::read(&config).ok()?,
            recorded: recorded(&config),
            config,
        })
    }

    /// Brings it back if nothing was recorded in `run` since. Returns what folders have other names now, if any have.
    pub(super) fn restore(self, run: &RunDirectory) -> Option<GivenBack> {
        match self {
            Self::Resumed {
                config,
                bytes,
                recorded: before,
            } => {
                if recorded(&config) == before {
                    write_back(&config, &bytes);
                }
                None
            }
            Self::Aside(aside) => match run.move_back(&aside) {
                Ok(failed) => failed.map(|failed| GivenBack {
                    run: run.path().to_path_buf(),
                    failed,
                }),
                Err(error) => {
                    tracing::warn!("the earlier run stays in {}: {error}", aside.display());
                    None
                }
            },
        }
    }
}

/// A folder that contains its earlier run again. Its text is a line for the user.
pub(super) struct GivenBack {
    run: PathBuf,
    /// The folder of what the start has written.
    failed: PathBuf,
}

impl GivenBack {
    /// Where a file is now that the start has written to `path`.
    pub(super) fn moved(&self, path: &Path) -> Option<PathBuf> {
        Some(self.failed.join(path.strip_prefix(&self.run).ok()?))
    }
}

impl fmt::Display for GivenBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no step was recorded: {} contains the earlier run again, and {} what this start wrote",
            self.run.display(),
            self.failed.display()
        )
    }
}

/// The earlier run of the folder that a start prepares, and the folder. The thread that a signal wakes has it too.
#[derive(Clone, Default)]
pub(crate) struct Replaced(pub(super) Arc<Mutex<Option<(EarlierRun, RunDirectory)>>>);

impl Replaced {
    /// Gives the folder back to that run, once. Returns what folders have other names now, if any have.
    fn restore(&self) -> Option<GivenBack> {
        let (earlier, run) = lock(&self.0).take()?;
        earlier.restore(&run)
    }

    /// What does so for a signal that ends the start, and says the line.
    pub(super) fn undo(&self) -> impl Fn() + Send + use<> {
        let replaced = self.clone();
        move || {
            if let Some(line) = replaced.restore() {
                tracing::warn!("{line}");
            }
        }
    }
}

/// A run directory that is ready for a training. Dropped, it gives the folder back to the run that was in it, unless the
/// training has made a step or [`Prepared::keep`] was called.
pub(crate) struct Prepared {
    pub(crate) run: RunDirectory,
    /// No other training uses the folder while it is held.
    pub(super) _lock: RunLock,
    /// What the folder contained before.
    pub(super) replaced: Replaced,
}

impl Prepared {
    /// Keeps the folder as it is: what was asked for is done. Where a resume had no step to make, the settings of the run stay
    /// those of the steps that it has.
    pub(super) fn keep(&mut self) {
        let earlier = lock(&self.replaced.0).take();
        let Some((EarlierRun::Resumed { config, bytes, .. }, run)) = earlier else {
            return;
        };
        let report = run.read_report();
        if report.is_ok_and(|report| report.steps_since_resume == 0) {
            write_back(&config, &bytes);
        }
    }

    /// Notes how a training of this process ended, and writes the report of its run. A start that was refused leaves no folder.
    pub(super) fn conclude(&self, error: Option<&CliError>) {
        if !self.discard_refused(error) {
            recording::conclude(&self.run, error);
        }
    }

    /// Removes the folder where `error` has refused the start and nothing was in the folder before. Returns whether it did.
    fn discard_refused(&self, error: Option<&CliError>) -> bool {
        let is_refused = matches!(
            error,
            Some(
                CliError::Usage { .. }
                    | CliError::Train(TrainError::Config(_) | TrainError::DifferentRuns { .. })
            )
        );
        if !is_refused || lock(&self.replaced.0).is_some() {
            return false;
        }
        self.run.discard().unwrap_or_else(|error| {
            tracing::warn!("{error}");
            false
        })
    }

    /// Gives the folder back. Returns what folders have other names now, if any have.
    pub(super) fn restore(&mut self) -> Option<GivenBack> {
        self.replaced.restore()
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        self.replaced.undo()();
    }
}

/// Writes the configuration again that a resume has replaced.
fn write_back(config: &Path, bytes: &[u8]) {
    if let Err(error) = files::replace(config, |file| file.write_all(bytes)) {
        tracing::warn!("{} was not written back: {error}", config.display());
    }
}

/// How far the run of a configuration has come.
fn recorded(config: &Path) -> Recorded {
    let metrics = config.with_file_name(MetricLine::FILE).metadata();
    let newest = config.parent().and_then(Place::newest_of);
    (metrics.map_or(0, |file| file.len()), newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resume_without_a_step_leaves_the_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::create(folder.path().join("a")).unwrap();
        for (steps, expected) in [(0, "before"), (1, "after")] {
            std::fs::write(run.config_path(), "before").unwrap();
            let earlier = EarlierRun::resumed(&run).unwrap();
            std::fs::write(run.config_path(), "after").unwrap();
            let report = format!("{{\"steps\": 30, \"steps_since_resume\": {steps}}}");
            std::fs::write(run.report_path(), report).unwrap();
            let mut prepared = Prepared {
                _lock: run.lock().unwrap(),
                replaced: Replaced(Arc::new(Mutex::new(Some((earlier, run.clone()))))),
                run: run.clone(),
            };
            prepared.keep();
            let config = std::fs::read_to_string(run.config_path()).unwrap();
            assert_eq!(config, expected);
        }
    }

    #[test]
    fn a_log_of_a_start_that_failed_is_named_where_it_is_now() {
        let given = GivenBack {
            run: "q".into(),
            failed: "q~failed".into(),
        };
        let moved = given.moved(Path::new("q/logs/rank-0.log"));
        assert_eq!(moved, Some("q~failed/logs/rank-0.log".into()));
        assert_eq!(given.moved(Path::new("other/logs/rank-0.log")), None);
        let line = given.to_string();
        assert!(
            line.starts_with("no step was recorded: q contains"),
            "{line}"
        );
    }
}
