//! How a job and its ranks ended, in words for the user.

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use signal_hook::consts::SIGABRT;

use crate::exit::{EXIT_PEER_LOST, RankExit};
use crate::failure::{RankReport, ReportKind};
use crate::job_failure::JobFailure;

/// How a job ended. Its text is what the user should read.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use everburn::launch::Outcome;
///
/// assert_eq!(Outcome::Succeeded.exit_code(), 0);
/// assert_eq!(Outcome::Interrupted { signal: 2 }.exit_code(), 130);
/// ```
#[derive(Debug, Clone)]
pub enum Outcome {
    /// Every rank of this machine ended well, by its exit code and its own report. In an elastic job: one did,
    /// and so did all that ran then and had a part in the job.
    Succeeded,
    /// A signal reached the launcher, and the ranks stopped because of it; or ranks report that they were
    /// stopped themselves ([`ReportKind::Stopped`]). A rank that fails by itself meanwhile makes the job
    /// [`Outcome::Failed`].
    Interrupted {
        /// The signal that came first; SIGINT where none reached the launcher.
        signal: i32,
    },
    /// A rank failed.
    Failed(Box<JobFailure>),
}

impl Outcome {
    /// What the launcher's process should return: 0; 128 + the signal after an interruption (130
    /// for Ctrl-C), though the ranks themselves stopped with 0; else [`JobFailure::exit_code`].
    /// Never 0 unless all went well.
    #[must_use]
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Succeeded => 0,
            Self::Interrupted { signal } => 128 + signal,
            Self::Failed(failure) => match failure.exit_code {
                0 => 1,
                code => code,
            },
        }
    }
}

impl From<&Outcome> for ExitCode {
    /// [`Outcome::exit_code`] for `main`.
    fn from(outcome: &Outcome) -> Self {
        // What does not fit is a failure all the same.
        Self::from(u8::try_from(outcome.exit_code()).unwrap_or(1))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Succeeded => f.write_str("every rank ended well"),
            Self::Interrupted { .. } => f.write_str("stopped on request"),
            Self::Failed(failure) => failure.fmt(f),
        }
    }
}

/// A rank that has ended, and how.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use everburn::launch::{EndedRank, RankExit};
///
/// let rank = EndedRank::new(2, RankExit::Code(3));
/// assert_eq!(rank.to_string(), "rank 2 ended with exit code 3");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedRank {
    /// Its number over all machines.
    pub rank: usize,
    /// How its process ended.
    pub exit: RankExit,
    /// Whether it died of a signal that the launcher had sent to it.
    pub ended_by_launcher: bool,
    /// When the launcher saw it end, in milliseconds since 1970.
    pub unix_time_ms: u64,
    /// What it said about its end.
    pub report: Option<RankReport>,
}

impl EndedRank {
    /// A rank that ended like this by itself, without a report and at no known time.
    #[must_use]
    pub fn new(rank: usize, exit: RankExit) -> Self {
        Self {
            rank,
            exit,
            ended_by_launcher: false,
            unix_time_ms: 0,
            report: None,
        }
    }

    /// Whether it ended with 0 and has said itself that it had finished.
    #[must_use]
    pub fn has_finished(&self) -> bool {
        self.exit.is_success() && self.has_said(ReportKind::Finished)
    }

    /// Whether it ended with 0 because the others had finished without it.
    pub(crate) fn was_not_needed(&self) -> bool {
        self.exit.is_success() && self.has_said(ReportKind::NotNeeded)
    }

    /// Whether it ended with 0 and has said itself that it was stopped before it had finished.
    pub(crate) fn was_stopped(&self) -> bool {
        self.exit.is_success() && self.has_said(ReportKind::Stopped)
    }

    /// Which signal has asked it to stop, as in `SIGTERM at rank 1`, if it has got one and says so.
    pub(crate) fn asked_by(&self) -> Option<String> {
        let report = self.report.as_ref().filter(|_| self.was_stopped())?;
        (!report.message.is_empty()).then(|| format!("{} at rank {}", report.message, self.rank))
    }

    /// What it said about its failure, if it did.
    #[must_use]
    pub fn failure(&self) -> Option<&RankReport> {
        self.report.as_ref().filter(|it| it.kind.is_failure())
    }

    /// The rank because of which it failed, if it says that another is to blame.
    pub(crate) fn lost_rank(&self) -> Option<usize> {
        let failure = self.failure();
        let victim = failure.filter(|failure| !failure.kind.is_own_failure());
        victim.and_then(|failure| failure.lost_rank)
    }

    fn has_said(&self, kind: ReportKind) -> bool {
        self.report.as_ref().is_some_and(|it| it.kind == kind)
    }

    /// How it ended, after `rank 3 `.
    pub(crate) fn how(&self) -> String {
        let failure = self.failure();
        let lost = failure.and_then(|failure| failure.lost_rank);
        let own = failure.filter(|failure| failure.kind.is_own_failure());
        let mut text = match lost {
            _ if self.ended_by_launcher => "was ended by the launcher".to_owned(),
            _ if self.was_not_needed() => "came after the others had finished".to_owned(),
            _ if self.was_stopped() => "was stopped on request".to_owned(),
            _ if self.exit.is_success() && !self.has_finished() => {
                "exited with 0 and did not report that it had finished".to_owned()
            }
            Some(lost) if self.exit == RankExit::Code(EXIT_PEER_LOST) => {
                format!("lost rank {lost} (exit code {EXIT_PEER_LOST})")
            }
            // What the signal may mean is known.
            _ if own.is_some() && self.exit == RankExit::Signal(SIGABRT) => {
                "was ended by SIGABRT".to_owned()
            }
            _ => self.exit.to_string(),
        };
        if !self.exit.is_success() && self.has_said(ReportKind::Finished) {
            text.push_str(", after it had reported that it had finished");
        }
        // That of a victim is a matter of when it noticed.
        if let Some(step) = own.and_then(|failure| failure.step) {
            text.push_str(&format!(", at step {step}"));
        }
        text
    }
}

impl fmt::Display for EndedRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} {}", self.rank, self.how())
    }
}

/// How a process that lived was left out of an elastic job.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use everburn::launch::Expulsion;
///
/// assert_ne!(Expulsion::Stopped, Expulsion::Silent);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expulsion {
    /// Its launcher has seen that it was stopped (state `T`).
    Stopped,
    /// The others had not heard of it for long, and continued without it.
    Silent,
}

/// A process of an elastic job that ended, and after which its rank was started again.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use std::time::Duration;
/// use everburn::launch::{EndedRank, Restart, RankExit};
///
/// let restart = Restart {
///     ended: EndedRank::new(1, RankExit::Code(3)),
///     incarnation: 2,
///     expelled: None,
///     number: 2,
///     of: 3,
///     after: Duration::from_secs(2),
/// };
/// assert_eq!(
///     restart.to_string(),
///     "rank 1 (process 2) ended with exit code 3; restart 2 of 3 in 2.0 s"
/// );
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restart {
    /// How the process ended.
    pub ended: EndedRank,
    /// Which process of its rank it was.
    pub incarnation: u64,
    /// How it was left out while it lived, if it was: the launcher has killed it for that.
    pub expelled: Option<Expulsion>,
    /// The restart that followed, from 1.
    pub number: usize,
    /// How many the rank may have.
    pub of: usize,
    /// How long the launcher waited before it.
    pub after: Duration,
}

impl Restart {
    pub(crate) fn loss(&self) -> String {
        loss(&self.ended, self.incarnation, self.expelled)
    }

    /// Which restart comes when.
    pub(crate) fn when(&self) -> String {
        let (number, of) = (self.number, self.of);
        match self.after.is_zero() {
            true => format!("restart {number} of {of} now"),
            false => format!(
                "restart {number} of {of} in {:.1} s",
                self.after.as_secs_f64()
            ),
        }
    }
}

impl fmt::Display for Restart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.loss(), self.when())
    }
}

/// Which process ended how, with the headline of what it said itself.
pub(crate) fn loss(ended: &EndedRank, incarnation: u64, expelled: Option<Expulsion>) -> String {
    let rank = ended.rank;
    let process = match incarnation {
        0 | 1 => String::new(),
        // Not by its restarts: this launcher counts its own decisions, and another may have begun before.
        later => format!(" (process {later})"),
    };
    let mut text = match expelled {
        Some(Expulsion::Stopped) => format!(
            "rank {rank}{process} was stopped (SIGSTOP): the launcher has killed it, and the others continue without it"
        ),
        Some(Expulsion::Silent) => format!(
            "rank {rank}{process} was stopped or hung: the others continue without it, and the launcher has killed it"
        ),
        None => format!("rank {rank}{process} {}", ended.how()),
    };
    let failure = ended.failure();
    if let Some(line) = failure.and_then(RankReport::headline) {
        text.push_str(&format!(": {line}"));
    }
    text
}
