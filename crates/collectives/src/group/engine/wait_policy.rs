//! Waiting for other ranks: spin, yield or sleep.

use std::time::{Duration, Instant};

/// The thread that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitPolicy {
    /// The caller, which is idle until the result has arrived.
    Caller,
    /// The communication thread, while the caller computes on the same cores.
    Background,
}

/// The spin time of a caller: several times the round trip to a running peer, and about the cost of a
/// wake-up.
const SPIN: Duration = Duration::from_micros(15);

/// The spin time of the communication thread.
const BACKGROUND_SPIN: Duration = Duration::from_micros(3);

/// The number of yields before a sleep on an oversubscribed machine: about one for each rank that must run
/// first.
const YIELDS: u32 = 4;

/// The number of iterations between two readings of the clock.
const CLOCK: u32 = 16;

/// The next action after a poll without progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitAction {
    Retry,
    Yield,
    Sleep,
}

/// The state of one wait, from spinning to sleeping.
#[derive(Debug)]
pub(super) struct Backoff {
    spin: Duration,
    yields: u32,
    turns: u32,
    yielded: u32,
    since: Option<Instant>,
}

impl Backoff {
    /// `oversubscribed`: the machine has more ranks than cores.
    pub(super) const fn new(wait_policy: WaitPolicy, oversubscribed: bool) -> Self {
        let (spin, yields) = match (wait_policy, oversubscribed) {
            (WaitPolicy::Caller, false) => (SPIN, 0),
            (WaitPolicy::Caller, true) => (Duration::ZERO, YIELDS),
            (WaitPolicy::Background, false) => (BACKGROUND_SPIN, 0),
            (WaitPolicy::Background, true) => (Duration::ZERO, 0),
        };
        Self {
            spin,
            yields,
            turns: 0,
            yielded: 0,
            since: None,
        }
    }

    /// Starts again after progress.
    pub(super) fn reset(&mut self) {
        (self.turns, self.yielded, self.since) = (0, 0, None);
    }

    pub(super) fn next_action(&mut self) -> WaitAction {
        self.turns += 1;
        // Progress is often followed by more progress, so the first retry does not spin.
        if self.turns == 1 {
            return WaitAction::Retry;
        }
        if !self.spin.is_zero() {
            std::hint::spin_loop();
            if !self.turns.is_multiple_of(CLOCK) {
                return WaitAction::Retry;
            }
            let now = Instant::now();
            if now.duration_since(*self.since.get_or_insert(now)) < self.spin {
                return WaitAction::Retry;
            }
        }
        if self.yielded < self.yields {
            self.yielded += 1;
            return WaitAction::Yield;
        }
        WaitAction::Sleep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_oversubscribed_rank_yields_and_then_sleeps() {
        let mut backoff = Backoff::new(WaitPolicy::Caller, true);
        let turns: Vec<WaitAction> = (0..=YIELDS + 1).map(|_| backoff.next_action()).collect();
        assert_eq!(turns.first(), Some(&WaitAction::Retry));
        assert_eq!(turns[1], WaitAction::Yield);
        assert_eq!(turns.last(), Some(&WaitAction::Sleep));
        backoff.reset();
        assert_eq!(backoff.next_action(), WaitAction::Retry);
    }

    #[test]
    fn a_spin_ends() {
        let mut backoff = Backoff::new(WaitPolicy::Caller, false);
        let turns = (0..)
            .take_while(|_| backoff.next_action() != WaitAction::Sleep)
            .count();
        assert!(turns > 1);
        let mut backoff = Backoff::new(WaitPolicy::Background, true);
        assert_eq!(
            (backoff.next_action(), backoff.next_action()),
            (WaitAction::Retry, WaitAction::Sleep)
        );
    }
}
