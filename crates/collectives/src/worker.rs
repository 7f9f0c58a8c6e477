//! A thread with a queue: jobs go in, and each is answered, with what came of it or why nothing did.

use std::any::Any;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SendError, Sender, TryRecvError};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::sync::{lock, wait_until};

/// The most queued jobs; more are refused, so that the queue cannot exhaust memory.
const CAPACITY: usize = 1 << 16;

/// How long dropping a worker waits for its thread.
const DROP_PATIENCE: Duration = Duration::from_secs(5);

/// Why nothing came of a job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkerError {
    /// This job, or one before it, panicked: what the panic said.
    #[error("its thread panicked: {0}")]
    Panicked(String),
    /// The worker was dropped, or ended, before the job's turn came.
    #[error("its thread has ended")]
    Ended,
    /// The queue has as many jobs as it takes.
    #[error("{CAPACITY} jobs are queued already: wait for their answers first")]
    Full,
    /// The answer did not come in time; the job goes on.
    #[error("its thread has not answered within {0:?}")]
    Late(Duration),
}

/// A thread that owns a state `S` and works off jobs in the order in which they are submitted.
///
/// A job that panics is answered at once with the panic's message, and so are all that come after it: the state may be
/// half changed, and is dropped. Dropping the worker lets it finish what is queued, for 5 seconds at most; a thread that
/// hangs is left to itself.
///
/// ```
/// use std::time::Duration;
/// use everburn_collectives::worker::{Worker, WorkerError};
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

/// A job and what its answer goes to.
type Task<S> = Box<dyn FnOnce(&mut Seat<S>) + Send>;

/// Called with the message of a panic.
type OnPanic = Box<dyn FnOnce(&str) + Send>;

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// How many jobs are not answered yet.
    under_way: usize,
    has_ended: bool,
}

impl<S: Send + 'static> Worker<S> {
    /// Starts a thread of this name. `on_panic` is called there with the message of a panic, before any job is answered
    /// with it.
    ///
    /// # Errors
    /// What the system says when it starts no thread.
    pub fn start(
        name: impl Into<String>,
        state: S,
        on_panic: impl FnOnce(&str) + Send + 'static,
    ) -> io::Result<Self> {
        let (queue, tasks) = mpsc::channel();
        let shared = Arc::new(Shared::default());
        let ends = EndsOnDrop(shared.clone());
        let seat = Seat {
            state: Some(state),
            on_panic: Some(Box::new(on_panic)),
            error: WorkerError::Ended,
        };
        let thread = thread::Builder::new().name(name.into()).spawn(move || {
            // Dropped after the state; signals the end of the thread.
            let ends = ends;
            work_off(&tasks, seat, &ends.0);
        })?;
        Ok(Self {
            queue: Some(queue),
            thread: Some(thread),
            shared,
        })
    }
}

fn work_off<S>(tasks: &Receiver<Task<S>>, mut seat: Seat<S>, shared: &Shared) {
    while let Ok(task) = tasks.recv() {
        // What panics here is what takes an answer: the jobs themselves are caught.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| task(&mut seat))) {
            seat.give_up(&*panic);
        }
        lock(&shared.state).under_way -= 1;
        shared.changed.notify_all();
    }
}

impl<S> Worker<S> {
    /// Queues `job`. Its answer is taken on the worker's thread, exactly once.
    pub fn submit<R>(
        &self,
        job: impl FnOnce(&mut S) -> R + Send + 'static,
        answer: impl FnOnce(Result<R, WorkerError>) + Send + 'static,
    ) {
        let mut state = lock(&self.shared.state);
        let is_full = state.under_way >= CAPACITY;
        state.under_way += usize::from(!is_full);
        drop(state);
        if is_full {
            return answer(Err(WorkerError::Full));
        }
        let task: Task<S> = Box::new(move |seat| {
            let done = seat.call(job);
            answer(done);
        });
        let sent = match &self.queue {
            Some(queue) => queue.send(task),
            None => Err(SendError(task)),
        };
        if let Err(SendError(task)) = sent {
            task(&mut Seat::gone());
            lock(&self.shared.state).under_way -= 1;
            self.shared.changed.notify_all();
        }
    }

    /// Queues `job`, and hands out what it will come to.
    pub fn ask<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut S) -> R + Send + 'static,
    ) -> Answer<R> {
        let (sender, receiver) = mpsc::channel();
        self.submit(job, move |done| {
            // Nobody may be waiting any more.
            let _ = sender.send(done);
        });
        Answer(receiver)
    }

    /// Whether the queue has as many jobs as it takes.
    #[must_use]
    pub fn is_full(&self) -> bool {
        lock(&self.shared.state).under_way >= CAPACITY
    }

    /// Waits until all jobs are answered, as long as one after the other is within `patience`.
    ///
    /// # Errors
    /// How many are left when none was answered for that long.
    pub fn settle(&self, patience: Duration) -> Result<(), usize> {
        let mut state = lock(&self.shared.state);
        let mut deadline = Instant::now() + patience;
        while state.under_way > 0 {
            let before = state.under_way;
            let (locked, late) = wait_until(&self.shared.changed, state, deadline);
            state = locked;
            if state.under_way != before {
                deadline = Instant::now() + patience;
            } else if late {
                return Err(before);
            }
        }
        Ok(())
    }

    /// Lets the thread finish what is queued and end, and waits for that for `limit`; whether it has ended. No more jobs
    /// are taken.
    pub fn end_within(&mut self, limit: Duration) -> bool {
        drop(self.queue.take());
        let own = thread::current().id();
        if self
            .thread
            .as_ref()
            .is_some_and(|thread| thread.thread().id() == own)
        {
            // A job that has the worker cannot wait for itself.
            return false;
        }
        let deadline = Instant::now() + limit;
        let mut state = lock(&self.shared.state);
        while !state.has_ended {
            let (locked, late) = wait_until(&self.shared.changed, state, deadline);
            state = locked;
            if late && !state.has_ended {
                return false;
            }
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
        // Who has asked for the end has waited for it.
        if self.queue.is_some() {
            self.end_within(DROP_PATIENCE);
        }
    }
}

impl<S> fmt::Debug for Worker<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("thread", &self.thread)
            .field("under_way", &lock(&self.shared.state).under_way)
            .finish()
    }
}

/// What a job will come to.
#[derive(Debug)]
#[must_use = "a job fails unseen unless its answer is waited for"]
pub struct Answer<R>(Receiver<Result<R, WorkerError>>);

impl<R> Answer<R> {
    /// What came of the job, once it is there.
    ///
    /// # Errors
    /// Why nothing came; [`WorkerError::Late`] after `limit`.
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

    /// What came of the job if it is there, else this answer again.
    ///
    /// # Errors
    /// The answer, of which nothing has come yet.
    pub fn poll(self) -> Result<Result<R, WorkerError>, Self> {
        match self.0.try_recv() {
            Ok(done) => Ok(done),
            Err(TryRecvError::Empty) => Err(self),
            Err(TryRecvError::Disconnected) => Ok(Err(WorkerError::Ended)),
        }
    }
}

/// What the thread works with.
struct Seat<S> {
    /// `None` after a panic.
    state: Option<S>,
    on_panic: Option<OnPanic>,
    /// What jobs are answered with where there is no state.
    error: WorkerError,
}

impl<S> Seat<S> {
    /// That of a thread that has ended.
    fn gone() -> Self {
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
            self.give_up(&*panic);
            self.error.clone()
        })
    }

    fn give_up(&mut self, panic: &(dyn Any + Send)) {
        let message = message_of(panic);
        if let Some(on_panic) = self.on_panic.take() {
            on_panic(message);
        }
        self.error = WorkerError::Panicked(message.to_owned());
        self.state = None;
    }
}

/// What a panic said.
///
/// ```
/// use everburn_collectives::worker::message_of;
///
/// let panic = std::panic::catch_unwind(|| panic!("no such device")).unwrap_err();
/// assert_eq!(message_of(&*panic), "no such device");
/// ```
pub fn message_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("it did not say why")
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
