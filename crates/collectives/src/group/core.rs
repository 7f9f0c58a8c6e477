//! What a group's handles, its communication thread and its pending messages share, and how a
//! group fails.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::GroupOptions;
use super::engine::Workspace;
use super::error::CollectiveError;
use super::signature::Call;
use crate::lane::Lanes;
use crate::sync::{lock, wait_until};
use crate::transport::{
    Failure, Frame, FrameKind, Header, Interruption, Mailbox, Payload, Transport, encode_abort,
};

/// How often a collective that waits for its turn looks whether the group has failed.
const TURN_TICK: Duration = Duration::from_millis(100);

/// One call of this rank: what it was, and where in the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) call: Call,
    pub(crate) sequence: u64,
    pub(crate) step: u64,
    pub(crate) started: Instant,
}

/// The group as its communication thread sees it.
pub(crate) struct Core {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) id: u64,
    /// The job rank of each member, by group rank.
    pub(crate) members: Vec<usize>,
    /// This rank's number in the group.
    pub(crate) rank: usize,
    pub(crate) options: GroupOptions,
    /// The label of [`super::ProcessGroup::set_step`], shared with sub-groups.
    pub(crate) step: Arc<AtomicU64>,
    /// How many collectives this rank has issued.
    pub(crate) issued: AtomicU64,
    progress: Mutex<Progress>,
    turn: Condvar,
    /// The lanes, and what collectives need beside them. Locked by whoever's turn it is.
    pub(crate) data: Mutex<DataPlane>,
}

/// What carries the data of collectives.
#[derive(Default)]
pub(crate) struct DataPlane {
    /// Established by the group's first collective.
    pub(crate) lanes: Option<Lanes>,
    pub(crate) workspace: Workspace,
}

#[derive(Default)]
struct Progress {
    finished: u64,
    /// The job ranks that the collective under way is waiting for.
    waiting_for: Vec<usize>,
}

impl Core {
    pub(crate) fn new(
        transport: Arc<dyn Transport>,
        mailbox: Arc<Mailbox>,
        id: u64,
        members: Vec<usize>,
        rank: usize,
        options: GroupOptions,
        step: Arc<AtomicU64>,
    ) -> Self {
        let issued = AtomicU64::new(0);
        let (progress, turn, data) = Default::default();
        Self {
            transport,
            mailbox,
            id,
            members,
            rank,
            options,
            step,
            issued,
            progress,
            turn,
            data,
        }
    }

    /// This rank's number in the job, which errors name.
    pub(crate) fn job_rank(&self) -> usize {
        self.transport.rank()
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.options.timeout.unwrap_or(super::DEFAULT_TIMEOUT)
    }

    /// The job ranks of the other members, beginning after this one, so that not all ranks send to
    /// the same one first.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> {
        let size = self.members.len();
        (1..size).map(move |offset| self.members[(self.rank + offset) % size])
    }

    pub(crate) fn send(&self, to: usize, step: u64, kind: FrameKind, payload: Payload) {
        let header = Header {
            group: self.id,
            step,
            kind,
        };
        self.transport.send(to, Frame::new(header, payload));
    }

    /// A place for `call`, made now.
    pub(crate) fn place(&self, call: Call) -> Place {
        Place {
            call,
            sequence: self.issued.load(Ordering::Acquire),
            step: self.step.load(Ordering::Relaxed),
            started: Instant::now(),
        }
    }

    /// Waits for the turn of the collective `place`: for those before it, each of which has a
    /// deadline of its own.
    pub(crate) fn take_turn(&self, place: &Place) -> Result<(), CollectiveError> {
        loop {
            let come = self.wait_for_turn(place.sequence, Instant::now() + TURN_TICK);
            if let Some(failure) = self.mailbox.settled_failure(self.job_rank()) {
                return Err(self.failed(place, &failure));
            }
            if come {
                return Ok(());
            }
        }
    }

    /// How many collectives are finished.
    pub(crate) fn finished(&self) -> u64 {
        lock(&self.progress).finished
    }

    pub(crate) fn waiting_for(&self) -> Vec<usize> {
        lock(&self.progress).waiting_for.clone()
    }

    /// Notes whom the collective under way waits for, for the report of a waiter whose own
    /// patience ends first.
    pub(crate) fn set_waiting_for(&self, ranks: &[usize]) {
        let mut progress = lock(&self.progress);
        progress.waiting_for.clear();
        progress.waiting_for.extend_from_slice(ranks);
    }

    pub(crate) fn count_finished(&self) {
        let mut progress = lock(&self.progress);
        progress.finished += 1;
        progress.waiting_for.clear();
        drop(progress);
        self.turn.notify_all();
    }

    /// Waits until the collectives before `sequence` are finished or `deadline` has passed;
    /// whether they are. Each of them has a deadline of its own.
    pub(crate) fn wait_for_turn(&self, sequence: u64, deadline: Instant) -> bool {
        let mut progress = lock(&self.progress);
        while progress.finished < sequence {
            let (locked, late) = wait_until(&self.turn, progress, deadline);
            progress = locked;
            if late {
                return progress.finished >= sequence;
            }
        }
        true
    }

    /// The error of an operation whose waiting was interrupted; fails the group and tells the
    /// other ranks where this rank is the first to know.
    pub(crate) fn interrupted(&self, place: &Place, interruption: Interruption) -> CollectiveError {
        match interruption {
            Interruption::Failed(failure) => self.failed(place, &failure),
            Interruption::Gone { peer, cause } => {
                let error = self.peer_lost(place, peer, cause.clone());
                self.fail_everywhere(&error, Some(peer), cause);
                error
            }
            Interruption::Deadline { missing } => {
                self.timed_out(place, missing, place.started.elapsed())
            }
        }
    }

    /// The error of an operation in a group that has failed.
    pub(crate) fn failed(&self, place: &Place, failure: &Failure) -> CollectiveError {
        let rank = self.job_rank();
        if failure.destroyed {
            return self.destroyed(place);
        }
        // A rank that is told that it is lost itself knows better.
        if let Some(peer) = failure.lost.filter(|lost| *lost != rank) {
            let cause = if failure.first.is_some() {
                failure.reason.clone()
            } else {
                format!("rank {} noticed that {}", failure.by, failure.reason)
            };
            return self.peer_lost(place, peer, cause);
        }
        let operation = place.call.to_string();
        match &failure.first {
            Some(first) => CollectiveError::Poisoned {
                rank,
                operation,
                first: first.clone(),
            },
            None => CollectiveError::Aborted {
                rank,
                by: failure.by,
                reason: failure.reason.clone(),
                operation,
                sequence: place.sequence,
                step: place.step,
                waited: place.started.elapsed(),
            },
        }
    }

    /// The error of an operation whose deadline has passed; fails the group everywhere.
    pub(crate) fn timed_out(
        &self,
        place: &Place,
        waiting_for: Vec<usize>,
        waited: Duration,
    ) -> CollectiveError {
        let error = CollectiveError::Timeout {
            rank: self.job_rank(),
            waiting_for,
            operation: place.call.to_string(),
            sequence: place.sequence,
            step: place.step,
            waited,
        };
        self.fail_everywhere(&error, None, error.to_string());
        error
    }

    pub(crate) fn destroyed(&self, place: &Place) -> CollectiveError {
        CollectiveError::Destroyed {
            rank: self.job_rank(),
            operation: place.call.to_string(),
        }
    }

    fn peer_lost(&self, place: &Place, peer: usize, cause: String) -> CollectiveError {
        CollectiveError::PeerLost {
            rank: self.job_rank(),
            peer,
            operation: place.call.to_string(),
            sequence: place.sequence,
            step: place.step,
            waited: place.started.elapsed(),
            cause,
        }
    }

    /// Fails the group on this rank only: the others find the same error on their own.
    pub(crate) fn fail_here(&self, error: &CollectiveError) {
        self.fail(Some(error), None, error.to_string(), false);
    }

    /// Fails the group and tells the other ranks why.
    pub(crate) fn fail_everywhere(
        &self,
        error: &CollectiveError,
        lost: Option<usize>,
        reason: String,
    ) {
        self.fail(Some(error), lost, reason, true);
    }

    /// Gives the group up for a reason that is not an operation's.
    pub(crate) fn abort(&self, reason: String) {
        self.fail(None, None, reason, true);
    }

    fn fail(
        &self,
        error: Option<&CollectiveError>,
        lost: Option<usize>,
        reason: String,
        tell: bool,
    ) {
        let first = error.map(|error| Arc::new(error.clone()));
        let failure = Failure {
            by: self.job_rank(),
            lost,
            reason,
            first,
            destroyed: false,
        };
        if self.mailbox.fail(&failure) && tell {
            let step = self.step.load(Ordering::Relaxed);
            for peer in self.others() {
                self.send(peer, step, FrameKind::Abort, encode_abort(&failure));
            }
        }
    }

    /// Ends the group on this rank; the others are told that nothing more will come.
    pub(crate) fn leave(&self) {
        let failure = Failure {
            by: self.job_rank(),
            lost: None,
            reason: String::new(),
            first: None,
            destroyed: true,
        };
        // Leaving because of what another rank has told: whoever has not heard of it yet learns
        // the cause before it sees this rank go.
        let told = self.mailbox.failure();
        let told = told.filter(|failure| failure.first.is_none() && !failure.destroyed);
        self.mailbox.fail(&failure);
        // Whoever still waits on a lane sees its end. A collective that is under way on another
        // thread ends at the failure just noted, and the lanes with the group.
        let lanes = self
            .data
            .try_lock()
            .ok()
            .and_then(|mut data| data.lanes.take());
        drop(lanes);
        for peer in self.others() {
            if let Some(failure) = &told {
                self.send(peer, 0, FrameKind::Abort, encode_abort(failure));
            }
            self.send(peer, 0, FrameKind::Leave, Payload::empty());
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.transport.inbox().close(self.id);
    }
}
