//! The thread that looks after what is under way, whether or not anybody waits for it: a host that is
//! in a call of its own (reading a loss back, say) after a collective that will never end is freed
//! by the abort.

use std::sync::Arc;
use std::time::{Duration, Instant};

use everburn_collectives::group::{Call, CollectiveError};
use everburn_collectives::sync::{lock, wait_until};

use super::core::Core;

/// How often operations in flight are looked at; without any, the group is looked at a fifth as often.
const TICK: Duration = Duration::from_millis(20);

/// How long after a failure, or after NCCL is left, the GPU may take to be done with the
/// buffers; then they are never freed.
const RELEASING: Duration = Duration::from_secs(10);

/// Looks after the operations of `core` until it is closed.
pub(crate) fn supervise(core: &Arc<Core>) {
    let (mut closed_at, mut has_failed) = (None, false);
    loop {
        let state = lock(&core.state);
        let tick = match state.under_way.is_empty() {
            // The failures of others are looked for all the same.
            true => TICK * 5,
            false => TICK,
        };
        let (state, _) = wait_until(&core.changed, state, Instant::now() + tick);
        let (closing, idle) = (state.closing, state.under_way.is_empty());
        drop(state);
        if closing && (idle || expired(&mut closed_at)) {
            leave_the_rest(core);
            return;
        }
        if has_failed {
            // The buffers of what the abort has ended are released. An error of the GPU has been logged.
            let _ = core.retire();
        } else if let Err(error) = look(core) {
            has_failed = true;
            tracing::error!("{error}");
        }
    }
}

fn expired(since: &mut Option<Instant>) -> bool {
    since.get_or_insert_with(Instant::now).elapsed() > RELEASING
}

fn look(core: &Core) -> Result<(), CollectiveError> {
    if let Some(front) = core.front() {
        let retired = core.retire();
        retired.map_err(|source| core.gpu_failed(&front.call, &source))?;
    }
    if let Some(front) = core.front() {
        core.check_library(&front.call)?;
        return core.keep_deadline(&front.call);
    }
    // Without an operation, a rank that is gone is missed by nobody.
    if core.calls.failure().is_some() {
        core.abort_communicator();
    }
    let call = core.calls.device_call(Call::Named("no operation"));
    match core.async_status() {
        status if status.is_well() => Ok(()),
        wrong => Err(core.refused(&call, wrong)),
    }
}

/// What the GPU has not finished by now may be written to for as long as the process lives.
fn leave_the_rest(core: &Core) {
    let left: Vec<_> = lock(&core.state).under_way.drain(..).collect();
    for in_flight in left {
        in_flight.leak();
        tracing::warn!(
            "the buffers of {} are never freed: the GPU has not finished it",
            in_flight.call
        );
    }
}
