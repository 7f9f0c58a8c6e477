//! What can go wrong.

use std::path::{Path, PathBuf};

/// Why there is no profile.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::{ProfileError, Recording};
///
/// let empty = tempfile::tempdir().unwrap();
/// let error = Recording::read_all(empty.path()).unwrap_err();
/// assert!(matches!(error, ProfileError::NoRecordings { folder } if folder == empty.path()));
/// ```
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// A file cannot be written or read.
    #[error("{action} {}: {reason}", path.display())]
    File {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// The folder holds no rank's recording.
    #[error(
        "there are no recordings of ranks in {}: train with `Trainer::recorder`, or run `bottleneck`",
        folder.display()
    )]
    NoRecordings {
        /// Where they would be.
        folder: PathBuf,
    },
    /// The file is of another version.
    #[error(
        "{} is a recording of format {found}, and this program reads format {known}: record it again",
        path.display()
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The format of this program.
        known: u32,
    },
    /// Nothing was recorded that could be analysed.
    #[error(
        "the ranks have recorded no complete step: train for 3 steps or more, as with `training.steps = 50`"
    )]
    NoSteps,
    /// Another sampler is at work in this process.
    #[error("this process already samples the CPU")]
    SampledAlready,
    /// The system gives no timer.
    #[error("the CPU cannot be sampled, because {call} fails: {reason}")]
    NoTimer {
        /// The call that failed.
        call: &'static str,
        /// What the system says.
        reason: String,
    },
}

impl ProfileError {
    pub(crate) fn file(action: &'static str, path: &Path, reason: &dyn ToString) -> Self {
        Self::File {
            action,
            path: path.to_owned(),
            reason: reason.to_string(),
        }
    }
}
