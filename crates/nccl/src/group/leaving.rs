//! How a rank leaves a group: in good order where that ends in time, else by an abort.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Shared;
use super::core::{Core, Place, Standing};
use super::error::NcclError;
use super::failing::Tell;
use super::status::Status;
use super::turn::{Pause, bounded, lock};
use crate::api::Communicator;

/// How long dropping a group waits for what is under way and for NCCL to finish.
const DROPPING: Duration = Duration::from_secs(2);

impl Core {
    /// Waits until what is under way is over, then has NCCL give everything back.
    pub(super) fn leave(&self, deadline: Instant) -> Result<(), NcclError> {
        let place = self.place("destroy".to_owned(), None);
        if matches!(lock(&self.state).standing, Standing::Left) {
            return Ok(());
        }
        self.standing(&place)?;
        match self.drain(deadline) {
            Ok(true) => {}
            Ok(false) => {
                self.standing(&place)?;
                return Err(self.late(&self.present()));
            }
            Err(source) => return Err(self.gpu_failed(&place, source)),
        }
        let Some(mut slot) = self.communicator.take_until(deadline) else {
            return Err(self.blocked(&place));
        };
        let Some(communicator) = slot.take() else {
            return Ok(());
        };
        lock(&self.state).standing = Standing::Left;
        drop(slot);
        self.changed.notify_all();
        self.give_back(&place, communicator, deadline)
    }

    fn give_back(
        &self,
        place: &Place,
        communicator: Communicator,
        deadline: Instant,
    ) -> Result<(), NcclError> {
        let pause = Pause::new();
        let mut status = self.api.finalize(&communicator);
        while status == Status::InProgress && Instant::now() < deadline {
            pause.rest(deadline);
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
            (false, _) if !status.is_well() => Err(NcclError::Nccl {
                rank: self.job_rank(),
                suspects: Vec::new(),
                operation: place.operation.clone(),
                sequence: place.sequence,
                step: place.step,
                waited: place.started.elapsed(),
                status,
                detail: self.api.last_error(),
            }),
            _ => Err(self.no_answer(place)),
        }
    }
}

impl Shared {
    /// Ends the group's threads.
    pub(super) fn close(&self, goodbye: bool) {
        lock(&self.core.state).closing = true;
        self.core.changed.notify_all();
        if let Some(news) = &self.core.news {
            news.stop(goodbye);
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
            let place = core.present();
            let reason = format!(
                "this rank has dropped the group while {} (collective {}, step {}) was under way",
                place.operation, place.sequence, place.step
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
