//! What cannot be reported at all.

use std::io;
use std::path::{Path, PathBuf};

use everburn_record::units::counted;

/// What is tried first with the folder of a run.
pub(crate) const READING_RUN: &str = "reading the run directory";

/// Why there is no report. A file of the run that is missing or damaged is none of these: it becomes a
/// [`Note`](crate::Note).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// A file or folder cannot be read or written.
    #[error("{action} {}: {reason}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Why it failed.
        reason: String,
    },
    /// A report or a page cannot be written.
    #[error("writing {} failed: {reason}", path.display())]
    Write {
        /// Where.
        path: PathBuf,
        /// The cause, with what to do.
        reason: String,
    },
    /// The folder is not that of a run.
    #[error(
        "there is no run in {}: it has neither config.toml nor metrics.jsonl nor report.json; give the folder that \
         `train --run-dir` wrote",
        path.display()
    )]
    NoRun {
        /// The folder.
        path: PathBuf,
    },
    /// This many runs cannot be compared.
    #[error("{} cannot be compared: give 2 to {most}", counted(*.given, "run"))]
    Runs {
        /// How many were given.
        given: usize,
        /// How many there may be.
        most: usize,
    },
}

impl ReportError {
    /// The folder that was given as that of a run, and is none.
    #[must_use]
    pub fn missing_run(&self) -> Option<&Path> {
        match self {
            Self::NoRun { path } => Some(path),
            Self::File { action, path, .. } => (*action == READING_RUN).then_some(path),
            Self::Runs { .. } | Self::Write { .. } => None,
        }
    }

    pub(crate) fn file(action: &'static str, path: &Path, error: &io::Error) -> Self {
        Self::File {
            action,
            path: path.to_path_buf(),
            reason: error.to_string(),
        }
    }
}
