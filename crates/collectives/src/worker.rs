//! A worker thread with a task queue. Each job returns its result or an error.

use std::any::Any;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SendError, Sender, TryRecvError};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::sync::{lock, wait_until, wait_while};

/// The most queued jobs; more are refused, so that the queue cannot exhaust memory.
const CAPACITY: usize = 1 << 16;

/// The time that a drop waits for the thread.
const DROP_TIMEOUT: Duration = Duration::from_secs(5);

/// A job without a result.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::worker::WorkerError;
///
/// let error = WorkerError::Panicked("index out of bounds".to_owned());
/// assert_eq!(error.to_string(), "its thread panicked: index out of bounds");
/// assert!(!matches!(error, WorkerError::Ended));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkerError {
    /// This job or an earlier one panicked with this message.
    #[error("its thread panicked: {0}")]
    Panicked(String),
    /// The worker ended before the job ran.
    #[error("its thread has ended")]
    Ended,
    /// The queue is full.
    #[error("{CAPACITY} jobs are queued already: wait for their answers first")]
    Full,
    /// The timeout passed; the job continues.
    #[error("its thread has not answered within {0:?}")]
    Late(Duration),
}

/// A thread that owns a state `S` and runs jobs in the order of submission.
///
/// After a panic in a job, that job and all later ones fail with the panic's message, and the state is dropped, because
/// it may be inconsistent. Dropping the worker waits at most 5 seconds for queued jobs; a thread that hangs is detached.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use std::time::Duration;
/// use everburn::collectives::worker::{Worker, WorkerError};
///
/// let worker = Worker::start("adder", 40, |_| ())?;
/// let limit = Duration::from_secs(60);
/// assert_eq!(worker.ask(|sum| { *sum += 2; *sum }).wait_within(limit), Ok(42));
/// assert_eq!(
///     worker.ask(|_| panic!("no more")).wait_within(limit),
///     Err::<(), _>(WorkerError::Panicked("no more".into()))
/// );
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Worker<S> {
    /// `None` when the worker is to end.
    queue: Option<Sender<Task<S>>>,
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

/// A job together with the callback for its result.
type Task<S> = Box<dyn FnOnce(&mut ThreadState<S>) + Send>;

/// Called with the message of a panic.
type OnPanic = Box<dyn FnOnce(&str) + Send>;

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The number of unfinished jobs.
    unfinished: usize,
    has_ended: bool,
}

impl<S: Send + 'static> Worker<S> {
    /// Starts a thread of this name. `on_panic` is called on it with the message of a panic, before any job returns
    /// that error.
    ///
    /// # Errors
    /// The operating system refuses the thread.
    pub fn start(
        name: impl Into<String>,
        state: S,
        on_panic: impl FnOnce(&str) + Send + 'static,
    ) -> io::Result<Self> {
        let (queue, tasks) = mpsc::channel();
        let shared = Arc::new(Shared::default());
        let ends = EndsOnDrop(shared.clone());
        let thread_state = ThreadState {
            state: Some(state),
            on_panic: Some(Box::new(on_panic)),
            error: WorkerError::Ended,
        };
        let thread = thread::Builder::new().name(name.into()).spawn(move || {
            // Dropped after the state; signals the end of the thread.
            let ends = ends;
            run_tasks(&tasks, thread_state, &ends.0);
        })?;
        Ok(Self {
            queue: Some(queue),
            thread: Some(thread),
            shared,
        })
    }
}

fn run_tasks<S>(tasks: &Receiver<Task<S>>, mut thread_state: ThreadState<S>, shared: &Shared) {
    while let Ok(task) = tasks.recv() {
        // Only the result callback can panic here; panics of jobs are caught before.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| task(&mut thread_state))) {
            thread_state.fail(&*panic);
        }
        lock(&shared.state).unfinished -= 1;
        shared.changed.notify_all();
    }
}

impl<S> Worker<S> {
    /// Queues `job`. `answer` is called with its result, exactly once, usually on the worker's thread.
    pub fn submit<R>(
        &self,
        job: impl FnOnce(&mut S) -> R + Send + 'static,
        answer: impl FnOnce(Result<R, WorkerError>) + Send + 'static,
    ) {
        let mut state = lock(&self.shared.state);
        let is_full = state.unfinished >= CAPACITY;
        state.unfinished += usize::from(!is_full);
        drop(state);
        if is_full {
            return answer(Err(WorkerError::Full));
        }
        let task: Task<S> = Box::new(move |thread_state| {
            let done = thread_state.call(job);
            answer(done);
        });
        let sent = match &self.queue {
            Some(queue) => queue.send(task),
            None => Err(SendError(task)),
        };
        if let Err(SendError(task)) = sent {
            task(&mut ThreadState::ended());
            lock(&self.shared.state).unfinished -= 1;
            self.shared.changed.notify_all();
        }
    }

    /// Queues `job` and returns a handle of its result.
    pub fn ask<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut S) -> R + Send + 'static,
    ) -> Answer<R> {
        let (sender, receiver) = mpsc::channel();
        self.submit(job, move |done| {
            // The receiver may have been dropped.
            let _ = sender.send(done);
        });
        Answer(receiver)
    }

    /// Whether the queue is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        lock(&self.shared.state).unfinished >= CAPACITY
    }

    /// Waits until all jobs are finished; `timeout` applies to each job.
    ///
    /// # Errors
    /// The number of unfinished jobs, when none has finished within `timeout`.
    pub fn settle(&self, timeout: Duration) -> Result<(), usize> {
        let mut state = lock(&self.shared.state);
        let mut deadline = Instant::now() + timeout;
        while state.unfinished > 0 {
            let before = state.unfinished;
            let (locked, late) = wait_until(&self.shared.changed, state, deadline);
            state = locked;
            if state.unfinished != before {
                deadline = Instant::now() + timeout;
            } else if late {
                return Err(before);
            }
        }
        Ok(())
    }

    /// Closes the queue and waits at most `limit` for the thread to finish queued jobs and end. Returns whether it has
    /// ended.
    pub fn end_within(&mut self, limit: Duration) -> bool {
        drop(self.queue.take());
        let own = thread::current().id();
        if self
            .thread
            .as_ref()
            .is_some_and(|thread| thread.thread().id() == own)
        {
            // Called from a job of this worker, which cannot wait for itself.
            return false;
        }
        let deadline = Instant::now() + limit;
        let Shared { state, changed } = &*self.shared;
        let (state, late) = wait_while(changed, lock(state), deadline, |it| !it.has_ended);
        if late {
            return false;
        }
        drop(state);
        if let Some(thread) = self.thread.take() {
            // Returns at once: the thread has signalled its end.
            let _ = thread.join();
        }
        true
    }
}

impl<S> Drop for Worker<S> {
    fn drop(&mut self) {
        // Otherwise `end_within` has been called before.
        if self.queue.is_some() {
            self.end_within(DROP_TIMEOUT);
        }
    }
}

impl<S> fmt::Debug for Worker<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("thread", &self.thread)
            .field("unfinished", &lock(&self.shared.state).unfinished)
            .finish()
    }
}

/// The pending result of a job.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::worker::{Answer, Worker};
///
/// let worker = Worker::start("counter", 0, |_| ())?;
/// let answer: Answer<u32> = worker.ask(|count| { *count += 1; *count });
/// // Other work can continue here.
/// assert_eq!(answer.wait(), Ok(1));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "errors of the job are lost unless its result is waited for"]
pub struct Answer<R>(Receiver<Result<R, WorkerError>>);

impl<R> Answer<R> {
    /// Waits for the result of the job.
    ///
    /// # Errors
    /// The panic or end of the worker; [`WorkerError::Late`] after `limit`.
    pub fn wait_within(self, limit: Duration) -> Result<R, WorkerError> {
        match self.0.recv_timeout(limit) {
            Ok(done) => done,
            Err(RecvTimeoutError::Timeout) => Err(WorkerError::Late(limit)),
            Err(RecvTimeoutError::Disconnected) => Err(WorkerError::Ended),
        }
    }

    /// The result of a job, without a timeout.
    ///
    /// # Errors
    /// The panic or end of the worker.
    pub fn wait(self) -> Result<R, WorkerError> {
        self.0.recv().unwrap_or(Err(WorkerError::Ended))
    }

    /// The result of the job, if it has finished.
    ///
    /// # Errors
    /// This handle, if the job is unfinished.
    pub fn poll(self) -> Result<Result<R, WorkerError>, Self> {
        match self.0.try_recv() {
            Ok(done) => Ok(done),
            Err(TryRecvError::Empty) => Err(self),
            Err(TryRecvError::Disconnected) => Ok(Err(WorkerError::Ended)),
        }
    }
}

struct ThreadState<S> {
    /// `None` after a panic.
    state: Option<S>,
    on_panic: Option<OnPanic>,
    /// The error of all jobs once there is no state.
    error: WorkerError,
}

impl<S> ThreadState<S> {
    fn ended() -> Self {
        Self {
            state: None,
            on_panic: None,
            error: WorkerError::Ended,
        }
    }

    fn call<R>(&mut self, job: impl FnOnce(&mut S) -> R) -> Result<R, WorkerError> {
        let Some(state) = &mut self.state else {
            return Err(self.error.clone());
        };
        catch_unwind(AssertUnwindSafe(|| job(state))).map_err(|panic| {
            self.fail(&*panic);
            self.error.clone()
        })
    }

    fn fail(&mut self, panic: &(dyn Any + Send)) {
        let message = message_of(panic);
        if let Some(on_panic) = self.on_panic.take() {
            on_panic(message);
        }
        self.error = WorkerError::Panicked(message.to_owned());
        self.state = None;
    }
}

/// The message of a panic.
pub fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message")
}

struct EndsOnDrop(Arc<Shared>);

impl Drop for EndsOnDrop {
    fn drop(&mut self) {
        lock(&self.0.state).has_ended = true;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests;
