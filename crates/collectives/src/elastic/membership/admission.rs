//! How long a process waits for a group that works to accept it.

use std::time::{Duration, Instant};

use crate::heartbeat::LastBeat;

/// How many times in a timeout of the group a process looks whether its members beat.
const LOOKS: u32 = 4;

/// How many timeouts of the group a process waits at most. New processes are accepted between two steps, or between two rounds of
/// local steps; a round may take longer than a timeout, which is for the exchange after it.
const MOST_TIMEOUTS: u32 = 12;

/// How many members' beats are read: of a group that works, any of them shows it.
pub(super) const HEARD: usize = 16;

/// The wait of a process for a group that has not accepted it yet. It takes long only while heartbeats of the members arrive:
/// without them, it ends after a timeout.
pub(super) struct Admission {
    began: Instant,
    looked: Instant,
    /// When new beats were seen last.
    alive: Instant,
    beats: Vec<LastBeat>,
}

impl Admission {
    pub(super) fn begin(now: Instant) -> Self {
        Self {
            began: now,
            looked: now,
            alive: now,
            beats: Vec::new(),
        }
    }

    /// Whether the beats are to be read again.
    pub(super) fn is_due(&self, now: Instant, timeout: Duration) -> bool {
        now.duration_since(self.looked) >= timeout / LOOKS
    }

    /// Takes the beats that were read.
    pub(super) fn look(&mut self, now: Instant, beats: Vec<LastBeat>) {
        if !beats.is_empty() && beats != self.beats {
            self.alive = now;
        }
        (self.looked, self.beats) = (now, beats);
    }

    /// The newest step of the group; `None` if no beat has arrived for a timeout.
    pub(super) fn step(&self, now: Instant, timeout: Duration) -> Option<u64> {
        let steps = self.beats.iter().map(|beat| beat.step);
        steps
            .max()
            .filter(|_| now.duration_since(self.alive) < timeout)
    }

    /// How much longer the process waits at most.
    pub(super) fn left(&self, now: Instant, timeout: Duration) -> Duration {
        let most = timeout.saturating_mul(MOST_TIMEOUTS);
        let left = most.saturating_sub(now.duration_since(self.began));
        match now.duration_since(self.alive) < timeout {
            true => left,
            false => Duration::ZERO,
        }
    }
}
