//! Time, threads and random numbers of a rank: the operating system's, or those of a simulation.
//!
//! Membership, rendezvous, heartbeats and mailboxes ask here. A thread that has [`enter`]ed a [`Runtime`] has that
//! one's time; all others have the system's. So a simulation runs the same code as a job, with a clock of its own.

use std::cell::RefCell;
use std::fs;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::sync::{lock, wait_until};

/// A simulated machine, as one of its processes sees it.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::runtime::Runtime;
///
/// fn later(runtime: &dyn Runtime) -> bool {
///     let before = runtime.now();
///     runtime.wait(0, before + std::time::Duration::from_secs(1));
///     runtime.now() > before
/// }
/// ```
pub trait Runtime: Send + Sync {
    /// The time by the clock of this process.
    fn now(&self) -> Instant;

    /// Waits for [`Runtime::notify`] of `condition` or for `deadline`.
    fn wait(&self, condition: usize, deadline: Instant);

    /// Wakes all threads that wait for `condition`.
    fn notify(&self, condition: usize);

    /// Starts a thread of this process.
    ///
    /// # Errors
    /// What the system says.
    fn spawn(&self, name: &str, work: Box<dyn FnOnce() + Send>) -> io::Result<()>;

    /// A random number.
    fn random(&self) -> u64;

    /// The number of this process on its machine.
    fn process_id(&self) -> u32;

    /// The name of its machine.
    fn host_name(&self) -> Option<String>;
}

thread_local! {
    static SIMULATED: RefCell<Option<Arc<dyn Runtime>>> = const { RefCell::new(None) };
}

/// The simulation that this thread is part of.
fn simulated() -> Option<Arc<dyn Runtime>> {
    // A thread that ends has no simulation any more.
    SIMULATED
        .try_with(|simulated| simulated.borrow().clone())
        .ok()?
}

/// Runs `work` on this thread with the time of `runtime`.
pub fn enter<R>(runtime: Arc<dyn Runtime>, work: impl FnOnce() -> R) -> R {
    let before = SIMULATED.with(|simulated| simulated.replace(Some(runtime)));
    let result = work();
    SIMULATED.with(|simulated| simulated.replace(before));
    result
}

/// In place of [`Instant::now`].
#[must_use]
pub fn now() -> Instant {
    simulated().map_or_else(Instant::now, |runtime| runtime.now())
}

/// In place of [`Instant::elapsed`].
#[must_use]
pub fn elapsed(since: Instant) -> Duration {
    now().saturating_duration_since(since)
}

/// In place of [`thread::sleep`].
pub fn sleep(time: Duration) {
    match simulated() {
        None => thread::sleep(time),
        // Nothing has this address.
        Some(runtime) => runtime.wait(0, runtime.now() + time),
    }
}

/// Starts a thread with a name. One of a simulation is none of the system's, and has nothing to join.
pub(crate) fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<Option<JoinHandle<()>>> {
    match simulated() {
        None => {
            let thread = thread::Builder::new().name(name.to_owned());
            thread.spawn(work).map(Some)
        }
        Some(runtime) => runtime.spawn(name, Box::new(work)).map(|()| None),
    }
}

pub(crate) fn simulated_random() -> Option<u64> {
    simulated().map(|runtime| runtime.random())
}

/// In place of [`std::process::id`].
pub(crate) fn process_id() -> u32 {
    simulated().map_or_else(std::process::id, |runtime| runtime.process_id())
}

/// The process that has started this one, as its launcher has, if it is stopped.
pub(crate) fn stopped_parent() -> Option<u32> {
    let parent = std::os::unix::process::parent_id();
    is_stopped(parent).then_some(parent)
}

/// Whether a process of this machine is stopped; those of a simulation have no state.
pub(crate) fn is_stopped(process: u32) -> bool {
    simulated().is_none() && everburn_record::proc::is_stopped(process)
}

/// Where process numbers of this process count: on this machine since it was started, or in one container of it. `None` where
/// that is not known, and in a simulation.
pub(crate) fn process_space() -> Option<String> {
    if simulated().is_some() {
        return None;
    }
    let numbers = fs::read_link("/proc/thread-self/ns/pid").ok()?;
    // `/proc` may be that of another container.
    let own = fs::read_link("/proc/self").ok()?;
    let is_ours = own.to_str() == Some(&std::process::id().to_string());
    let boot = everburn_record::proc::boot_id().filter(|_| is_ours)?;
    Some(format!("{boot} {}", numbers.display()))
}

/// The name of this machine.
pub(crate) fn host_name() -> Option<String> {
    match simulated() {
        None => everburn_record::proc::host_name(),
        Some(runtime) => runtime.host_name(),
    }
}

/// A [`Condvar`] that also wakes threads of a simulation.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use std::sync::Mutex;
/// use std::time::Duration;
/// use everburn::collectives::runtime::{self, Condition};
///
/// let (ready, changed) = (Mutex::new(false), Condition::default());
/// let guard = ready.lock().unwrap();
/// let deadline = runtime::now() + Duration::from_millis(1);
/// let (guard, late) = changed.wait_until(&ready, guard, deadline);
/// assert!(!*guard);
/// # let _ = late;
/// ```
#[derive(Debug, Default)]
pub struct Condition {
    condvar: Condvar,
}

impl Condition {
    /// Wakes all that wait.
    pub fn notify_all(&self) {
        match simulated() {
            None => self.condvar.notify_all(),
            Some(runtime) => runtime.notify(self.address()),
        }
    }

    /// Waits to be notified or for `deadline`, with `guard` of `mutex`; the second value says that the deadline has
    /// passed.
    pub fn wait_until<'a, T>(
        &self,
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        deadline: Instant,
    ) -> (MutexGuard<'a, T>, bool) {
        let Some(runtime) = simulated() else {
            return wait_until(&self.condvar, guard, deadline);
        };
        if runtime.now() >= deadline {
            return (guard, true);
        }
        drop(guard);
        runtime.wait(self.address(), deadline);
        (lock(mutex), false)
    }

    /// Waits while `waits` says so of what `guard` of `mutex` locks, asked again after each notification, and no longer than
    /// to `deadline`; the second value says that it would still wait.
    pub fn wait_while<'a, T>(
        &self,
        mutex: &'a Mutex<T>,
        mut guard: MutexGuard<'a, T>,
        deadline: Instant,
        mut waits: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, bool) {
        let mut late = false;
        while waits(&mut guard) {
            if late {
                return (guard, true);
            }
            (guard, late) = self.wait_until(mutex, guard, deadline);
        }
        (guard, false)
    }

    /// What a simulation tells conditions apart by.
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}
