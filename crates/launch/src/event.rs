//! What happens to ranks while the launcher is with them.

use std::time::Duration;

/// Something that has just happened to a rank, or to the job.
///
/// ```
/// # mod everburn { pub use everburn_launch as launch; }
/// use everburn::launch::LaunchEvent;
///
/// let event = LaunchEvent::Lost { rank: 2, text: "rank 2 was killed by SIGKILL".into() };
/// assert_eq!(event.rank(), Some(2));
/// assert!(event.text().contains("SIGKILL"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LaunchEvent {
    /// A rank has ended by a fault of its own, and is not started again.
    Lost {
        /// Its number over all machines.
        rank: usize,
        /// What happened, in words.
        text: String,
    },
    /// A rank has ended, and will be started again.
    Restart {
        /// Its number over all machines.
        rank: usize,
        /// What happened, in words.
        text: String,
    },
    /// A signal has asked the job to stop.
    Stopping {
        /// The signal; with the machine or the rank, as in `SIGTERM at machine 1`, where it came to that alone.
        by: String,
        /// How it stops, in words.
        text: String,
    },
    /// Ranks have not stopped in time, and are killed.
    NotStopped {
        /// Their numbers over all machines, in order.
        ranks: Vec<usize>,
        /// What happened, in words.
        text: String,
    },
    /// Ranks of this machine have been stopped (SIGSTOP) for a while: all of them, or some while no other rank has said so.
    RanksStopped {
        /// Their numbers over all machines, in order.
        ranks: Vec<usize>,
        /// How they are continued, in words.
        text: String,
    },
    /// Ranks that were stopped for a while continue.
    RanksContinued {
        /// Their numbers over all machines, in order.
        ranks: Vec<usize>,
        /// How long the first of them was stopped.
        lasted: Duration,
        /// That they continue, in words.
        text: String,
    },
    /// A rank of another machine has refused to join an elastic job: it was started with other settings.
    RefusedElsewhere {
        /// Which rank and why, in words.
        text: String,
    },
    /// The store of the job is not reached yet.
    StoreAwaited {
        /// Why, and what to check, in words.
        text: String,
        /// For how long it is tried.
        left: Duration,
    },
    /// An elastic job continues without any rank of another machine.
    MachineLost {
        /// The number of that machine.
        machine: usize,
        /// Which ranks were lost and which continue, in words.
        text: String,
    },
}

impl LaunchEvent {
    /// Which rank it befell, if it was one.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        match self {
            Self::Lost { rank, .. } | Self::Restart { rank, .. } => Some(*rank),
            Self::NotStopped { ranks, .. }
            | Self::RanksStopped { ranks, .. }
            | Self::RanksContinued { ranks, .. } => match ranks[..] {
                [rank] => Some(rank),
                _ => None,
            },
            Self::Stopping { .. }
            | Self::RefusedElsewhere { .. }
            | Self::StoreAwaited { .. }
            | Self::MachineLost { .. } => None,
        }
    }

    /// What happened, in words.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Lost { text, .. }
            | Self::Restart { text, .. }
            | Self::Stopping { text, .. }
            | Self::NotStopped { text, .. }
            | Self::RanksStopped { text, .. }
            | Self::RanksContinued { text, .. }
            | Self::RefusedElsewhere { text }
            | Self::StoreAwaited { text, .. }
            | Self::MachineLost { text, .. } => text,
        }
    }
}

/// Who is notified.
pub(crate) type Tell = Box<dyn Fn(&LaunchEvent)>;
