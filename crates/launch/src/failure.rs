//! What a rank says about its own end, and the files in which it says it.

use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use everburn_record::{file, unix_time_ms};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

/// The longest report that is read, in bytes: its message is an error with its causes.
const LONGEST_REPORT: u64 = 1 << 20;

/// What a rank says of its end: that it has finished or was stopped, or whose fault its failure is as far as it can see.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use everburn::launch::ReportKind;
///
/// assert!(ReportKind::Panic.is_own_failure());
/// assert!(!ReportKind::PeerLost.is_own_failure());
/// assert!(!ReportKind::Finished.is_failure());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReportKind {
    /// The rank has done all of its work.
    Finished,
    /// The rank was asked to stop, by a signal or a key, and has stopped before it had done all of its work.
    Stopped,
    /// The rank came after the others had finished an elastic job without it, and has done nothing.
    NotNeeded,
    /// The rank failed by itself: an error of its own.
    Own,
    /// The rank panicked.
    Panic,
    /// A peer went away: its connection broke or it did not answer in time.
    PeerLost,
    /// Another rank asked this one to give up.
    Aborted,
    /// A kind that this version does not have; counts as a failure of the rank's own.
    #[serde(other)]
    Unknown,
}

impl ReportKind {
    /// Whether the rank has failed, by its own fault or another's.
    #[must_use]
    pub fn is_failure(self) -> bool {
        !matches!(self, Self::Finished | Self::Stopped | Self::NotNeeded)
    }

    /// Whether this rank is a cause of the job's end and not a victim of it.
    #[must_use]
    pub fn is_own_failure(self) -> bool {
        matches!(self, Self::Own | Self::Panic | Self::Unknown)
    }
}

/// A rank's report of its end, written as JSON: that of a failure to the file named by
/// `EVERBURN_ERROR_FILE`, that of a good end to the one named by `EVERBURN_FINISHED_FILE`.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use everburn::launch::{RankReport, ReportKind, write_report};
///
/// let folder = tempfile::tempdir()?;
/// let file = folder.path().join("rank-1.error.json");
/// write_report(&file, &RankReport::new(1, ReportKind::Own, "loss is NaN"))?;
/// assert_eq!(RankReport::read(&file).unwrap().message, "loss is NaN");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankReport {
    /// The rank that says it.
    pub rank: usize,
    /// The step at which it failed, where there was one.
    #[serde(default)]
    pub step: Option<u64>,
    /// What it says.
    pub kind: ReportKind,
    /// The error in words, with its causes.
    #[serde(default)]
    pub message: String,
    /// The rank because of which it failed, where it is a victim of another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_rank: Option<usize>,
    /// The number of that rank's machine, where no rank of it sent heartbeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_machine: Option<usize>,
    /// Whether the rank leaves it to the launcher to show `message`, and to write it to the rank's log.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unprinted: bool,
    /// When it was, in milliseconds since 1970.
    pub unix_time_ms: u64,
}

impl RankReport {
    /// What `rank` says now.
    #[must_use]
    pub fn new(rank: usize, kind: ReportKind, message: impl Into<String>) -> Self {
        Self {
            rank,
            step: None,
            kind,
            message: message.into(),
            lost_rank: None,
            silent_machine: None,
            unprinted: false,
            unix_time_ms: unix_time_ms(),
        }
    }

    /// The headline of what it says, as one line, and the lines after it; `None` where it says nothing.
    pub(crate) fn headline_and_rest(&self) -> Option<(String, Vec<&str>)> {
        if self.message.is_empty() {
            return None;
        }
        let (headline, rest) = split_headline(&self.message);
        let headline = headline.lines().collect::<Vec<_>>().join(" ");
        let rest = rest.strip_prefix('\n').unwrap_or(rest);
        Some((headline, rest.lines().collect()))
    }

    /// [`Self::headline_and_rest`] without the rest.
    pub(crate) fn headline(&self) -> Option<String> {
        self.headline_and_rest().map(|(headline, _)| headline)
    }

    /// Reads a report; `None` where there is none, it cannot be understood or belongs to another user. A link is not
    /// followed, a pipe not waited for, and no more than a report's length is read.
    #[must_use]
    pub fn read(path: &Path) -> Option<Self> {
        let file = file::open(path).ok()?;
        // Another user's file says nothing about our ranks.
        if file.metadata().ok()?.uid() != geteuid().as_raw() {
            return None;
        }
        let mut text = Vec::new();
        file.take(LONGEST_REPORT).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

/// `message` up to the end of its headline, and the rest. The headline is the first line; of a panic, whose first line is its
/// place alone, it is that and the line after it.
pub(crate) fn split_headline(message: &str) -> (&str, &str) {
    let line_end = |start: usize| {
        let length = message[start..].find('\n');
        length.map_or(message.len(), |length| start + length)
    };
    let first = line_end(0);
    let is_place = message[..first].ends_with(':') && first < message.len();
    message.split_at(if is_place { line_end(first + 1) } else { first })
}

/// Writes `report` to `path`, whole or not at all. The first report in a file stays: a later one
/// is dropped, because what goes wrong while a rank ends is seldom why it ends.
///
/// # Errors
/// When the file cannot be written.
pub fn write_report(path: &Path, report: &RankReport) -> io::Result<()> {
    write_if_first(path, report).map(|_| ())
}

/// As [`write_report`]. Returns whether `report` is the first in the file.
pub(crate) fn write_if_first(path: &Path, report: &RankReport) -> io::Result<bool> {
    file::write_once(path, &serde_json::to_vec_pretty(report)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_first_report_stands_and_leaves_no_other_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank-0.error.json");
        write_report(&path, &RankReport::new(0, ReportKind::Own, "first")).unwrap();
        write_report(&path, &RankReport::new(0, ReportKind::PeerLost, "second")).unwrap();
        assert_eq!(RankReport::read(&path).unwrap().message, "first");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_headline_of_a_panic_has_its_message() {
        let of = |message: &str| RankReport::new(1, ReportKind::Panic, message).headline();
        let panic = "panicked at /src/linear.rs:191:31:\nmy model is broken\nin `Linear::forward`";
        let headline = "panicked at /src/linear.rs:191:31: my model is broken";
        assert_eq!(of(panic).as_deref(), Some(headline));
        assert_eq!(of("loss is NaN\nat step 3").as_deref(), Some("loss is NaN"));
        assert_eq!(
            of("panicked at a.rs:1:1:").as_deref(),
            Some("panicked at a.rs:1:1:")
        );
        assert_eq!(of(""), None);
        let report = RankReport::new(1, ReportKind::Panic, panic);
        let rest = report.headline_and_rest().unwrap().1;
        assert_eq!(rest, ["in `Linear::forward`"]);
    }

    #[test]
    fn a_planted_link_is_neither_written_through_nor_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let theirs = RankReport::new(0, ReportKind::Own, "theirs");
        write_report(&path("theirs"), &theirs).unwrap();
        // Also at the name that a report had until it was complete.
        let unfinished = format!("rank-0.error.json.{}.new", std::process::id());
        for name in ["rank-0.error.json", &unfinished] {
            std::os::unix::fs::symlink(path("theirs"), path(name)).unwrap();
        }
        assert_eq!(RankReport::read(&path("rank-0.error.json")), None);
        let ours = RankReport::new(0, ReportKind::Own, "ours");
        write_report(&path("rank-0.error.json"), &ours).unwrap();
        assert_eq!(RankReport::read(&path("theirs")), Some(theirs));
        assert_eq!(RankReport::read(&path("rank-0.error.json")), Some(ours));
    }

    #[test]
    fn a_report_of_another_user_is_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report");
        write_report(&path, &RankReport::new(0, ReportKind::Finished, "")).unwrap();
        assert!(RankReport::read(&path).is_some());
        assert_eq!(RankReport::read(folder.path()), None);
        let user = geteuid().as_raw();
        if std::os::unix::fs::chown(&path, Some(user + 1), None).is_err() {
            everburn_tests::skip("another user's report", "only root can give a file away");
            return;
        }
        assert_eq!(RankReport::read(&path), None);
    }

    #[test]
    fn a_report_holds_every_field() {
        // All of them are named, so that one that is added has to be named here.
        let report = RankReport {
            rank: 3,
            step: Some(120),
            kind: ReportKind::PeerLost,
            message: "rank 1 is lost".to_owned(),
            lost_rank: Some(1),
            silent_machine: Some(0),
            unprinted: true,
            unix_time_ms: 1_795_447_260_403,
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report");
        write_report(&path, &report).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
        let expected = [
            "kind",
            "lost_rank",
            "message",
            "rank",
            "silent_machine",
            "step",
            "unix_time_ms",
            "unprinted",
        ];
        assert_eq!(keys, expected);
        assert_eq!(RankReport::read(&path), Some(report));
    }

    #[test]
    fn a_report_without_an_end_is_not_read_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report");
        let failure = RankReport::new(0, ReportKind::Own, "x".repeat(1 << 20));
        write_report(&path, &failure).unwrap();
        assert_eq!(RankReport::read(&path), None);
    }

    #[test]
    fn a_kind_from_a_later_version_is_understood_as_own() {
        let json = r#"{"rank":2,"kind":"quarrel","message":"m","unix_time_ms":1}"#;
        let report: RankReport = serde_json::from_str(json).unwrap();
        assert!(report.kind.is_own_failure());
        assert_eq!(report.step, None);
    }
}
