//! The state shared by a group's handle, its operations in flight and its threads.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use everburn_collectives::group::CollectiveError;
use everburn_collectives::sync::{lock, wait_until};

use super::config::NcclConfig;
use super::error::NcclError;
use super::failure_monitor::FailureMonitor;
use super::failure_notifier::FailureNotifier;
use super::operation::Operation;
use super::owned::{OwnedEvent, OwnedStream};
use super::status::Status;
use super::timed_mutex::{Backoff, TimedMutex};
use crate::api::{Communicator, NcclApi};
use crate::error::LibraryError;

/// How long to wait for a failure that another thread is diagnosing: longer than that takes (`failing.rs`).
const FORMING: Duration = Duration::from_secs(60);

/// The context of a call on this rank, for errors.
#[derive(Debug, Clone)]
pub(crate) struct OpContext {
    pub(crate) operation: String,
    pub(crate) sequence: u64,
    pub(crate) step: u64,
    pub(crate) started: Instant,
    /// The job rank at the other end, if there is one only.
    pub(crate) peer: Option<usize>,
}

/// An operation in flight: on the GPU, or about to be enqueued.
///
/// It owns the buffers before the first call that uses them: a call that fails may still have enqueued work.
pub(crate) struct InFlightOperation {
    pub(crate) context: OpContext,
    /// Completes when this GPU has reached the operation.
    pub(crate) ready: Option<OwnedEvent>,
    /// Completes with the operation; `None` if it had nothing to do.
    pub(crate) done: Option<OwnedEvent>,
    /// NCCL has come back from the call that enqueues it.
    returned: AtomicBool,
    /// `done` has been recorded after it. Before that the event has no meaning.
    marked: AtomicBool,
    /// The operation with its buffers, which are held until it completes.
    operation: Mutex<Option<Operation>>,
    clock: Mutex<Clock>,
}

/// Since when an operation has been waited for. Other ranks are blamed only from when this GPU has reached it.
#[derive(Default)]
struct Clock {
    /// All operations before it are complete.
    turn: Option<Instant>,
    /// This GPU has reached it.
    ready: Option<Instant>,
}

impl InFlightOperation {
    pub(crate) fn new(
        context: OpContext,
        ready: Option<OwnedEvent>,
        done: Option<OwnedEvent>,
        operation: Operation,
    ) -> Self {
        Self {
            context,
            ready,
            done,
            returned: AtomicBool::new(false),
            marked: AtomicBool::new(false),
            operation: Mutex::new(Some(operation)),
            clock: Mutex::default(),
        }
    }

    pub(crate) fn is_over(&self) -> Result<bool, LibraryError> {
        match &self.done {
            None => Ok(true),
            Some(done) => Ok(self.marked.load(Ordering::Acquire) && done.is_over()?),
        }
    }

    /// NCCL has come back from the call that enqueues it.
    pub(crate) fn call_returned(&self) {
        self.returned.store(true, Ordering::Release);
    }

    /// Whether NCCL is still in the call that enqueues it.
    pub(crate) fn is_in_the_call(&self) -> bool {
        !self.returned.load(Ordering::Acquire)
    }

    /// The whole operation has been enqueued, and `done` recorded after it.
    pub(crate) fn mark(&self) {
        self.marked.store(true, Ordering::Release);
    }

    /// The operation to enqueue, locked against release.
    pub(crate) fn operation(&self) -> MutexGuard<'_, Option<Operation>> {
        lock(&self.operation)
    }

    pub(crate) fn is_ready(&self) -> Result<bool, LibraryError> {
        self.ready.as_ref().map_or(Ok(true), OwnedEvent::is_over)
    }

    /// How long it has been waited for: first for this GPU, then anew for the other ranks. Call it when all operations
    /// before it are complete.
    pub(crate) fn elapsed(&self) -> Result<Duration, LibraryError> {
        let mut clock = lock(&self.clock);
        let turn = *clock.turn.get_or_insert_with(Instant::now);
        if clock.ready.is_none() && self.is_ready()? {
            clock.ready = Some(Instant::now());
        }
        Ok(clock.ready.unwrap_or(turn).elapsed())
    }

    fn release(&self) {
        drop(lock(&self.operation).take());
    }

    /// Leaks the buffers' owners: the GPU may still write there.
    pub(crate) fn leak(&self) {
        std::mem::forget(lock(&self.operation).take());
    }
}

/// Whether the group can be used.
pub(crate) enum Health {
    Well,
    /// A thread is diagnosing the failure and notifying the others.
    Failing,
    Failed {
        error: Arc<NcclError>,
        /// When the failed operation began.
        of: Option<Instant>,
    },
    Left,
}

pub(crate) struct State {
    pub(crate) health: Health,
    /// In the order of issue, which is that of the stream.
    pub(crate) under_way: VecDeque<Arc<InFlightOperation>>,
    /// How many operations are complete.
    pub(crate) finished: u64,
    /// The newest operation, for heartbeats.
    pub(crate) last: String,
    /// The group's threads must end.
    pub(crate) closing: bool,
}

pub(crate) struct Core {
    pub(crate) api: Arc<dyn NcclApi>,
    pub(crate) config: NcclConfig,
    pub(crate) monitor: Option<Arc<dyn FailureMonitor>>,
    /// `None` in a group of one.
    pub(crate) notifier: Option<Arc<FailureNotifier>>,
    pub(crate) stream: OwnedStream,
    pub(crate) step: AtomicU64,
    /// How many collectives this rank has issued.
    pub(crate) issued: AtomicU64,
    pub(crate) communicator: TimedMutex<Option<Communicator>>,
    /// NCCL has aborted the communicator: it enqueues nothing any more.
    pub(crate) aborted: AtomicBool,
    /// Held by the thread that issues operations.
    pub(crate) issuing: TimedMutex<()>,
    pub(crate) state: Mutex<State>,
    pub(crate) changed: Condvar,
}

impl Core {
    pub(crate) fn new(
        api: Arc<dyn NcclApi>,
        stream: OwnedStream,
        config: NcclConfig,
        monitor: Option<Arc<dyn FailureMonitor>>,
        notifier: Option<Arc<FailureNotifier>>,
    ) -> Self {
        let state = State {
            health: Health::Well,
            under_way: VecDeque::new(),
            finished: 0,
            last: String::new(),
            closing: false,
        };
        Self {
            api,
            config,
            monitor,
            notifier,
            stream,
            step: AtomicU64::new(0),
            issued: AtomicU64::new(0),
            communicator: TimedMutex::new(None),
            aborted: AtomicBool::new(false),
            issuing: TimedMutex::new(()),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn job_rank(&self) -> usize {
        self.config.job_rank()
    }

    /// The call that is about to be made.
    pub(crate) fn context(&self, operation: String, peer: Option<usize>) -> OpContext {
        OpContext {
            operation,
            sequence: self.issued.load(Ordering::Acquire),
            step: self.step.load(Ordering::Relaxed),
            started: Instant::now(),
            peer: peer.and_then(|peer| self.config.job_ranks.get(peer).copied()),
        }
    }

    /// The current operation, or that there is none.
    pub(crate) fn present(&self) -> OpContext {
        let front = lock(&self.state).under_way.front().cloned();
        match front {
            Some(in_flight) => in_flight.context.clone(),
            None => self.context("no operation".to_owned(), None),
        }
    }

    /// Refuses what is called on a group that has failed or been left. Does not wait, unless the
    /// failure is just being told of.
    pub(crate) fn health(&self, context: &OpContext) -> Result<(), NcclError> {
        let deadline = Instant::now() + FORMING;
        let mut state = lock(&self.state);
        loop {
            match &state.health {
                Health::Well => return Ok(()),
                Health::Failing => {}
                Health::Failed { error, of } if *of == Some(context.started) => {
                    return Err(NcclError::clone(error));
                }
                Health::Failed { error, .. } => {
                    return Err(NcclError::Poisoned {
                        rank: self.job_rank(),
                        operation: context.operation.clone(),
                        first: error.clone(),
                    });
                }
                Health::Left => {
                    let (rank, operation) = (self.job_rank(), context.operation.clone());
                    return Err(CollectiveError::Destroyed { rank, operation }.into());
                }
            }
            let (locked, late) = wait_until(&self.changed, state, deadline);
            state = locked;
            if late {
                return Err(self.no_answer(context));
            }
        }
    }

    pub(crate) fn is_well(&self) -> bool {
        matches!(lock(&self.state).health, Health::Well)
    }

    /// What NCCL says of the communicator; `InProgress` where there is none, or another thread is at it.
    pub(crate) fn async_status(&self) -> Status {
        let communicator = self.communicator.take_until(Instant::now());
        match communicator.as_deref() {
            Some(Some(communicator)) => self.api.async_error(communicator),
            // Another thread has it, or has just given it up: who asks again will hear.
            _ => Status::InProgress,
        }
    }

    /// Waits until the communicator is ready for the next call. It fails the group when it does not.
    pub(crate) fn settle(&self, context: &OpContext, deadline: Instant) -> Result<(), NcclError> {
        let backoff = Backoff::new();
        loop {
            self.health(context)?;
            match self.async_status() {
                Status::Success => return Ok(()),
                Status::InProgress if Instant::now() < deadline => backoff.sleep(deadline),
                Status::InProgress => return Err(self.late(context)),
                wrong => return Err(self.refused(context, wrong)),
            }
        }
    }

    /// Takes note of what is over, from the oldest on.
    pub(crate) fn retire(&self) -> Result<(), LibraryError> {
        loop {
            let front = lock(&self.state).under_way.front().cloned();
            let Some(front) = front else { return Ok(()) };
            if !front.is_over()? {
                return Ok(());
            }
            // The buffers' owners go first: a thread that finds the operation retired returns from its
            // wait, and its caller may count on their being gone. Two that are here at once wait for
            // one another.
            front.release();
            let mut state = lock(&self.state);
            // Another thread may have been quicker.
            let same = state
                .under_way
                .front()
                .is_some_and(|now| Arc::ptr_eq(now, &front));
            if same {
                state.under_way.pop_front();
                state.finished += 1;
            }
        }
    }

    /// Fails the group if the operation whose turn it is has been waited for too long; the error is
    /// that of the call at `context`.
    pub(crate) fn keep_deadline(&self, context: &OpContext) -> Result<(), NcclError> {
        let failed = |source| self.gpu_failed(context, source);
        self.retire().map_err(failed)?;
        let front = lock(&self.state).under_way.front().cloned();
        let Some(front) = front else { return Ok(()) };
        let elapsed = front.elapsed().map_err(failed)?;
        if elapsed > self.config.timeout {
            let error = self.in_flight_late(&front, elapsed);
            self.health(context)?;
            return Err(error);
        }
        Ok(())
    }

    /// Waits until nothing is under way; whether that was before `deadline`.
    pub(crate) fn drain(&self, deadline: Instant) -> Result<bool, LibraryError> {
        let backoff = Backoff::new();
        loop {
            self.retire()?;
            if lock(&self.state).under_way.is_empty() {
                return Ok(true);
            }
            if Instant::now() >= deadline || !self.is_well() {
                return Ok(false);
            }
            backoff.sleep(deadline);
        }
    }
}
