//! An operation under way.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::communication::Shared;
use super::core::{Core, OpContext};
use super::error::CollectiveError;
use crate::sync::{lock, wait_while};

/// How much longer than the communication thread a waiter waits: the thread's own error
/// says more, so it should come first.
const MARGIN: Duration = Duration::from_secs(5);

/// Where a result appears.
struct Slot<T> {
    result: Mutex<Option<Result<T, CollectiveError>>>,
    done: Condvar,
}

/// The writing side of a slot.
pub(crate) struct Completion<T> {
    slot: Arc<Slot<T>>,
    core: Arc<Core>,
    context: OpContext,
}

impl<T> Completion<T> {
    pub(crate) fn complete(self, result: Result<T, CollectiveError>) {
        *lock(&self.slot.result) = Some(result);
        // Dropping `self` wakes the waiter.
    }
}

impl<T> Drop for Completion<T> {
    /// Nobody waits for ever: an operation that is given up (its thread panicked, or the group was
    /// destroyed under it) ends with an error.
    fn drop(&mut self) {
        let mut result = lock(&self.slot.result);
        if result.is_none() {
            *result = Some(Err(self.core.destroyed(&self.context)));
        }
        drop(result);
        self.slot.done.notify_all();
    }
}

/// Whom an operation waits for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Partner {
    /// All members, in the order in which the communication thread comes to it.
    Everyone,
    /// One job rank.
    One(usize),
}

/// The result of an operation that is under way on the group's communication thread.
///
/// Dropping a `Work` does not cancel the operation: the other ranks count on it. A `Work` keeps
/// its group alive.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use std::time::Duration;
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
///
/// let group = ProcessGroup::over_threads(1, GroupOptions::default()).remove(0);
/// let gathered = group.all_gather(vec![1u8, 2]);
/// let barrier = group.barrier();
/// barrier.wait_within(Duration::from_secs(10))?;
/// assert!(gathered.is_done());
/// assert_eq!(gathered.wait()?, vec![vec![1, 2]]);
/// # Ok::<(), everburn_collectives::group::CollectiveError>(())
/// ```
#[must_use = "an operation fails unseen unless it is waited for"]
pub struct Work<T> {
    slot: Arc<Slot<T>>,
    shared: Arc<Shared>,
    context: OpContext,
    partner: Partner,
}

impl<T> Work<T> {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        context: OpContext,
        partner: Partner,
    ) -> (Self, Completion<T>) {
        let slot = Arc::new(Slot {
            result: Mutex::new(None),
            done: Condvar::new(),
        });
        let core = shared.core().clone();
        let completion = Completion {
            slot: slot.clone(),
            core,
            context,
        };
        (
            Self {
                slot,
                shared: shared.clone(),
                context,
                partner,
            },
            completion,
        )
    }

    /// Whether [`Work::wait`] would return at once.
    #[must_use]
    pub fn is_done(&self) -> bool {
        lock(&self.slot.result).is_some()
    }

    /// How many collectives this rank had issued on the group before this operation.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.context.sequence
    }

    /// Waits for the result, for the group's timeout. For a collective, the timeout begins when
    /// its turn comes.
    ///
    /// # Errors
    /// What happened to the operation; after anything but [`CollectiveError::Invalid`] the group
    /// is unusable on all its ranks.
    pub fn wait(self) -> Result<T, CollectiveError> {
        let timeout = self.shared.core().timeout();
        match self.partner {
            Partner::One(_) => self.wait_within(timeout),
            Partner::Everyone => {
                // Works ahead in the queue have deadlines of their own: as long as the
                // communication thread finishes one now and then, this one's turn will come.
                let mut finished = self.shared.core().finished();
                loop {
                    if let Some(result) = self.wait_for_slot(timeout + MARGIN) {
                        return result;
                    }
                    let now_finished = self.shared.core().finished();
                    if now_finished == finished {
                        return Err(self.give_up(timeout + MARGIN));
                    }
                    finished = now_finished;
                }
            }
        }
    }

    /// Waits for the result, for `timeout` from now.
    ///
    /// # Errors
    /// As [`Work::wait`]. When `timeout` ends first, the operation is given up with
    /// [`CollectiveError::Timeout`], and with it the group: aborts are sent to the other ranks at once.
    pub fn wait_within(self, timeout: Duration) -> Result<T, CollectiveError> {
        match self.wait_for_slot(timeout) {
            Some(result) => result,
            None => Err(self.give_up(timeout)),
        }
    }

    fn wait_for_slot(&self, timeout: Duration) -> Option<Result<T, CollectiveError>> {
        let deadline = Instant::now() + timeout;
        let result = lock(&self.slot.result);
        let (mut result, _) = wait_while(&self.slot.done, result, deadline, |it| it.is_none());
        result.take()
    }

    fn give_up(&self, waited: Duration) -> CollectiveError {
        let core = self.shared.core();
        let waiting_for = match self.partner {
            Partner::Everyone => core.waiting_for(),
            Partner::One(peer) => vec![peer],
        };
        core.timed_out(&self.context, waiting_for, waited)
    }
}

impl<T> fmt::Debug for Work<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work")
            .field("operation", &self.context.call.to_string())
            .field("sequence", &self.context.sequence)
            .field("done", &self.is_done())
            .finish_non_exhaustive()
    }
}
