//! The communication thread of a group, and the queue that leads to it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::core::{Core, OpContext};
use super::error::CollectiveError;
use super::flight::FlightState;
use super::signature::Call;
use crate::sync::lock;
use crate::worker::{Worker, WorkerError};

/// How long dropping the last handle of a group waits for what is under way.
const DROP_PATIENCE: Duration = Duration::from_secs(2);

/// One collective, to be run by the communication thread.
/// Given an error, it completes with that instead.
pub(crate) type Job = Box<dyn FnOnce(Option<CollectiveError>) + Send>;

/// The group as its handles see it: the core and the way to the communication thread.
pub(crate) struct Shared {
    core: Arc<Core>,
    pub(crate) local_rank: usize,
    queue: Mutex<Queue>,
}

/// The collectives on their way to the communication thread. Numbers are given out under the
/// queue's lock, so the order of numbers is the order of execution.
#[derive(Default)]
struct Queue {
    /// The communication thread. One whose job has panicked has failed the group.
    worker: Option<Worker<CommunicationThread>>,
    closed: bool,
}

impl Shared {
    pub(crate) fn new(core: Core, local_rank: usize) -> Arc<Self> {
        Arc::new(Self {
            core: Arc::new(core),
            local_rank,
            queue: Mutex::default(),
        })
    }

    pub(crate) const fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Gives a call the next number and queues its job.
    ///
    /// `make` gets the context and returns the job together with what is handed to the caller. A
    /// job that cannot be queued is run at once, with the reason.
    pub(crate) fn enqueue<R>(&self, call: Call, make: impl FnOnce(OpContext) -> (Job, R)) -> R {
        let mut queue = lock(&self.queue);
        let mut context = self.core.context(call);
        if !queue.closed {
            self.core.record(&mut context, FlightState::Queued);
        }
        let (job, result) = make(context);
        if queue.closed {
            job(Some(self.core.destroyed(&context)));
            return result;
        }
        let worker = match &mut queue.worker {
            Some(worker) => Ok(worker),
            none => self.start().map(|worker| none.insert(worker)),
        };
        let worker = worker.and_then(|worker| match worker.is_full() {
            true => Err(self.refused("queue a collective", WorkerError::Full.to_string())),
            false => Ok(worker),
        });
        match worker {
            Err(error) => job(Some(error)),
            Ok(worker) => {
                self.core.issued.fetch_add(1, Ordering::AcqRel);
                // A job that is not run is dropped, and with it the completion that it holds, which ends the
                // operation with an error.
                worker.submit(|seat| seat.run(job), |_| ());
            }
        }
        result
    }

    /// Gives a call of this thread's own the next number; an error if the group is closed.
    pub(crate) fn take_number(&self, call: Call) -> Result<OpContext, CollectiveError> {
        let queue = lock(&self.queue);
        let context = self.core.context(call);
        if queue.closed {
            return Err(self.core.destroyed(&context));
        }
        self.core.issued.fetch_add(1, Ordering::AcqRel);
        Ok(context)
    }

    /// Starts the communication thread, for the group's first collective that returns a [`super::Work`].
    fn start(&self) -> Result<Worker<CommunicationThread>, CollectiveError> {
        let rank = self.core.job_rank();
        let state = CommunicationThread {
            core: self.core.clone(),
            is_running_job: false,
        };
        let core = self.core.clone();
        let panicked = move |_: &str| {
            core.abort(format!("the communication thread of rank {rank} panicked"));
        };
        Worker::start(format!("everburn-group-{rank}"), state, panicked)
            .map_err(|error| self.refused("start the communication thread", error.to_string()))
    }

    fn refused(&self, action: &str, reason: String) -> CollectiveError {
        CollectiveError::System {
            rank: self.core.job_rank(),
            action: action.to_owned(),
            reason,
        }
    }

    /// Lets the communication thread finish queued collectives and leaves the group. `false` if `deadline`
    /// passes first: the thread then leaves when it has finished.
    pub(crate) fn close(&self, deadline: Instant) -> bool {
        let mut queue = lock(&self.queue);
        if queue.closed {
            return true;
        }
        queue.closed = true;
        let worker = queue.worker.take();
        drop(queue);
        if let Some(mut worker) = worker {
            return worker.end_within(deadline.saturating_duration_since(Instant::now()));
        }
        // A collective of another handle may be running.
        let issued = self.core.issued.load(Ordering::Acquire);
        let finished = self.core.wait_for_turn(issued, deadline);
        self.core.leave();
        finished
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if thread::panicking() {
            let rank = self.core.job_rank();
            self.core
                .abort(format!("rank {rank} panicked; see its panic message"));
        }
        self.close(Instant::now() + DROP_PATIENCE);
    }
}

/// The communication thread's reference to the group. Dropping it, in order or after a panic, leaves the
/// group.
struct CommunicationThread {
    core: Arc<Core>,
    /// In a job; stays set if the job panics.
    is_running_job: bool,
}

impl CommunicationThread {
    fn run(&mut self, job: Job) {
        self.is_running_job = true;
        job(None);
        self.is_running_job = false;
        self.core.count_finished();
    }
}

impl Drop for CommunicationThread {
    fn drop(&mut self) {
        if !self.is_running_job {
            // A collective in place of another handle may be running.
            let issued = self.core.issued.load(Ordering::Acquire);
            let deadline = Instant::now() + self.core.timeout();
            self.core.wait_for_turn(issued, deadline);
        }
        self.core.leave();
    }
}
