//! How a rank leaves NCCL: in good order where that ends in time, else by an abort.

use std::time::{Duration, Instant};

use everburn_collectives::group::Call;
use everburn_collectives::sync::lock;

use super::NcclBackend;
use super::core::{Core, NO_ANSWER};
use super::status::Status;
use super::timed_mutex::{Backoff, bounded};

/// How long the drop waits for what is under way and for NCCL to finish.
const DROPPING: Duration = Duration::from_secs(2);

impl Core {
    /// Has NCCL finish and give everything back within [`DROPPING`], or aborts it: why, then.
    fn give_back(&self) -> Result<(), String> {
        let deadline = Instant::now() + DROPPING;
        let Some(mut slot) = self.communicator.take_until(deadline) else {
            return Err(NO_ANSWER.to_owned());
        };
        let Some(communicator) = slot.take() else {
            return Ok(());
        };
        drop(slot);
        let backoff = Backoff::new();
        let mut status = self.api.finalize(&communicator);
        while status == Status::InProgress && Instant::now() < deadline {
            backoff.sleep();
            status = self.api.async_error(&communicator);
        }
        let finalized = status == Status::Success;
        let api = self.api.clone();
        let ended = bounded("everburn-nccl-end", DROPPING, move || match finalized {
            true => api.destroy(communicator),
            false => api.abort(communicator),
        });
        match (finalized, ended) {
            (true, Some(_)) => Ok(()),
            (false, _) if !status.is_well() => Err(status.describe(&self.api.last_error())),
            _ => Err(NO_ANSWER.to_owned()),
        }
    }
}

impl Drop for NcclBackend {
    /// Nobody waits for ever: what does not end within two seconds is aborted, and with it the process group, for the
    /// others would wait for it.
    fn drop(&mut self) {
        let core = &self.core;
        let call = core.calls.device_call(Call::Named("drop"));
        if std::thread::panicking() {
            core.group.abort("this rank has panicked");
            core.abort_communicator();
        } else if let Ok(is_over) = core.drain(&call, Some(Instant::now() + DROPPING)) {
            if is_over {
                if let Err(reason) = core.give_back() {
                    tracing::warn!("NCCL is left without a proper end: {reason}");
                }
            } else if let Some(front) = core.front() {
                core.group.abort(format!(
                    "this rank has dropped the NCCL backend while {} was under way",
                    front.call
                ));
                core.abort_communicator();
            }
        }
        lock(&core.state).closing = true;
        core.changed.notify_all();
    }
}
