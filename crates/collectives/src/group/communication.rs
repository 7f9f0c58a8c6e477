//! The communication thread of a group, and the queue that leads to it.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::core::{Core, Place};
use super::error::CollectiveError;
use super::flight::FlightState;
use super::signature::Call;
use crate::sync::{lock, wait_until};

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
    thread: Option<CommunicationThread>,
    closed: bool,
}

struct CommunicationThread {
    jobs: Sender<Job>,
    handle: JoinHandle<()>,
    ended: Arc<Ended>,
}

#[derive(Default)]
struct Ended {
    ended: Mutex<bool>,
    changed: Condvar,
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
    /// `make` gets the place and returns the job together with what is handed to the caller. A
    /// job that cannot be queued is run at once, with the reason.
    pub(crate) fn enqueue<R>(&self, call: Call, make: impl FnOnce(Place) -> (Job, R)) -> R {
        let mut queue = lock(&self.queue);
        let mut place = self.core.place(call);
        if !queue.closed {
            self.core.record(&mut place, FlightState::Queued);
        }
        let (job, result) = make(place);
        if queue.closed {
            job(Some(self.core.destroyed(&place)));
            return result;
        }
        let thread = match &mut queue.thread {
            Some(thread) => thread,
            none => match self.start() {
                Ok(thread) => none.insert(thread),
                Err(error) => {
                    job(Some(error));
                    return result;
                }
            },
        };
        self.core.issued.fetch_add(1, Ordering::AcqRel);
        // A thread that is gone has panicked, and has failed the group; the job, and with it the
        // completion that it holds, is dropped, which ends the operation with an error.
        let _ = thread.jobs.send(job);
        result
    }

    /// Gives a call of this thread's own the next number; an error if the group is closed.
    pub(crate) fn take_number(&self, call: Call) -> Result<Place, CollectiveError> {
        let queue = lock(&self.queue);
        let place = self.core.place(call);
        if queue.closed {
            return Err(self.core.destroyed(&place));
        }
        self.core.issued.fetch_add(1, Ordering::AcqRel);
        Ok(place)
    }

    /// Starts the communication thread, at the group's first [`super::Work`] of a collective:
    /// groups that only send, receive and work in place have none.
    fn start(&self) -> Result<CommunicationThread, CollectiveError> {
        let (jobs, queued) = mpsc::channel::<Job>();
        let ended = Arc::new(Ended::default());
        let signal = EndedOnDrop(ended.clone());
        let core = self.core.clone();
        let handle = thread::Builder::new()
            .name(format!("everburn-group-{}", self.core.job_rank()))
            .spawn(move || {
                // Declared in this order, so that the core (and with it, perhaps, the transport)
                // is gone before the end is signalled.
                let _signal = signal;
                let leave = LeaveOnDrop(core);
                for job in queued {
                    job(None);
                    leave.0.count_finished();
                }
                // A caller of another handle may be at work in place.
                let core = &leave.0;
                let issued = core.issued.load(Ordering::Acquire);
                core.wait_for_turn(issued, Instant::now() + core.timeout());
                drop(leave);
            })
            .map_err(|error| CollectiveError::System {
                rank: self.core.job_rank(),
                action: "start the communication thread".to_owned(),
                reason: error.to_string(),
            })?;
        Ok(CommunicationThread {
            jobs,
            handle,
            ended,
        })
    }

    /// Lets the communication thread finish what is queued and leaves the group. `false` if that
    /// takes longer than until `deadline`: the thread then leaves when it is done.
    pub(crate) fn close(&self, deadline: Instant) -> bool {
        let mut queue = lock(&self.queue);
        if queue.closed {
            return true;
        }
        queue.closed = true;
        let thread = queue.thread.take();
        drop(queue);
        let Some(CommunicationThread {
            jobs,
            handle,
            ended,
        }) = thread
        else {
            // A caller of another handle may be at work.
            let issued = self.core.issued.load(Ordering::Acquire);
            let finished = self.core.wait_for_turn(issued, deadline);
            self.core.leave();
            return finished;
        };
        drop(jobs);
        let mut has_ended = lock(&ended.ended);
        while !*has_ended {
            let (locked, late) = wait_until(&ended.changed, has_ended, deadline);
            has_ended = locked;
            if late {
                return *has_ended;
            }
        }
        drop(has_ended);
        // Returns at once: signalling is the last thing that the thread does. An error would be a
        // panic on that thread, which has failed its operation already.
        let _ = handle.join();
        true
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if thread::panicking() {
            let rank = self.core.job_rank();
            self.core
                .abort(format!("rank {rank} panicked; its own message tells more"));
        }
        self.close(Instant::now() + DROP_PATIENCE);
    }
}

/// Leaves the group when the communication thread ends, in order or by a panic.
struct LeaveOnDrop(Arc<Core>);

impl Drop for LeaveOnDrop {
    fn drop(&mut self) {
        if thread::panicking() {
            let rank = self.0.job_rank();
            self.0
                .abort(format!("the communication thread of rank {rank} panicked"));
        }
        self.0.leave();
    }
}

struct EndedOnDrop(Arc<Ended>);

impl Drop for EndedOnDrop {
    fn drop(&mut self) {
        *lock(&self.0.ended) = true;
        self.0.changed.notify_all();
    }
}
