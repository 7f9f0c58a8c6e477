//! A stall that has ended by itself.

use std::fmt;
use std::time::Duration;

use super::text::{name_of, process_of};

/// What is known of why a rank stalled.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::heartbeat::StallCause;
///
/// // The most certain one first.
/// assert!(StallCause::Stopped < StallCause::Silent && StallCause::Silent < StallCause::Busy);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum StallCause {
    /// Its process was stopped (SIGSTOP), as a rank of its machine has seen.
    Stopped,
    /// It sent no heartbeats.
    Silent,
    /// Its heartbeats arrived: it was busy, or stuck in other work.
    Busy,
}

/// A rank of which a warning was logged, because it sent no heartbeats or others waited long for it, and that continues.
/// `Display` formats it for the user, in one line.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use std::time::Duration;
/// use everburn::collectives::heartbeat::{EndedStall, StallCause};
///
/// let stall = EndedStall {
///     rank: 3,
///     member: 3,
///     step: 341,
///     operation: Some("barrier()".to_owned()),
///     is_awaited: true,
///     lasted: Duration::from_secs(14),
///     cause: StallCause::Silent,
///     pid: Some(4711),
///     host: Some("node07".to_owned()),
/// };
/// assert_eq!(
///     stall.to_string(),
///     "rank 3 stalled for 14 s at step 341, while others waited for it in barrier(), and continues: it sent no heartbeats \
///      (pid 4711 on node07)"
/// );
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedStall {
    /// The rank in the group.
    pub rank: usize,
    /// Its member number: the slot in an elastic run, else the rank.
    pub member: usize,
    /// The step that was under way; 0 before the first.
    pub step: u64,
    /// The operation in which others waited for it; where that is not known, the last one that it is known to have been in.
    pub operation: Option<String>,
    /// Whether others are known to have waited for it in that operation.
    pub is_awaited: bool,
    /// How long it took, to about an interval between two heartbeats.
    pub lasted: Duration,
    /// Why it was.
    pub cause: StallCause,
    /// The id of its process, on its machine.
    pub pid: Option<u32>,
    /// The name of its machine.
    pub host: Option<String>,
}

impl fmt::Display for EndedStall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, seconds) = (name_of(self.rank, self.member), self.lasted.as_secs_f64());
        write!(f, "{name} stalled for {seconds:.0} s")?;
        // A program that does not say at which step it is stays at 0.
        if self.step > 0 {
            write!(f, " at step {}", self.step)?;
        }
        match (&self.operation, self.is_awaited) {
            (Some(operation), true) => {
                write!(f, ", while others waited for it in {operation}")?;
            }
            (Some(operation), false) => write!(f, ", in or after {operation}")?,
            (None, _) => {}
        }
        let process = process_of(self.pid, self.host.as_deref());
        let in_brackets = process
            .as_ref()
            .map_or(String::new(), |it| format!(" ({it})"));
        match self.cause {
            StallCause::Stopped => {
                let process = process.map_or(String::new(), |it| format!("; {it}"));
                write!(
                    f,
                    ", and continues: its process was stopped (SIGSTOP{process})"
                )
            }
            StallCause::Silent => {
                write!(f, ", and continues: it sent no heartbeats{in_brackets}")
            }
            StallCause::Busy => write!(
                f,
                ", and continues: its heartbeats arrived, so it was busy or stuck in other work{in_brackets}"
            ),
        }
    }
}
