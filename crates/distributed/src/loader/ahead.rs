//! Work that threads do ahead of the one who needs it.
//!
//! Jobs are numbered as they are begun. A thread takes the next one as soon as fewer than `depth` are begun
//! and not yet handed out, so that no more results than that are in memory; results wait until those before
//! them have been taken. So they come in the order of the jobs, whichever thread was faster: the number of
//! threads changes nothing but the time.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use everburn_collectives::sync::lock;

/// How batches are assembled beside the training.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::Prefetch;
///
/// assert_eq!(Prefetch::default().workers, 0, "by whoever asks for them");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefetch {
    /// How many threads assemble batches; with 0, who asks for one assembles it.
    pub workers: usize,
    /// How many batches may be there, or be under way, before they are asked for. At least one.
    pub depth: usize,
    /// How long a batch is waited for.
    pub timeout: Duration,
}

impl Default for Prefetch {
    fn default() -> Self {
        Self {
            workers: 0,
            depth: 2,
            timeout: Duration::from_secs(300),
        }
    }
}

/// The results of jobs, in order. Dropping it ends the threads, each after the job that it is at.
pub(super) struct Ahead<J, T> {
    shared: Arc<Shared<J, T>>,
    threads: Vec<JoinHandle<()>>,
    timeout: Duration,
    /// A thread that is stuck is not waited for once more.
    stuck: bool,
}

struct Shared<J, T> {
    state: Mutex<State<J, T>>,
    /// A result was handed out, or nobody wants any more.
    room: Condvar,
    /// A result is there.
    ready: Condvar,
    depth: usize,
}

struct State<J, T> {
    jobs: Box<dyn Iterator<Item = J> + Send>,
    /// How many jobs were begun, and how many results handed out.
    begun: usize,
    taken: usize,
    results: BTreeMap<usize, T>,
    working: usize,
    closed: bool,
}

/// How long threads are waited for that still read when nobody wants their batch any more.
const GRACE: Duration = Duration::from_secs(10);

impl<J, T> Shared<J, T> {
    fn lock(&self) -> MutexGuard<'_, State<J, T>> {
        // Nothing that can panic happens under the lock but `jobs`, whose numbers are then simply over.
        lock(&self.state)
    }

    /// The next job with its number, as soon as there is room for its result.
    fn begin(&self) -> Option<(usize, J)> {
        let mut state = self.lock();
        while !state.closed && state.begun >= state.taken + self.depth {
            let waited = self.room.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            return None;
        }
        let job = state.jobs.next()?;
        state.begun += 1;
        state.working += 1;
        Some((state.begun - 1, job))
    }

    fn finish(&self, number: usize, result: T) {
        let mut state = self.lock();
        state.working -= 1;
        state.results.insert(number, result);
        drop(state);
        self.ready.notify_all();
    }
}

impl<J: Send + 'static, T: Send + 'static> Ahead<J, T> {
    /// Begins `jobs` on threads of its own. `work` must not panic.
    ///
    /// # Errors
    /// What the system says when it starts no thread.
    pub(super) fn begin(
        prefetch: Prefetch,
        jobs: impl Iterator<Item = J> + Send + 'static,
        work: impl Fn(J) -> T + Clone + Send + 'static,
    ) -> std::io::Result<Self> {
        let state = State {
            jobs: Box::new(jobs),
            begun: 0,
            taken: 0,
            results: BTreeMap::new(),
            working: 0,
            closed: false,
        };
        let mut ahead = Self {
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                room: Condvar::new(),
                ready: Condvar::new(),
                depth: prefetch.depth.max(1),
            }),
            threads: Vec::new(),
            timeout: prefetch.timeout,
            stuck: false,
        };
        // More threads than results that may be there would only wait.
        for _ in 0..prefetch.workers.min(ahead.shared.depth) {
            let (shared, work) = (ahead.shared.clone(), work.clone());
            let thread = thread::Builder::new().name("everburn-input".into());
            ahead.threads.push(thread.spawn(move || {
                while let Some((number, job)) = shared.begin() {
                    shared.finish(number, work(job));
                }
            })?);
        }
        Ok(ahead)
    }

    pub(super) fn workers(&self) -> usize {
        self.threads.len()
    }

    /// The next result; the time that was waited in vain where it does not come. To be called as often as there
    /// are jobs.
    pub(super) fn take(&mut self) -> Result<T, Duration> {
        let start = Instant::now();
        let mut state = self.shared.lock();
        loop {
            let number = state.taken;
            if let Some(result) = state.results.remove(&number) {
                state.taken += 1;
                drop(state);
                self.shared.room.notify_all();
                return Ok(result);
            }
            let waited = start.elapsed();
            let Some(left) = self.timeout.checked_sub(waited) else {
                self.stuck = true;
                return Err(waited);
            };
            let woken = self.shared.ready.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl<J, T> Drop for Ahead<J, T> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        self.shared.room.notify_all();
        let end = Instant::now() + if self.stuck { Duration::ZERO } else { GRACE };
        while state.working > 0 {
            let Some(left) = end.checked_duration_since(Instant::now()) else {
                // They end with their jobs, if ever; the rank ends now.
                return;
            };
            let woken = self.shared.ready.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        for thread in self.threads.drain(..) {
            // Its work does not panic; if it did, `take` has returned that.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn prefetch(workers: usize, depth: usize) -> Prefetch {
        Prefetch {
            workers,
            depth,
            ..Prefetch::default()
        }
    }

    #[test]
    fn results_come_in_order_however_long_each_takes() {
        for (workers, depth) in [(1, 1), (2, 2), (3, 6), (7, 4)] {
            // Every second job waits for one that comes after it, where that may be begun at the same time:
            // of an even number of jobs that have room, half wait and half release them.
            let together = workers.min(depth) > 1;
            let (told, heard) = mpsc::channel::<usize>();
            let heard = Arc::new(Mutex::new(heard));
            let work = move |job: usize| {
                if together && job.is_multiple_of(2) {
                    let next = heard.lock().unwrap().recv_timeout(Duration::from_secs(60));
                    next.expect("another thread has the next job");
                } else if together {
                    told.send(job).unwrap();
                }
                job * job
            };
            let mut ahead = Ahead::begin(prefetch(workers, depth), 0..40, work).unwrap();
            let squares: Vec<_> = (0..40).map(|_| ahead.take().unwrap()).collect();
            assert_eq!(squares, (0..40).map(|job| job * job).collect::<Vec<_>>());
        }
    }

    #[test]
    fn no_more_is_begun_than_there_is_room_for() {
        let (began, begun) = mpsc::channel();
        let work = move |job| began.send(job).unwrap();
        let mut ahead = Ahead::begin(prefetch(2, 3), 0..100, work).unwrap();
        let soon = Duration::from_secs(60);
        for _ in 0..3 {
            begun.recv_timeout(soon).unwrap();
        }
        ahead.take().unwrap();
        begun.recv_timeout(soon).unwrap();
        drop(ahead);
        // All threads have ended, so that nothing can be begun any more.
        assert_eq!(begun.try_iter().count(), 0);
        assert_eq!(begun.recv(), Err(mpsc::RecvError));
    }
}
