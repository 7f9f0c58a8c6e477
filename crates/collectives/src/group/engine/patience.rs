//! How to wait for other ranks without wasting what they need to go on.

use std::time::{Duration, Instant};

/// Who waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pace {
    /// The caller, who has nothing else to do until the result is there.
    Caller,
    /// The communication thread, beside a caller who computes on the same cores.
    Background,
}

/// How long a caller spins: several times what an answer of a running peer takes, and about what
/// it costs to be woken up.
const SPIN: Duration = Duration::from_micros(15);

/// As [`SPIN`], for the communication thread.
const BACKGROUND_SPIN: Duration = Duration::from_micros(3);

/// How often a rank yields its core to the others before it sleeps, where there are more ranks
/// than cores: about once for each of them that is to come first.
const YIELDS: u32 = 4;

/// How many turns pass between two looks at the clock.
const CLOCK: u32 = 16;

/// What to do when nothing could be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    Again,
    Yield,
    Sleep,
}

/// How far a rank has come from spinning to sleeping.
#[derive(Debug)]
pub(super) struct Patience {
    spin: Duration,
    yields: u32,
    turns: u32,
    yielded: u32,
    since: Option<Instant>,
}

impl Patience {
    /// `crowded`: more ranks than cores wait on this machine.
    pub(super) const fn new(pace: Pace, crowded: bool) -> Self {
        let (spin, yields) = match (pace, crowded) {
            (Pace::Caller, false) => (SPIN, 0),
            (Pace::Caller, true) => (Duration::ZERO, YIELDS),
            (Pace::Background, false) => (BACKGROUND_SPIN, 0),
            (Pace::Background, true) => (Duration::ZERO, 0),
        };
        Self {
            spin,
            yields,
            turns: 0,
            yielded: 0,
            since: None,
        }
    }

    /// Something was moved.
    pub(super) fn renew(&mut self) {
        (self.turns, self.yielded, self.since) = (0, 0, None);
    }

    /// What to do now.
    pub(super) fn turn(&mut self) -> Turn {
        self.turns += 1;
        // The first turn after a move costs nothing: often the next one moves something too.
        if self.turns == 1 {
            return Turn::Again;
        }
        if !self.spin.is_zero() {
            std::hint::spin_loop();
            if !self.turns.is_multiple_of(CLOCK) {
                return Turn::Again;
            }
            let now = Instant::now();
            if now.duration_since(*self.since.get_or_insert(now)) < self.spin {
                return Turn::Again;
            }
        }
        if self.yielded < self.yields {
            self.yielded += 1;
            return Turn::Yield;
        }
        Turn::Sleep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_in_the_way_yields_and_then_sleeps() {
        let mut patience = Patience::new(Pace::Caller, true);
        let turns: Vec<Turn> = (0..=YIELDS + 1).map(|_| patience.turn()).collect();
        assert_eq!(turns.first(), Some(&Turn::Again));
        assert_eq!(turns[1], Turn::Yield);
        assert_eq!(turns.last(), Some(&Turn::Sleep));
        patience.renew();
        assert_eq!(patience.turn(), Turn::Again);
    }

    #[test]
    fn a_spin_ends() {
        let mut patience = Patience::new(Pace::Caller, false);
        let turns = (0..).take_while(|_| patience.turn() != Turn::Sleep).count();
        assert!(turns > 1);
        let mut patience = Patience::new(Pace::Background, true);
        assert_eq!(
            (patience.turn(), patience.turn()),
            (Turn::Again, Turn::Sleep)
        );
    }
}
