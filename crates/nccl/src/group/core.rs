//! What a group's handle, its operations under way and its threads share.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::config::NcclConfig;
use super::control::Control;
use super::error::NcclError;
use super::news::News;
use super::operation::Operation;
use super::owned::{OwnedEvent, OwnedStream};
use super::status::Status;
use super::turn::{Pause, Turn, lock, wait_until};
use crate::api::{Communicator, NcclApi};
use crate::error::LibraryError;

/// How long whoever finds a failure that another thread is just telling of waits for it: longer than
/// the telling takes (`failing.rs`).
const FORMING: Duration = Duration::from_secs(60);

/// One call of this rank: what it was, and where in the run.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) operation: String,
    pub(crate) sequence: u64,
    pub(crate) step: u64,
    pub(crate) started: Instant,
    /// The job rank at the other end, if there is one only.
    pub(crate) peer: Option<usize>,
}

/// An operation on the GPU, or on its way there.
///
/// It is under way, and owns the buffers, before the first call that names them: a call that fails may
/// have put something on the stream all the same.
pub(crate) struct Flight {
    pub(crate) place: Place,
    /// Over when what it waits for on this GPU is.
    pub(crate) ready: Option<OwnedEvent>,
    /// Over when it is; `None` if it had nothing to do.
    pub(crate) done: Option<OwnedEvent>,
    /// `done` was recorded behind it. Before that the event says nothing.
    marked: AtomicBool,
    /// What it is, with the buffers, which are held until then.
    operation: Mutex<Option<Operation>>,
    clock: Mutex<Clock>,
}

/// Since when an operation is waited for. The others are to blame from when this GPU has come to it.
#[derive(Default)]
struct Clock {
    /// All before it are over.
    turn: Option<Instant>,
    /// What it waits for on this GPU is over too.
    ready: Option<Instant>,
}

impl Flight {
    pub(crate) fn new(
        place: Place,
        ready: Option<OwnedEvent>,
        done: Option<OwnedEvent>,
        operation: Operation,
    ) -> Self {
        Self {
            place,
            ready,
            done,
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

    /// All that it is has been put on the stream, and `done` was recorded behind that.
    pub(crate) fn mark(&self) {
        self.marked.store(true, Ordering::Release);
    }

    /// What is put on the stream. Nobody releases it meanwhile.
    pub(crate) fn operation(&self) -> MutexGuard<'_, Option<Operation>> {
        lock(&self.operation)
    }

    pub(crate) fn is_ready(&self) -> Result<bool, LibraryError> {
        self.ready.as_ref().map_or(Ok(true), OwnedEvent::is_over)
    }

    /// For how long it has been waited for: first for what is before it on this GPU, then anew for the
    /// others. To be asked when all before it are over.
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

    /// Leaves the buffers' owners alive for ever: the GPU may still write there.
    pub(crate) fn leak(&self) {
        std::mem::forget(lock(&self.operation).take());
    }
}

/// Whether the group can be used.
pub(crate) enum Standing {
    Well,
    /// A thread is finding out and telling the others.
    Failing,
    Failed {
        error: Arc<NcclError>,
        /// When the operation began whose error it is.
        of: Option<Instant>,
    },
    Left,
}

pub(crate) struct State {
    pub(crate) standing: Standing,
    /// In the order of issue, which is that of the stream.
    pub(crate) under_way: VecDeque<Arc<Flight>>,
    /// How many operations are over.
    pub(crate) finished: u64,
    /// The newest operation, for the others to read.
    pub(crate) last: String,
    /// The group's threads are to end.
    pub(crate) closing: bool,
}

pub(crate) struct Core {
    pub(crate) api: Arc<dyn NcclApi>,
    pub(crate) config: NcclConfig,
    pub(crate) control: Option<Arc<dyn Control>>,
    /// `None` in a group of one.
    pub(crate) news: Option<Arc<News>>,
    pub(crate) stream: OwnedStream,
    pub(crate) step: AtomicU64,
    /// How many collectives this rank has issued.
    pub(crate) issued: AtomicU64,
    pub(crate) communicator: Turn<Option<Communicator>>,
    /// NCCL has said that the communicator is aborted: it puts nothing on the stream any more.
    pub(crate) aborted: AtomicBool,
    /// Whose turn it is to issue operations.
    pub(crate) issuing: Turn<()>,
    pub(crate) state: Mutex<State>,
    pub(crate) changed: Condvar,
}

impl Core {
    pub(crate) fn new(
        api: Arc<dyn NcclApi>,
        stream: OwnedStream,
        config: NcclConfig,
        control: Option<Arc<dyn Control>>,
        news: Option<Arc<News>>,
    ) -> Self {
        let state = State {
            standing: Standing::Well,
            under_way: VecDeque::new(),
            finished: 0,
            last: String::new(),
            closing: false,
        };
        Self {
            api,
            config,
            control,
            news,
            stream,
            step: AtomicU64::new(0),
            issued: AtomicU64::new(0),
            communicator: Turn::new(None),
            aborted: AtomicBool::new(false),
            issuing: Turn::new(()),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    pub(crate) fn job_rank(&self) -> usize {
        self.config.job_rank()
    }

    /// The call that is about to be made.
    pub(crate) fn place(&self, operation: String, peer: Option<usize>) -> Place {
        Place {
            operation,
            sequence: self.issued.load(Ordering::Acquire),
            step: self.step.load(Ordering::Relaxed),
            started: Instant::now(),
            peer: peer.and_then(|peer| self.config.job_ranks.get(peer).copied()),
        }
    }

    /// The operation whose turn it is, or that there is none.
    pub(crate) fn present(&self) -> Place {
        let front = lock(&self.state).under_way.front().cloned();
        match front {
            Some(flight) => flight.place.clone(),
            None => self.place("no operation".to_owned(), None),
        }
    }

    /// Refuses what is called on a group that has failed or been left. Does not wait, unless the
    /// failure is just being told of.
    pub(crate) fn standing(&self, place: &Place) -> Result<(), NcclError> {
        let deadline = Instant::now() + FORMING;
        let mut state = lock(&self.state);
        loop {
            match &state.standing {
                Standing::Well => return Ok(()),
                Standing::Failing => {}
                Standing::Failed { error, of } if *of == Some(place.started) => {
                    return Err(NcclError::clone(error));
                }
                Standing::Failed { error, .. } => {
                    return Err(NcclError::Poisoned {
                        rank: self.job_rank(),
                        operation: place.operation.clone(),
                        first: error.clone(),
                    });
                }
                Standing::Left => {
                    return Err(NcclError::Left {
                        rank: self.job_rank(),
                        operation: place.operation.clone(),
                    });
                }
            }
            let (locked, late) = wait_until(&self.changed, state, deadline);
            state = locked;
            if late {
                return Err(self.no_answer(place));
            }
        }
    }

    pub(crate) fn is_well(&self) -> bool {
        matches!(lock(&self.state).standing, Standing::Well)
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
    pub(crate) fn settle(&self, place: &Place, deadline: Instant) -> Result<(), NcclError> {
        let pause = Pause::new();
        loop {
            self.standing(place)?;
            match self.async_status() {
                Status::Success => return Ok(()),
                Status::InProgress if Instant::now() < deadline => pause.rest(deadline),
                Status::InProgress => return Err(self.late(place)),
                wrong => return Err(self.refused(place, wrong)),
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
    /// what the call at `place` is told of it.
    pub(crate) fn keep_deadline(&self, place: &Place) -> Result<(), NcclError> {
        let failed = |source| self.gpu_failed(place, source);
        self.retire().map_err(failed)?;
        let front = lock(&self.state).under_way.front().cloned();
        let Some(front) = front else { return Ok(()) };
        let elapsed = front.elapsed().map_err(failed)?;
        if elapsed > self.config.timeout {
            let error = self.flight_late(&front, elapsed);
            self.standing(place)?;
            return Err(error);
        }
        Ok(())
    }

    /// Waits until nothing is under way; whether that was before `deadline`.
    pub(crate) fn drain(&self, deadline: Instant) -> Result<bool, LibraryError> {
        let pause = Pause::new();
        loop {
            self.retire()?;
            if lock(&self.state).under_way.is_empty() {
                return Ok(true);
            }
            if Instant::now() >= deadline || !self.is_well() {
                return Ok(false);
            }
            pause.rest(deadline);
        }
    }
}
