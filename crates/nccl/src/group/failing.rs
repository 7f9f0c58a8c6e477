//! How a group fails: what each call and the other ranks receive, and that NCCL lets go of the GPU.
//!
//! The thread that notices first forms the error (for a deadline, from the others' last heartbeats),
//! notifies the failure monitor and the store, and aborts the communicator, so that its kernels leave the GPU
//! and nothing that waits after them on a stream waits for ever. Each of these has a deadline.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use everburn_collectives::group::{CollectiveError, GroupFailure};
use everburn_collectives::sync::lock;

use super::core::{Core, Health, InFlightOperation, OpContext};
use super::error::NcclError;
use super::status::Status;
use super::timed_mutex::bounded;
use crate::error::LibraryError;

/// How long a thread that is in a call of NCCL may keep the communicator from being aborted. Calls
/// do not wait for other ranks, so this is long.
const IN_A_CALL: Duration = Duration::from_secs(5);

/// How long NCCL may take to abort, or the group's timeout if that is shorter: it stops threads and
/// frees memory.
const ABORTING: Duration = Duration::from_secs(10);

/// Who is told of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tell {
    /// The others know.
    Nobody,
    Others,
}

impl Core {
    /// Fails the group with what `make` yields, unless it has failed before; the group's error.
    pub(crate) fn fail(
        &self,
        of: Option<Instant>,
        tell: Tell,
        make: impl FnOnce() -> NcclError,
    ) -> Option<Arc<NcclError>> {
        let mut state = lock(&self.state);
        if !matches!(state.health, Health::Well) {
            return None;
        }
        state.health = Health::Failing;
        drop(state);
        let error = Arc::new(make());
        tracing::error!(group = self.config.name, "{error}");
        if tell == Tell::Others {
            if let Some(monitor) = &self.monitor {
                monitor.failed(&error);
            }
            if let Some(notifier) = &self.notifier {
                notifier.tell(&error, self.job_rank());
            }
        }
        self.abort_communicator();
        let mut state = lock(&self.state);
        state.health = Health::Failed {
            error: error.clone(),
            of,
        };
        drop(state);
        self.changed.notify_all();
        Some(error)
    }

    /// Fails the group at `context`, and yields what the call there is told: this error, or the one that
    /// came before it.
    fn fail_at(&self, context: &OpContext, make: impl FnOnce() -> NcclError) -> NcclError {
        match self.fail(Some(context.started), Tell::Others, make) {
            Some(error) => NcclError::clone(&error),
            None => match self.health(context) {
                Err(earlier) => earlier,
                Ok(()) => self.no_answer(context),
            },
        }
    }

    /// The communicator's kernels leave the GPU, and its memory is given back; or, where NCCL does not
    /// return, both stay.
    pub(crate) fn abort_communicator(&self) {
        let group = &self.config.name;
        let Some(mut slot) = self.communicator.take_until(Instant::now() + IN_A_CALL) else {
            tracing::error!(
                group,
                "NCCL has not come back from a call for {IN_A_CALL:?}: it is not aborted"
            );
            return;
        };
        let Some(communicator) = slot.take() else {
            return;
        };
        drop(slot);
        let api = self.api.clone();
        let abort = move || api.abort(communicator);
        let patience = ABORTING.min(self.config.timeout);
        match bounded("everburn-nccl-abort", patience, abort) {
            Some(Status::Success) => self.aborted.store(true, Ordering::Release),
            Some(status) => tracing::error!(group, "NCCL has not aborted: {status}"),
            None => tracing::error!(
                group,
                "NCCL has not aborted within {patience:?}: it is left as it is"
            ),
        }
    }

    /// The deadline of `in_flight` has passed.
    pub(crate) fn in_flight_late(
        &self,
        in_flight: &InFlightOperation,
        waited: Duration,
    ) -> NcclError {
        let context = &in_flight.context;
        if in_flight.is_in_the_call() {
            // Neither the other ranks nor the GPU are to blame.
            return self.blocked(context);
        }
        self.fail_at(context, || match in_flight.is_ready() {
            Ok(true) => self.timed_out(context, waited),
            Ok(false) => NcclError::OwnWork {
                rank: self.job_rank(),
                operation: context.operation.clone(),
                sequence: context.sequence,
                step: context.step,
                waited,
            },
            Err(source) => self.gpu_error(context, source),
        })
    }

    /// A call that needs the other ranks has waited for too long.
    pub(crate) fn late(&self, context: &OpContext) -> NcclError {
        self.fail_at(context, || {
            self.timed_out(context, context.started.elapsed())
        })
    }

    fn timed_out(&self, context: &OpContext, waited: Duration) -> NcclError {
        let (waiting_for, progress) = self.behind(context);
        NcclError::Group(CollectiveError::Timeout {
            rank: self.job_rank(),
            waiting_for,
            operation: context.operation.clone(),
            sequence: context.sequence,
            step: context.step,
            waited,
            progress,
        })
    }

    /// A status of NCCL, and its `detail`, as the error of a call.
    pub(super) fn status_error(
        &self,
        context: &OpContext,
        status: Status,
        suspects: Vec<usize>,
        detail: String,
    ) -> NcclError {
        NcclError::Nccl {
            rank: self.job_rank(),
            suspects,
            operation: context.operation.clone(),
            sequence: context.sequence,
            step: context.step,
            waited: context.started.elapsed(),
            status,
            detail,
        }
    }

    /// NCCL has answered with an error. Where another rank says at the same time why it has failed,
    /// that is the reason: a closed connection is often detected before the notice arrives.
    pub(crate) fn refused(&self, context: &OpContext, status: Status) -> NcclError {
        let detail = self.api.last_error();
        let notifier = self.notifier.as_ref().filter(|_| is_about_others(status));
        if let Some(ended) = notifier.and_then(|notifier| notifier.ended_of_late()) {
            return self.ended_at(context, &ended);
        }
        self.fail_at(context, || {
            let suspects = match is_about_others(status) {
                true => self.silent(),
                false => Vec::new(),
            };
            self.status_error(context, status, suspects, detail)
        })
    }

    /// A call of the driver has failed: the GPU is unusable.
    pub(crate) fn gpu_failed(&self, context: &OpContext, source: LibraryError) -> NcclError {
        self.fail_at(context, || self.gpu_error(context, source))
    }

    fn gpu_error(&self, context: &OpContext, source: LibraryError) -> NcclError {
        NcclError::Gpu {
            rank: self.job_rank(),
            operation: context.operation.clone(),
            sequence: context.sequence,
            step: context.step,
            source,
        }
    }

    /// Fails the group because another rank has, or is gone.
    pub(crate) fn ended(&self, ended: &GroupFailure) {
        let context = self.present();
        self.fail(Some(context.started), Tell::Nobody, || {
            self.error_of(&context, ended)
        });
    }

    fn ended_at(&self, context: &OpContext, ended: &GroupFailure) -> NcclError {
        let make = || self.error_of(context, ended);
        match self.fail(Some(context.started), Tell::Nobody, make) {
            Some(error) => NcclError::clone(&error),
            None => self
                .health(context)
                .err()
                .unwrap_or_else(|| self.no_answer(context)),
        }
    }

    fn error_of(&self, context: &OpContext, ended: &GroupFailure) -> NcclError {
        let rank = self.job_rank();
        let OpContext {
            operation,
            sequence,
            step,
            started,
            ..
        } = context.clone();
        let waited = started.elapsed();
        // A rank that is told that it is lost itself knows better.
        let error = match ended.lost.filter(|lost| *lost != rank) {
            Some(peer) => CollectiveError::PeerLost {
                rank,
                peer,
                silent_machine: ended.silent_machine,
                operation,
                sequence,
                step,
                waited,
                cause: match ended.by == rank {
                    true => ended.reason.as_str().into(),
                    false => format!("rank {} noticed: {}", ended.by, ended.reason).into(),
                },
            },
            None => CollectiveError::Aborted {
                rank,
                by: ended.by,
                reason: ended.reason.clone(),
                operation,
                sequence,
                step,
                waited,
            },
        };
        error.into()
    }

    /// Gives the group up for a reason that is not an operation's.
    pub(crate) fn abort(&self, reason: String) {
        let context = self.present();
        let by = self.job_rank();
        let ended = GroupFailure {
            by,
            lost: None,
            silent_machine: None,
            reason,
        };
        self.fail(Some(context.started), Tell::Others, || {
            self.error_of(&context, &ended)
        });
    }

    pub(crate) fn no_answer(&self, context: &OpContext) -> NcclError {
        NcclError::NoAnswer {
            rank: self.job_rank(),
            operation: context.operation.clone(),
            step: context.step,
            waited: context.started.elapsed(),
        }
    }

    /// A call does not end, or could not begin because one before it does not end.
    pub(crate) fn blocked(&self, context: &OpContext) -> NcclError {
        self.fail_at(context, || self.no_answer(context))
    }
}

/// Whether the cause is likely another rank's end.
fn is_about_others(status: Status) -> bool {
    matches!(
        status,
        Status::RemoteError | Status::SystemError | Status::InternalError | Status::Timeout
    )
}
