//! The state shared by the backend's handle, its operations in flight and its thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use everburn_collectives::group::{CollectiveError, DeviceCall, ProcessGroup};
use everburn_collectives::sync::lock;

use super::operation::Operation;
use super::owned::{OwnedEvent, OwnedStream};
use super::status::Status;
use super::timed_mutex::{Backoff, TimedMutex, bounded};
use crate::api::{Communicator, NcclApi};
use crate::error::LibraryError;

/// How long a thread that is in a call of NCCL may keep the communicator from being aborted. Calls
/// do not wait for other ranks, so this is long.
const IN_A_CALL: Duration = Duration::from_secs(5);

/// How long NCCL may take to abort, or the group's timeout if that is shorter: it stops threads and
/// frees memory.
const ABORTING: Duration = Duration::from_secs(10);

/// How long a failure that NCCL has found waits for its reason from the other ranks.
const OTHERS: Duration = Duration::from_secs(1);

const OWN_WORK: &str = "this rank's own GPU has not come to it: what was enqueued before is still under way; check with \
                        `nvidia-smi` whether it computes, and `dmesg` for Xid";

pub(super) const NO_ANSWER: &str = "NCCL has not come back from the call; check the other ranks' logs for the first error, \
                                    and run again with NCCL_DEBUG=INFO";

/// An operation in flight: on the GPU, or about to be enqueued.
///
/// It owns the buffers before the first call that uses them: a call that fails may still have enqueued work.
pub(crate) struct InFlightOperation {
    pub(crate) call: DeviceCall,
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
        call: DeviceCall,
        ready: Option<OwnedEvent>,
        done: Option<OwnedEvent>,
        operation: Operation,
    ) -> Self {
        Self {
            call,
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

    /// The whole operation has been enqueued, and `done` recorded after it.
    pub(crate) fn mark(&self) {
        self.marked.store(true, Ordering::Release);
    }

    /// The operation to enqueue, locked against release.
    pub(crate) fn operation(&self) -> MutexGuard<'_, Option<Operation>> {
        lock(&self.operation)
    }

    /// Fails the group if it waits for longer than `timeout`: for NCCL, for this GPU, then anew for the other ranks. Call
    /// it when all operations before it are complete.
    fn keep_deadline(&self, timeout: Duration) -> Result<(), CollectiveError> {
        let mut clock = lock(&self.clock);
        let turn = *clock.turn.get_or_insert_with(Instant::now);
        if clock.ready.is_none() {
            let ready = self.ready.as_ref().map_or(Ok(true), OwnedEvent::is_over);
            let ready = ready.map_err(|source| self.call.fail(source.to_string()))?;
            clock.ready = ready.then(Instant::now);
        }
        let ready = clock.ready;
        drop(clock);
        let is_late = ready.unwrap_or(turn).elapsed() > timeout;
        if is_late && !self.returned.load(Ordering::Acquire) {
            // Neither the other ranks nor the GPU are to blame.
            return Err(self.call.fail(NO_ANSWER.to_owned()));
        }
        match ready {
            Some(ready) => self.call.waits_since(ready),
            None if is_late => Err(self.call.fail(OWN_WORK.to_owned())),
            None => Ok(()),
        }
    }

    /// The buffers' owners go.
    fn release(&self) {
        drop(lock(&self.operation).take());
    }

    /// Leaks the buffers' owners: the GPU may still write there.
    pub(crate) fn leak(&self) {
        std::mem::forget(lock(&self.operation).take());
    }
}

#[derive(Default)]
pub(crate) struct State {
    /// In the order of issue, which is that of the stream.
    pub(crate) under_way: VecDeque<Arc<InFlightOperation>>,
    /// The backend's thread must end.
    pub(crate) closing: bool,
}

pub(crate) struct Core {
    pub(crate) api: Arc<dyn NcclApi>,
    /// The group whose backend it is. It fails with NCCL, and NCCL with it.
    pub(crate) group: ProcessGroup,
    /// A sub-group of all its ranks, which numbers and records NCCL's operations.
    pub(crate) calls: ProcessGroup,
    pub(crate) stream: OwnedStream,
    pub(crate) communicator: TimedMutex<Option<Communicator>>,
    /// A thread aborts the communicator, or has.
    is_aborting: AtomicBool,
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
        group: ProcessGroup,
        calls: ProcessGroup,
    ) -> Self {
        Self {
            api,
            group,
            calls,
            stream,
            communicator: TimedMutex::new(None),
            is_aborting: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
            issuing: TimedMutex::new(()),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// The operation whose turn it is.
    pub(crate) fn front(&self) -> Option<Arc<InFlightOperation>> {
        lock(&self.state).under_way.front().cloned()
    }

    /// Refuses `call` on a group that has failed. Does not wait.
    pub(crate) fn check(&self, call: &DeviceCall) -> Result<(), CollectiveError> {
        call.check().map_err(|error| self.failed(error))
    }

    /// The group has failed with `error`: NCCL leaves the GPU, so that nothing that waits after its kernels on a stream
    /// waits for ever.
    pub(crate) fn failed(&self, error: CollectiveError) -> CollectiveError {
        self.abort_communicator();
        error
    }

    /// The communicator's kernels leave the GPU, and its memory is given back; or, where NCCL does not
    /// return, both stay.
    pub(crate) fn abort_communicator(&self) {
        if self.is_aborting.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(mut slot) = self.communicator.take_until(Instant::now() + IN_A_CALL) else {
            tracing::error!(
                "NCCL has not come back from a call for {IN_A_CALL:?}: it is not aborted"
            );
            return;
        };
        let Some(communicator) = slot.take() else {
            return;
        };
        drop(slot);
        let api = self.api.clone();
        let patience = ABORTING.min(self.calls.timeout());
        let abort = move || api.abort(communicator);
        match bounded("everburn-nccl-abort", patience, abort) {
            Some(Status::Success) => self.aborted.store(true, Ordering::Release),
            Some(status) => tracing::error!("NCCL has not aborted: {status}"),
            None => {
                tracing::error!("NCCL has not aborted within {patience:?}: it is left as it is");
            }
        }
    }

    /// NCCL has answered with an error. Where another rank is lost or has given up, that is the reason.
    pub(crate) fn refused(&self, call: &DeviceCall, status: Status) -> CollectiveError {
        let detail = self.api.last_error();
        if is_about_others(status)
            && self.calls.world_size() > 1
            && let Err(error) = call.check_within(OTHERS)
        {
            return self.failed(error);
        }
        self.failed(call.fail(status.describe(&detail)))
    }

    /// A call of the driver has failed: the GPU is unusable.
    pub(crate) fn gpu_failed(&self, call: &DeviceCall, source: &LibraryError) -> CollectiveError {
        self.failed(call.fail(source.to_string()))
    }

    /// A call does not end, or could not begin because one before it does not end.
    pub(crate) fn blocked(&self, call: &DeviceCall) -> CollectiveError {
        self.failed(call.fail(NO_ANSWER.to_owned()))
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

    /// As [`Core::check`], and whether NCCL has found something wrong.
    pub(crate) fn check_library(&self, call: &DeviceCall) -> Result<(), CollectiveError> {
        self.check(call)?;
        match self.async_status() {
            status if status.is_well() => Ok(()),
            wrong => Err(self.refused(call, wrong)),
        }
    }

    /// Takes note of what is over, from the oldest on.
    pub(crate) fn retire(&self) -> Result<(), LibraryError> {
        loop {
            let Some(front) = self.front() else {
                return Ok(());
            };
            if !front.is_over()? {
                return Ok(());
            }
            // The buffers' owners go first: a thread that finds the operation retired returns from its
            // wait, and its caller may count on their being gone. Two that are here at once wait for
            // one another.
            front.release();
            front.call.end();
            let mut state = lock(&self.state);
            // Another thread may have been quicker.
            let now = state.under_way.front();
            if now.is_some_and(|now| Arc::ptr_eq(now, &front)) {
                state.under_way.pop_front();
            }
        }
    }

    /// Fails the group if the operation whose turn it is has been waited for too long; the error is
    /// that of `call`.
    pub(crate) fn keep_deadline(&self, call: &DeviceCall) -> Result<(), CollectiveError> {
        let retired = self.retire();
        retired.map_err(|source| self.gpu_failed(call, &source))?;
        let Some(front) = self.front() else {
            return Ok(());
        };
        let Err(error) = front.keep_deadline(self.calls.timeout()) else {
            return Ok(());
        };
        let error = self.failed(error);
        self.check(call)?;
        Err(error)
    }

    /// Waits until nothing is under way; whether that was before `deadline`, if there is one. Each operation has the
    /// group's timeout in any case.
    pub(crate) fn drain(
        &self,
        call: &DeviceCall,
        deadline: Option<Instant>,
    ) -> Result<bool, CollectiveError> {
        let backoff = Backoff::new();
        loop {
            self.check_library(call)?;
            self.keep_deadline(call)?;
            if lock(&self.state).under_way.is_empty() {
                return Ok(true);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Ok(false);
            }
            backoff.sleep();
        }
    }
}

/// Whether the cause is likely another rank's end.
fn is_about_others(status: Status) -> bool {
    matches!(
        status,
        Status::RemoteError | Status::SystemError | Status::InternalError | Status::Timeout
    )
}
