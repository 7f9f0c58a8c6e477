//! What a rank says about its own failure, and the file in which it says it.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Whose fault a rank's end is, as far as the rank itself can tell.
///
/// ```
/// use everburn_launch::FailureKind;
///
/// assert!(FailureKind::Panic.is_own());
/// assert!(!FailureKind::PeerLost.is_own());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FailureKind {
    /// The rank failed by itself: an error of its own.
    Own,
    /// The rank panicked.
    Panic,
    /// A peer went away: its connection broke or it did not answer in time.
    PeerLost,
    /// Another rank told this one to give up.
    Aborted,
    /// A kind that this version does not know; counts as the rank's own.
    #[serde(other)]
    Unknown,
}

impl FailureKind {
    /// Whether this rank is a cause of the job's end and not a victim of it.
    #[must_use]
    pub fn is_own(self) -> bool {
        !matches!(self, Self::PeerLost | Self::Aborted)
    }
}

/// A rank's report of why it ends, written as JSON to the file named by `EVERBURN_ERROR_FILE`.
///
/// ```
/// use everburn_launch::{FailureKind, RankFailure, report_failure};
///
/// let folder = tempfile::tempdir()?;
/// let file = folder.path().join("rank-1.error.json");
/// report_failure(&file, &RankFailure::new(1, FailureKind::Own, "loss is NaN").at_step(40))?;
/// assert_eq!(RankFailure::read(&file).unwrap().step, Some(40));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankFailure {
    /// The rank that failed.
    pub rank: usize,
    /// The step at which it failed, where there was one.
    #[serde(default)]
    pub step: Option<u64>,
    /// Whose fault it is.
    pub kind: FailureKind,
    /// The error in words, with its causes.
    pub message: String,
    /// When it happened, in milliseconds since 1970.
    pub unix_time_ms: u64,
}

impl RankFailure {
    /// A failure of `rank` now.
    #[must_use]
    pub fn new(rank: usize, kind: FailureKind, message: impl Into<String>) -> Self {
        Self {
            rank,
            step: None,
            kind,
            message: message.into(),
            unix_time_ms: unix_time_ms(),
        }
    }

    /// The same failure with the step at which it happened.
    #[must_use]
    pub fn at_step(mut self, step: u64) -> Self {
        self.step = Some(step);
        self
    }

    /// Reads a report; `None` where there is none or it cannot be understood.
    #[must_use]
    pub fn read(path: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }
}

/// Writes `failure` to `path`, whole or not at all. The first report of a rank stands: a later one
/// is dropped, because what goes wrong while a rank ends is seldom why it ends.
///
/// # Errors
/// When the file cannot be written.
pub fn report_failure(path: &Path, failure: &RankFailure) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let unfinished = path.with_file_name(name);
    let mut file = fs::File::create(&unfinished)?;
    file.write_all(&serde_json::to_vec_pretty(failure)?)?;
    drop(file);
    // A hard link, unlike a rename, refuses to replace an earlier report.
    let linked = match fs::hard_link(&unfinished, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        // Some file systems know no hard links.
        Err(_) if !path.exists() => return fs::rename(&unfinished, path),
        other => other,
    };
    fs::remove_file(&unfinished)?;
    linked
}

pub(crate) fn unix_time_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_report_stands_and_leaves_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank-0.error.json");
        report_failure(&path, &RankFailure::new(0, FailureKind::Own, "first")).unwrap();
        report_failure(&path, &RankFailure::new(0, FailureKind::PeerLost, "second")).unwrap();
        assert_eq!(RankFailure::read(&path).unwrap().message, "first");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_kind_from_a_later_version_is_understood_as_own() {
        let json = r#"{"rank":2,"kind":"quarrel","message":"m","unix_time_ms":1}"#;
        let failure: RankFailure = serde_json::from_str(json).unwrap();
        assert!(failure.kind.is_own());
        assert_eq!(failure.step, None);
    }
}
