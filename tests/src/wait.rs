//! Waiting for evidence.

use std::time::{Duration, Instant};

/// Longer than anything here takes on a busy machine, where a process may stand without a core for seconds, so
/// that a hang fails instead of hanging.
pub const DEADLINE: Duration = Duration::from_secs(240);

/// Within this time after a rank or the launcher was killed no process may be left: some seconds, and what a busy
/// machine adds. No timeout between ranks ends so early.
pub const ORPHAN_DEADLINE: Duration = Duration::from_secs(30);

pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Looks again and again until `condition` holds; `false` if it does not within `limit`.
pub fn holds_within(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if condition() {
            return true;
        }
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
