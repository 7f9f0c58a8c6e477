//! The thread that looks after what is under way, whether or not anybody waits for it: a host that is
//! in a call of its own (reading a loss back, say) after a collective that will never end is freed
//! by the abort.

use std::sync::Arc;
use std::time::{Duration, Instant};

use everburn_collectives::sync::{lock, wait_until};

use super::core::Core;

/// How long after a failure, or after the group is left, the GPU may take to be done with the
/// buffers; then they are never freed.
const RELEASING: Duration = Duration::from_secs(10);

/// Looks after the operations of `core` until it is closed.
pub(crate) fn supervise(core: &Arc<Core>) {
    let mut closed_at = None;
    loop {
        let state = lock(&core.state);
        let tick = match state.under_way.is_empty() {
            // FailureNotifier of the others' end is looked for all the same.
            true => core.config.tick * 5,
            false => core.config.tick,
        };
        let (state, _) = wait_until(&core.changed, state, Instant::now() + tick);
        let closing = state.closing;
        let idle = state.under_way.is_empty();
        drop(state);
        if closing && (idle || expired(&mut closed_at)) {
            leave_the_rest(core);
            return;
        }
        look(core);
    }
}

fn expired(since: &mut Option<Instant>) -> bool {
    since.get_or_insert_with(Instant::now).elapsed() > RELEASING
}

fn look(core: &Core) {
    if core.is_well() {
        let monitor = core.monitor.as_ref().and_then(|monitor| monitor.ended());
        let notifier = || core.notifier.as_ref().and_then(|notifier| notifier.heard());
        if let Some(ended) = monitor.or_else(notifier) {
            core.ended(&ended);
        }
    }
    if let Err(source) = core.retire() {
        // Every call that follows is told; that it is so is known after the first time.
        core.gpu_failed(&core.present(), source);
        return;
    }
    if !core.is_well() {
        return;
    }
    let status = core.async_status();
    if !status.is_well() {
        core.refused(&core.present(), status);
        return;
    }
    // The error is told to whoever waits, and to every call that follows.
    let _ = core.keep_deadline(&core.present());
}

/// What the GPU has not finished by now may be written to for as long as the process lives.
fn leave_the_rest(core: &Core) {
    let left: Vec<_> = lock(&core.state).under_way.drain(..).collect();
    for in_flight in left {
        in_flight.leak();
        tracing::warn!(
            group = core.config.name,
            "the buffers of {} are never freed: the GPU has not finished it",
            in_flight.context.operation
        );
    }
}
