//! Times in which this rank did not run.

use std::time::{Duration, Instant};

use super::Heartbeat;
use crate::runtime;
use crate::sync::lock;

/// A rank that has not run for this long says so, or earlier where others may have given it up by then.
const LONG_PAUSE: Duration = Duration::from_secs(3);

/// A busy machine may keep a thread from its cores for this long.
const BUSY: Duration = Duration::from_secs(1);

/// A time in which a process was stopped, or its machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pause {
    ended: Instant,
    length: Duration,
}

impl Heartbeat {
    /// Says so if this rank runs again after it has not for long, once, whichever thread runs first.
    pub(super) fn note_pause(&self) {
        let mut state = lock(&self.state);
        let ended = runtime::now();
        let Some(due) = state.sleeps_until else {
            return;
        };
        let length = ended.saturating_duration_since(due);
        let long = LONG_PAUSE.max(3 * self.options.interval);
        if length >= self.given_up_after().map_or(long, |after| long.min(after)) {
            state.paused = Some(Pause { ended, length });
            state.sleeps_until = None;
            tracing::warn!("this rank {}", did_not_run(length));
        }
    }

    /// How long this rank may not run before the others, who have the same timeout, give it up: they count from a beat that
    /// came up to an interval earlier, and find a new one up to an interval later.
    pub(super) fn given_up_after(&self) -> Option<Duration> {
        let after = self
            .options
            .timeout?
            .saturating_sub(2 * self.options.interval);
        Some(after.max(BUSY))
    }

    /// How long this rank did not run, if that is most of the time for which one of its operations has `waited` in vain,
    /// or so long that the others may just have given it up.
    pub(in crate::heartbeat) fn pause_in(&self, waited: Option<Duration>) -> Option<Duration> {
        self.note_pause();
        let pause = lock(&self.state).paused?;
        let ago = runtime::elapsed(pause.ended);
        let is_most = waited.is_some_and(|waited| ago < waited && 2 * pause.length > waited);
        let after = self.given_up_after();
        let is_long = after.is_some_and(|after| pause.length >= after);
        let is_given_up = is_long && self.options.timeout.is_some_and(|limit| ago < limit);
        (is_most || is_given_up).then_some(pause.length)
    }
}

pub(in crate::heartbeat) fn did_not_run(pause: Duration) -> String {
    format!(
        "has not run for {:.1} s: its process was stopped (SIGSTOP, a debugger) or swapped out, or its machine suspended or \
         short of cores; the others may have given it up",
        pause.as_secs_f64()
    )
}
