//! Failures of a group: the error of each operation, and the aborts sent to other ranks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::ProcessGroup;
use super::core::{Core, OpContext};
use super::error::CollectiveError;
use super::signature::{Call, Operation, Signature};
use crate::transport::{Failure, FrameKind, Interruption, encode_abort};

impl ProcessGroup {
    /// The job ranks whose connections have ended without a goodbye, as those of a killed process. Does not
    /// wait. Ranks that have left the group in good order are not included.
    ///
    /// ```
    /// # mod everburn { pub use everburn_collectives as collectives; }
    /// use everburn::collectives::group::{GroupOptions, ProcessGroup};
    ///
    /// let mut groups = ProcessGroup::over_threads(2, GroupOptions::default());
    /// let (other, own) = (groups.pop().unwrap(), groups.pop().unwrap());
    /// other.sever();
    /// assert!(own.barrier().wait().is_err());
    /// assert_eq!(own.lost_ranks(), [1]);
    /// ```
    #[must_use]
    pub fn lost_ranks(&self) -> Vec<usize> {
        let core = self.core();
        let lost = |peer: &usize| {
            let parting = core.mailbox.parting(*peer);
            parting.is_some_and(|parting| !parting.in_order)
        };
        core.others().filter(lost).collect()
    }
}

impl Core {
    /// The error of an operation whose wait was interrupted. Fails the group, and sends aborts to the other
    /// ranks if this rank is the first to detect the failure.
    pub(crate) fn interrupted(
        &self,
        context: &OpContext,
        interruption: Interruption,
    ) -> CollectiveError {
        match interruption {
            Interruption::Failed(failure) => self.failed(context, &failure),
            Interruption::Gone { peer, cause } => {
                self.fail_everywhere(self.peer_lost(context, (peer, None), cause))
            }
            Interruption::Deadline { missing } => {
                self.timed_out(context, missing, context.started.elapsed())
            }
        }
    }

    /// Waits in place of a barrier: for simulations.
    pub(crate) fn wait_for(
        &self,
        is_done: &dyn Fn() -> bool,
        deadline: Instant,
    ) -> Result<(), CollectiveError> {
        let context = self.context(Call::Collective(Signature::new(Operation::Barrier)));
        let waited = self.mailbox.wait_for(is_done, deadline);
        waited.map_err(|interruption| self.interrupted(&context, interruption))
    }

    /// The error of an operation in a group that has failed.
    pub(crate) fn failed(&self, context: &OpContext, failure: &Failure) -> CollectiveError {
        let rank = self.job_rank();
        if failure.destroyed {
            return self.destroyed(context);
        }
        // Ignores an abort that names this rank as lost.
        if let Some(peer) = failure.lost.filter(|lost| *lost != rank) {
            let cause = if failure.first.is_some() {
                failure.reason.clone()
            } else {
                format!("rank {} noticed: {}", failure.by, failure.reason)
            };
            return self.peer_lost(context, (peer, failure.silent_machine), cause);
        }
        match &failure.first {
            Some(first) => CollectiveError::Poisoned {
                rank,
                operation: context.call.to_string(),
                first: first.clone(),
            },
            None => CollectiveError::Aborted {
                rank,
                by: failure.by,
                reason: failure.reason.clone(),
                operation: self.operation(context),
                sequence: context.sequence,
                step: context.step,
                waited: context.started.elapsed(),
            },
        }
    }

    /// What this rank called, with the group's name if it has one: each group counts its collectives by itself.
    fn operation(&self, context: &OpContext) -> String {
        match self.name.get().filter(|_| self.id != super::WORLD) {
            Some(name) => format!("{} of the {name} group", context.call),
            None => context.call.to_string(),
        }
    }

    /// The error of an operation whose deadline has passed; fails the group everywhere.
    pub(crate) fn timed_out(
        &self,
        context: &OpContext,
        waiting_for: Vec<usize>,
        waited: Duration,
    ) -> CollectiveError {
        self.fail_everywhere(self.timeout_error(context, waiting_for, waited, ""))
    }

    pub(crate) fn timeout_error(
        &self,
        context: &OpContext,
        mut waiting_for: Vec<usize>,
        waited: Duration,
        progress: &str,
    ) -> CollectiveError {
        waiting_for.sort_unstable();
        CollectiveError::Timeout {
            rank: self.job_rank(),
            waiting_for,
            operation: self.operation(context),
            sequence: context.sequence,
            step: context.step,
            waited,
            progress: progress.to_owned(),
        }
    }

    pub(crate) fn destroyed(&self, context: &OpContext) -> CollectiveError {
        CollectiveError::Destroyed {
            rank: self.job_rank(),
            operation: context.call.to_string(),
        }
    }

    /// The error when rank `peer` is gone, and the machine with this number is silent as a whole.
    pub(crate) fn peer_lost(
        &self,
        context: &OpContext,
        (peer, silent_machine): (usize, Option<usize>),
        cause: String,
    ) -> CollectiveError {
        CollectiveError::PeerLost {
            rank: self.job_rank(),
            peer,
            silent_machine,
            operation: self.operation(context),
            sequence: context.sequence,
            step: context.step,
            waited: context.started.elapsed(),
            cause: cause.into(),
        }
    }

    /// Fails the group on this rank only: the others find the same error on their own.
    pub(crate) fn fail_here(&self, error: CollectiveError) -> CollectiveError {
        self.mailbox.fail(&self.failure_of(&error));
        error
    }

    /// Fails the group and sends the reason to the other ranks.
    pub(crate) fn fail_everywhere(&self, error: CollectiveError) -> CollectiveError {
        self.fail_with(&self.failure_of(&error));
        error
    }

    /// Aborts the group for a reason outside of its operations.
    pub(crate) fn abort(&self, reason: String) {
        self.fail_with(&Failure {
            hang: self.follows_hang(),
            ..self.failure(reason)
        });
    }

    /// Aborts the group because of the error of a sub-group; `reason` is its text.
    pub(crate) fn abort_because(&self, error: &CollectiveError, reason: String) {
        let failure = self.failure_of(error);
        self.fail_with(&Failure {
            reason,
            first: None,
            hang: failure.hang || self.follows_hang(),
            ..failure
        });
    }

    /// Fails the group because no heartbeat of job rank `peer` arrives, nor of any other rank of `silent_machine`, if that is
    /// one, and sends aborts to the others.
    pub(crate) fn heartbeat_timed_out(
        &self,
        peer: usize,
        silent_machine: Option<usize>,
        cause: String,
    ) {
        let idle = || self.context(Call::Named("no operation"));
        let context = self.running().unwrap_or_else(idle);
        let error = self.peer_lost(&context, (peer, silent_machine), cause);
        self.fail_with(&Failure {
            hang: true,
            ..self.failure_of(&error)
        });
    }

    /// The failure of this group, or of one of its sub-groups, because a rank hangs.
    pub(crate) fn hang(&self) -> Option<Failure> {
        let failure = self.mailbox.failure().filter(|failure| failure.hang);
        let of_children = || self.living_children().iter().find_map(|child| child.hang());
        failure.or_else(of_children)
    }

    /// Whether this group, its parent, or another sub-group of that has failed because a rank hangs: the error of a rank that
    /// another one has asked to give up does not say so.
    fn follows_hang(&self) -> bool {
        let parent = self.parent.upgrade();
        parent.as_deref().unwrap_or(self).hang().is_some()
    }

    /// A failure that this rank has noticed, of which no more is known than the reason.
    pub(super) fn failure(&self, reason: String) -> Failure {
        Failure {
            by: self.job_rank(),
            reason,
            ..Failure::default()
        }
    }

    fn failure_of(&self, error: &CollectiveError) -> Failure {
        let (lost, reason) = match error.root_cause() {
            CollectiveError::PeerLost { peer, cause, .. } => (Some(*peer), cause.to_string()),
            _ => (None, error.to_string()),
        };
        Failure {
            lost,
            silent_machine: error.silent_machine(),
            first: Some(Arc::new(error.clone())),
            hang: error.is_timeout(),
            waiting_for: waited_for(error),
            ..self.failure(reason)
        }
    }

    /// Fails the group, and sends aborts to the others if it had not failed.
    fn fail_with(&self, failure: &Failure) {
        if self.mailbox.fail(failure) {
            let step = self.step.load(Ordering::Relaxed);
            let payload = encode_abort(failure);
            for peer in self.others() {
                self.send(peer, step, FrameKind::Abort, payload.clone());
            }
        }
    }
}

/// The job ranks that this rank waited for, by its error.
pub(crate) fn waited_for(error: &CollectiveError) -> Vec<usize> {
    match error.root_cause() {
        CollectiveError::Timeout { waiting_for, .. } => waiting_for.clone(),
        CollectiveError::PeerLost { peer, .. } => vec![*peer],
        _ => Vec::new(),
    }
}
