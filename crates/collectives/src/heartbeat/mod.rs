//! Heartbeats, failure detection and hang diagnosis.
//!
//! Each rank has a [`HeartbeatMonitor`]. Its thread publishes a beat in the store each interval: a
//! counter, the step, and the newest entries of the group's flight recorder. A rank whose counter stops
//! is stopped or its machine is lost. A rank whose counter advances, but which has not called the
//! collective that the others wait in, is busy or stuck. [`HeartbeatMonitor::report`] diagnoses which
//! after a deadline has passed. Before that, warnings name a rank that stalls, and say once it continues
//! ([`EndedStall`]).
//!
//! Clocks of different ranks are never compared: each rank measures with its own monotonic clock how
//! long a peer's counter has not changed, and starts again after it was delayed itself.
//!
//! Deliberately absent: any effect on the silent rank, and any wait of a collective for the store.

mod asked;
mod beat;
mod diagnosis;
mod ended_stall;
#[cfg(any(test, fuzzing))]
pub(crate) mod hostile;
mod log;
mod machine;
mod report;
mod status;
mod text;
mod thread;

use std::fmt;
use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use self::beat::hang_key;
pub(crate) use self::beat::{LastBeat, last_beats};
pub use self::ended_stall::{EndedStall, StallCause};
pub use self::log::end_of_log;
pub use self::machine::SilentMachine;
pub use self::report::{Evidence, HangReport, RankActivity};
pub use self::status::RankStatus;
use self::thread::{Followed, Heartbeat};
use crate::group::{CollectiveError, ProcessGroup};
use crate::runtime;
use crate::store::{SharedStore, Store, StoreError, entry};
use crate::sync::lock;

/// How long a drop waits for the thread. If the store does not answer, the thread ends later by itself.
const DROP_TIMEOUT: Duration = Duration::from_millis(200);

/// How long a report that is made in the background is waited for: the others have 3 s to answer.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// The options of a [`HeartbeatMonitor`]; the same on all ranks.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use std::time::Duration;
/// use everburn::collectives::heartbeat::HeartbeatOptions;
///
/// let options = HeartbeatOptions { timeout: Some(Duration::from_secs(5)), ..HeartbeatOptions::default() };
/// assert_eq!(options.interval, Duration::from_secs(1));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeartbeatOptions {
    /// The time from one beat to the next.
    pub interval: Duration,
    /// The time without a beat after which a rank counts as lost and its group fails; the same where the store does
    /// not answer, and an operation has waited for a rank as long. `None`: only the deadlines of operations find lost
    /// ranks.
    pub timeout: Option<Duration>,
    /// How many members each machine has, in their order, so that reports can name a machine whose ranks are all silent;
    /// `None` where there is one machine, or the numbers differ.
    pub ranks_per_machine: Option<usize>,
}

impl Default for HeartbeatOptions {
    /// One beat per second, no timeout, one machine.
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            timeout: None,
            ranks_per_machine: None,
        }
    }
}

/// Why a [`HeartbeatMonitor`] could not be started.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use std::sync::Arc;
/// use everburn::collectives::store::HashStore;
/// use everburn::collectives::heartbeat::{HeartbeatMonitor, HeartbeatOptions};
///
/// let store = Arc::new(HashStore::new());
/// let error = HeartbeatMonitor::start(store, 4, 2, HeartbeatOptions::default()).unwrap_err();
/// assert!(error.to_string().contains("member 4 does not exist among 2"));
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum HeartbeatError {
    /// The member's number is out of range.
    #[error("member {member} does not exist among {members}; count from 0")]
    Member {
        /// The member's number.
        member: usize,
        /// The number of members.
        members: usize,
    },
    /// The interval is zero, or the timeout shorter than two intervals.
    #[error(
        "a heartbeat interval of {interval:?} does not fit a timeout of {timeout:?}; the interval must be \
         above zero and the timeout at least twice the interval"
    )]
    Interval {
        /// The interval.
        interval: Duration,
        /// The timeout.
        timeout: Option<Duration>,
    },
    /// The operating system refused the thread.
    #[error("the heartbeat's thread cannot be started: {reason}")]
    Thread {
        /// The system's error.
        reason: String,
    },
}

/// Publishes the heartbeat of one rank and monitors those of the others.
///
/// It shares the store's connection with the rank: a [`crate::store::TcpStore`] waits for missing
/// keys on other connections, so a beat is delayed by one request at most. It holds no reference to the
/// monitored group. Dropping it publishes a goodbye, within milliseconds; a report that is made in the background is waited for
/// before that, for 5 s at most.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use std::sync::Arc;
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::collectives::store::HashStore;
/// use everburn::collectives::heartbeat::{HeartbeatMonitor, HeartbeatOptions};
///
/// let group = ProcessGroup::alone(GroupOptions::default());
/// let monitor = HeartbeatMonitor::start(Arc::new(HashStore::new()), 0, 1, HeartbeatOptions::default())?;
/// monitor.follow(&group);
/// // Train; then, if an operation fails:
/// if let Err(error) = group.barrier().wait() {
///     if let Some(report) = monitor.report(&error, &|_| None) {
///         eprintln!("{report}");
///     }
/// }
/// # Ok::<(), everburn_collectives::heartbeat::HeartbeatError>(())
/// ```
pub struct HeartbeatMonitor {
    heartbeat: Arc<Heartbeat>,
    thread: Option<JoinHandle<()>>,
    /// Closed by the thread of the newest report that is made in the background.
    report: Mutex<Option<Receiver<()>>>,
}

impl HeartbeatMonitor {
    /// Starts the heartbeat of `member` among `members`: the rank, or in an elastic run the slot.
    /// All members share `store`.
    ///
    /// # Errors
    /// [`HeartbeatError`] if the arguments are invalid or the thread cannot be started.
    pub fn start(
        store: SharedStore,
        member: usize,
        members: usize,
        options: HeartbeatOptions,
    ) -> Result<Self, HeartbeatError> {
        let HeartbeatOptions {
            interval, timeout, ..
        } = options;
        if member >= members {
            return Err(HeartbeatError::Member { member, members });
        }
        if interval.is_zero() || timeout.is_some_and(|timeout| timeout < 2 * interval) {
            return Err(HeartbeatError::Interval { interval, timeout });
        }
        let heartbeat = Arc::new(Heartbeat::new(store, member, members, options));
        let refused = |error: std::io::Error| HeartbeatError::Thread {
            reason: error.to_string(),
        };
        if timeout.is_some() {
            // Ends by itself: it waits for nothing but the end of the heartbeat.
            let watching = heartbeat.clone();
            runtime::spawn("everburn-watch", move || watching.watch_store()).map_err(refused)?;
        }
        let beating = heartbeat.clone();
        let thread = runtime::spawn("everburn-heartbeat", move || beating.run());
        let thread = thread
            .inspect_err(|_| heartbeat.stop(false))
            .map_err(refused)?;
        Ok(Self {
            heartbeat,
            thread,
            report: Mutex::default(),
        })
    }

    /// Monitors `group` from now on, instead of the group before. It is the group of all ranks: member
    /// `m` has rank `m`.
    pub fn follow(&self, group: &ProcessGroup) {
        let members: Vec<usize> = (0..self.heartbeat.members).collect();
        self.follow_generation(group, 0, &members);
    }

    /// Like [`HeartbeatMonitor::follow`], for the group of `generation` (equal on all its ranks), in which
    /// rank `r` is member `members[r]`.
    pub fn follow_generation(&self, group: &ProcessGroup, generation: u64, members: &[usize]) {
        self.heartbeat.follow(Followed {
            core: Arc::downgrade(group.core()),
            generation,
            rank: group.core().job_rank(),
            members: members.to_vec(),
        });
    }

    /// Lets warnings about a wait say that the job was asked to stop, once `asked` is true: its launcher ends the ranks then,
    /// and no timeout counts. `asked` is called on the heartbeat thread and must not block.
    pub fn set_stop_asked(&self, asked: impl Fn() -> bool + Send + Sync + 'static) {
        *lock(&self.heartbeat.stop_asked) = Some(Box::new(asked));
    }

    /// Calls `listener` for each stall that has ended by itself, after the warning of its end: of the ranks that had warned of the
    /// stall, the first does so. In a group of more than 32 ranks rank 0 does, if [`statuses`](Self::statuses) was called, and of
    /// a stall of rank 0 each rank that had warned. `listener` is called on the heartbeat thread and must not block.
    pub fn set_stall_listener(&self, listener: impl Fn(&EndedStall) + Send + Sync + 'static) {
        *lock(&self.heartbeat.on_stall_ended) = Some(Arc::new(listener));
    }

    /// Stops the heartbeat without a goodbye, as if the process were stopped; for tests and fault
    /// injection.
    pub fn stop_without_goodbye(&self) {
        self.heartbeat.stop(false);
    }

    /// Diagnoses a hang; `None` if `error` (or the failure of the monitored group) is none. A hang is a
    /// missed deadline or heartbeat timeout, detected on any rank; or a pause of this rank for which the others have
    /// given it up, whatever it has noticed of that. Publishes this rank's state and waits at most two seconds for those
    /// of the others.
    ///
    /// `log_of` returns the path of a member's log file, if this machine has it.
    #[must_use]
    pub fn report(
        &self,
        error: &CollectiveError,
        log_of: &dyn Fn(usize) -> Option<PathBuf>,
    ) -> Option<HangReport> {
        report::report(&self.heartbeat, error, log_of)
    }

    /// As [`report`](Self::report), but on a thread beside what this rank does next: it publishes its state, and of the ranks of
    /// a machine the first one collects those of the others and calls `show` with the report. The monitor may follow the next
    /// group meanwhile. Dropping it waits for the report ([`finish_report`](Self::finish_report)).
    pub fn report_in_background(
        &self,
        error: &CollectiveError,
        log_of: impl Fn(usize) -> Option<PathBuf> + Send + 'static,
        show: impl FnOnce(&HangReport) + Send + 'static,
    ) {
        let making = report::report_in_background(&self.heartbeat, error, log_of, show);
        if making.is_some() {
            // One before it ends by itself.
            *lock(&self.report) = making;
        }
    }

    /// Waits until the newest report that is made [in the background](Self::report_in_background) is shown, for 5 s at most. A
    /// process that ends before that takes it along.
    pub fn finish_report(&self) {
        let making = lock(&self.report).take();
        if let Some(making) = making {
            // It sends nothing: its end closes the channel.
            let _ = making.recv_timeout(REPORT_TIMEOUT);
        }
    }
}

/// Whether one of `members` has reported to `store` that the group of all ranks hangs, so that it ends: see
/// [`HeartbeatMonitor::report`]. For launchers whose own ranks cannot notice it.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::heartbeat::hang_is_reported;
/// use everburn::collectives::store::HashStore;
///
/// assert!(!hang_is_reported(&HashStore::new(), 2..4)?);
/// # Ok::<(), everburn_collectives::store::StoreError>(())
/// ```
///
/// # Errors
/// [`StoreError`] of a store that is out of reach.
pub fn hang_is_reported(
    store: &dyn Store,
    members: impl IntoIterator<Item = usize>,
) -> Result<bool, StoreError> {
    let keys = members.into_iter().map(|member| hang_key(0, member));
    let keys: Vec<String> = keys.collect();
    let found = entry::values(store, &keys)?;
    Ok(found.iter().any(Option::is_some))
}

impl fmt::Debug for HeartbeatMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeartbeatMonitor")
            .field("member", &self.heartbeat.member)
            .field("members", &self.heartbeat.members)
            .field("options", &self.heartbeat.options)
            .finish_non_exhaustive()
    }
}

impl Drop for HeartbeatMonitor {
    fn drop(&mut self) {
        self.finish_report();
        self.heartbeat.stop(true);
        let deadline = runtime::now() + DROP_TIMEOUT;
        let Heartbeat { state, changed, .. } = &*self.heartbeat;
        let (state, late) = changed.wait_while(state, lock(state), deadline, |it| !it.ended);
        if late {
            return;
        }
        drop(state);
        if let Some(thread) = self.thread.take() {
            // The thread has ended. An error would be a panic, which has printed its message.
            let _ = thread.join();
        }
    }
}
