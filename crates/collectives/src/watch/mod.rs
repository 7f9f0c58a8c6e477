//! Hangs named: a heartbeat of every rank, and a report of which rank stalled.
//!
//! Each rank has a [`Watch`]. Its thread publishes a beat in the store each interval: a number, the
//! step, the newest entries of the group's flight record. Whoever's number stands still has been
//! stopped, or its machine is gone; whoever's goes on, and has not called what the others wait in,
//! is busy or stuck in its own work. [`Watch::report`] tells which after a deadline has passed.
//!
//! Clocks of different ranks are never compared: each counts, by its own monotonic clock, how long
//! another's number has not moved, and begins anew if it was held up itself.
//!
//! What is deliberately absent: any effect on the rank that is silent, and any wait of a collective
//! for the store.

mod beat;
mod heart;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
mod log;
mod report;
mod signs;
mod text;
mod verdict;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use self::heart::{Followed, Heart};
pub use self::report::{Evidence, HangReport, RankActivity};
pub use self::signs::Sign;
use crate::group::{CollectiveError, ProcessGroup};
use crate::store::SharedStore;
use crate::sync::{lock, wait_until};

/// How long dropping a watch waits for its thread, which is mostly asleep. If the store does not
/// answer just then, the thread ends later, by itself.
const DROP_PATIENCE: Duration = Duration::from_millis(200);

/// How a [`Watch`] behaves; the same on all ranks.
///
/// ```
/// use std::time::Duration;
/// use everburn_collectives::watch::WatchOptions;
///
/// let options = WatchOptions { silence: Some(Duration::from_secs(5)), ..WatchOptions::default() };
/// assert_eq!(options.interval, Duration::from_secs(1));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchOptions {
    /// The time from one beat to the next.
    pub interval: Duration,
    /// How long a rank may give no sign of life before its group is failed; `None` leaves that to
    /// the deadlines of the operations.
    pub silence: Option<Duration>,
}

impl Default for WatchOptions {
    /// A beat a second, and no verdict on the silent.
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            silence: None,
        }
    }
}

/// Why there is no watch.
///
/// ```
/// use std::sync::Arc;
/// use everburn_collectives::store::HashStore;
/// use everburn_collectives::watch::{Watch, WatchOptions};
///
/// let store = Arc::new(HashStore::new());
/// let error = Watch::start(store, 4, 2, WatchOptions::default()).unwrap_err();
/// assert!(error.to_string().contains("member 4 does not exist among 2"));
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The member's number is too high.
    #[error("member {member} does not exist among {members}; count from 0")]
    Member {
        /// The number.
        member: usize,
        /// How many there are.
        members: usize,
    },
    /// Beats without a pause, or a silence that one late beat would make.
    #[error(
        "an interval of {interval:?} between beats does not go with a silence of {silence:?}; take \
         an interval above zero and a silence of at least twice as much"
    )]
    Interval {
        /// The interval.
        interval: Duration,
        /// The silence.
        silence: Option<Duration>,
    },
    /// The system refused the thread.
    #[error("the heartbeat's thread cannot be started: {reason}")]
    Thread {
        /// The system's answer.
        reason: String,
    },
}

/// The heartbeat of one rank, and its view of those of the others.
///
/// It shares the store's connection with the rank: a [`crate::store::TcpStore`] waits for missing
/// keys on other connections, so that nothing delays a beat for longer than one answer takes. It
/// does not keep the group alive that it follows. Dropping it says goodbye to the others, within
/// milliseconds.
///
/// ```
/// use std::sync::Arc;
/// use everburn_collectives::group::{GroupOptions, ProcessGroup};
/// use everburn_collectives::store::HashStore;
/// use everburn_collectives::watch::{Watch, WatchOptions};
///
/// let group = ProcessGroup::alone(GroupOptions::default());
/// let watch = Watch::start(Arc::new(HashStore::new()), 0, 1, WatchOptions::default())?;
/// watch.follow(&group);
/// // Train; then, if an operation fails:
/// if let Err(error) = group.barrier().wait() {
///     if let Some(report) = watch.report(&error, &|_| None) {
///         eprintln!("{report}");
///     }
/// }
/// # Ok::<(), everburn_collectives::watch::WatchError>(())
/// ```
pub struct Watch {
    heart: Arc<Heart>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts the heartbeat of `member`, one of `members`: the rank, or in an elastic run the slot.
    /// All members share `store`.
    ///
    /// # Errors
    /// [`WatchError`] when the arguments can never do, or the system refuses a thread.
    pub fn start(
        store: SharedStore,
        member: usize,
        members: usize,
        options: WatchOptions,
    ) -> Result<Self, WatchError> {
        let WatchOptions { interval, silence } = options;
        if member >= members {
            return Err(WatchError::Member { member, members });
        }
        if interval.is_zero() || silence.is_some_and(|silence| silence < 2 * interval) {
            return Err(WatchError::Interval { interval, silence });
        }
        let heart = Arc::new(Heart::new(store, member, members, options));
        let beating = heart.clone();
        let thread = std::thread::Builder::new()
            .name("everburn-heartbeat".into())
            .spawn(move || beating.run())
            .map_err(|error| WatchError::Thread {
                reason: error.to_string(),
            })?;
        Ok(Self {
            heart,
            thread: Some(thread),
        })
    }

    /// Follows `group` from now on, in place of the one before: the group of all ranks, in which
    /// member `m` has rank `m`.
    pub fn follow(&self, group: &ProcessGroup) {
        let members: Vec<usize> = (0..self.heart.members).collect();
        self.follow_generation(group, 0, &members);
    }

    /// As [`Watch::follow`], for the group of `generation` (the same number on all its ranks), in
    /// which rank `r` is member `members[r]`.
    pub fn follow_generation(&self, group: &ProcessGroup, generation: u64, members: &[usize]) {
        self.heart.follow(Followed {
            core: Arc::downgrade(group.core()),
            generation,
            rank: group.core().job_rank(),
            members: members.to_vec(),
        });
    }

    /// Ends the heartbeat without a goodbye, as if the process had been stopped: for tests and
    /// chaos on purpose.
    pub fn fall_silent(&self) {
        self.heart.stop(false);
    }

    /// What became of a hang, if `error` (or the failure of the followed group) is one: a deadline
    /// that passed or a rank that gave no sign of life, on whichever rank it was noticed. Publishes
    /// what this rank was doing, and waits two seconds at most for the others to do so too.
    ///
    /// `log_of` gives the path of a member's log, if this machine has it.
    #[must_use]
    pub fn report(
        &self,
        error: &CollectiveError,
        log_of: &dyn Fn(usize) -> Option<PathBuf>,
    ) -> Option<HangReport> {
        report::report(&self.heart, error, log_of)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("member", &self.heart.member)
            .field("members", &self.heart.members)
            .field("options", &self.heart.options)
            .finish_non_exhaustive()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.heart.stop(true);
        let deadline = Instant::now() + DROP_PATIENCE;
        let mut state = lock(&self.heart.state);
        while !state.ended {
            let (locked, late) = wait_until(&self.heart.changed, state, deadline);
            state = locked;
            if late {
                return;
            }
        }
        drop(state);
        if let Some(thread) = self.thread.take() {
            // It has signalled its end. An error would be a panic, which has told of itself.
            let _ = thread.join();
        }
    }
}
