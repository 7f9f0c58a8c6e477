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

/// How long a rank sleeps on its doorbell before it polls its sockets: about the latency of a fast network.
const FIRST_PAUSE: Duration = Duration::from_micros(50);

/// The longest of these pauses where ranks share cores.
const LONGEST_PAUSE: Duration = Duration::from_millis(10);

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
    pause: Duration,
    longest_pause: Duration,
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
            pause: FIRST_PAUSE,
            longest_pause: match oversubscribed {
                true => LONGEST_PAUSE,
                false => FIRST_PAUSE,
            },
        }
    }

    /// Starts again after progress.
    pub(super) fn reset(&mut self) {
        (self.turns, self.yielded, self.since) = (0, 0, None);
        self.pause = FIRST_PAUSE;
    }

    /// How long to sleep before sockets are polled again. Where ranks share cores, each pause is twice the one before:
    /// the polls of ranks that wait take the time of those that they wait for. A message then waits at most as long
    /// again as its receiver has waited already.
    pub(super) fn next_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (2 * pause).min(self.longest_pause);
        pause
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
    fn pauses_grow_only_where_ranks_share_cores() {
        let pauses = |oversubscribed| {
            let mut backoff = Backoff::new(WaitPolicy::Background, oversubscribed);
            let pauses = [(); 12].map(|()| backoff.next_pause());
            backoff.reset();
            assert_eq!(backoff.next_pause(), FIRST_PAUSE);
            pauses
        };
        assert_eq!(pauses(false), [FIRST_PAUSE; 12]);
        let growing = pauses(true);
        assert_eq!(growing[..3], [1, 2, 4].map(|times| times * FIRST_PAUSE));
        assert_eq!(growing[11], LONGEST_PAUSE);
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
