//! How a rank leaves a group: in good order where that ends in time, else by an abort.

use std::sync::Arc;
use std::time::{Duration, Instant};

use everburn_collectives::sync::lock;

use super::Shared;
use super::core::{Core, Health, OpContext};
use super::error::NcclError;
use super::failing::Tell;
use super::status::Status;
use super::timed_mutex::{Backoff, bounded};
use crate::api::Communicator;

/// How long dropping a group waits for what is under way and for NCCL to finish.
const DROPPING: Duration = Duration::from_secs(2);

impl Core {
    /// Waits until what is under way is over, then has NCCL give everything back.
    pub(super) fn leave(&self, deadline: Instant) -> Result<(), NcclError> {
        let context = self.context("destroy".to_owned(), None);
        if matches!(lock(&self.state).health, Health::Left) {
            return Ok(());
        }
        self.health(&context)?;
        match self.drain(deadline) {
            Ok(true) => {}
            Ok(false) => {
                self.health(&context)?;
                return Err(self.late(&self.present()));
            }
            Err(source) => return Err(self.gpu_failed(&context, source)),
        }
        let Some(mut slot) = self.communicator.take_until(deadline) else {
            return Err(self.blocked(&context));
        };
        let Some(communicator) = slot.take() else {
            return Ok(());
        };
        lock(&self.state).health = Health::Left;
        drop(slot);
        self.changed.notify_all();
        self.give_back(&context, communicator, deadline)
    }

    fn give_back(
        &self,
        context: &OpContext,
        communicator: Communicator,
        deadline: Instant,
    ) -> Result<(), NcclError> {
        let backoff = Backoff::new();
        let mut status = self.api.finalize(&communicator);
        while status == Status::InProgress && Instant::now() < deadline {
            backoff.sleep(deadline);
            status = self.api.async_error(&communicator);
        }
        let finalized = status == Status::Success;
        let api = self.api.clone();
        let left = deadline
            .saturating_duration_since(Instant::now())
            .max(DROPPING);
        let ended = bounded("everburn-nccl-end", left, move || match finalized {
            true => api.destroy(communicator),
            false => api.abort(communicator),
        });
        match (finalized, ended) {
            (true, Some(_)) => Ok(()),
            (false, _) if !status.is_well() => {
                let detail = self.api.last_error();
                Err(self.status_error(context, status, Vec::new(), detail))
            }
            _ => Err(self.no_answer(context)),
        }
    }
}

impl Shared {
    /// Ends the group's threads.
    pub(super) fn close(&self, goodbye: bool) {
        lock(&self.core.state).closing = true;
        self.core.changed.notify_all();
        if let Some(notifier) = &self.core.notifier {
            notifier.stop(goodbye);
        }
    }
}

impl Drop for Shared {
    /// Nobody waits for ever: what does not end within two seconds is aborted, and the others are
    /// told, for they would wait for it.
    fn drop(&mut self) {
        let core: &Arc<Core> = &self.core;
        if self.silent.load(std::sync::atomic::Ordering::Relaxed) {
            return;
        }
        if std::thread::panicking() {
            core.abort("this rank has panicked".to_owned());
        } else if core.is_well() && matches!(core.drain(Instant::now() + DROPPING), Ok(true)) {
            if let Err(error) = core.leave(Instant::now() + DROPPING) {
                tracing::warn!(group = core.config.name, "{error}");
            }
        } else if core.is_well() {
            let context = core.present();
            let reason = format!(
                "this rank has dropped the group while {} (collective {}, step {}) was under way",
                context.operation, context.sequence, context.step
            );
            core.abort(reason);
        }
        self.close(true);
    }
}

/// Whether the other ranks learn of a failure to join from elsewhere.
pub(super) fn who_is_told(error: &NcclError) -> Tell {
    match error {
        // By rank 0's verdict; or they have the true rank of this number.
        NcclError::Refused { .. } => Tell::Nobody,
        NcclError::Incomplete { missing, .. } if !missing.is_empty() => Tell::Nobody,
        _ => Tell::Others,
    }
}
