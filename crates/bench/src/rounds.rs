//! Rounds: every side once in each, forwards and backwards in turn. So what grows with time falls on all sides alike,
//! and so does a slow minute of the machine.

use everburn_record::statistics::{Spread, median_ratio};

use crate::failure::Failure;

/// What each side has yielded, by round.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rounds<T>(pub(crate) Vec<Vec<T>>);

impl<T> Rounds<T> {
    /// Runs all sides; `run` is told the round and the side, and `tell` says a round in words.
    pub(crate) fn in_turn(
        rounds: usize,
        sides: usize,
        mut run: impl FnMut(usize, usize) -> Result<T, Failure>,
        tell: impl Fn(&[T]) -> String,
    ) -> Result<Self, Failure> {
        let mut all = Vec::with_capacity(rounds);
        for round in 0..rounds {
            let mut order: Vec<_> = (0..sides).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            let mut done = Vec::with_capacity(sides);
            for side in order {
                done.push((side, run(round, side)?));
            }
            done.sort_by_key(|(side, _)| *side);
            let done: Vec<_> = done.into_iter().map(|(_, yielded)| yielded).collect();
            eprintln!("[round {}/{rounds}] {}", round + 1, tell(&done));
            all.push(done);
        }
        Ok(Self(all))
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// A number of a side, by round.
    pub(crate) fn of(&self, side: usize, what: impl Fn(&T) -> f64) -> Vec<f64> {
        self.0.iter().map(|round| what(&round[side])).collect()
    }

    pub(crate) fn spread(&self, side: usize, what: impl Fn(&T) -> f64) -> Option<Spread> {
        Spread::of(&self.of(side, what))
    }

    pub(crate) fn median(&self, side: usize, what: impl Fn(&T) -> f64) -> f64 {
        self.spread(side, what)
            .map_or(f64::NAN, |spread| spread.median)
    }

    /// How much more a side has than the first, compared within each round; less is negative.
    pub(crate) fn more(&self, side: usize, what: impl Fn(&T) -> f64) -> f64 {
        let ratio = median_ratio(&self.of(side, &what), &self.of(0, &what));
        ratio.map_or(f64::NAN, |ratio| ratio - 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sides_run_once_a_round_forwards_and_backwards() {
        let mut order = Vec::new();
        let run = |round: usize, side: usize| {
            order.push(side);
            Ok((100 * (round + 1) + 50 * side) as f64)
        };
        let rounds = Rounds::in_turn(2, 3, run, |_| String::new()).unwrap();
        assert_eq!(order, [0, 1, 2, 2, 1, 0]);
        let number = |yielded: &f64| *yielded;
        assert_eq!(rounds.of(1, number), [150.0, 250.0]);
        assert_eq!((rounds.count(), rounds.median(1, number)), (2, 200.0));
        // 1.5 and 1.25 times as much.
        assert_eq!(rounds.more(1, number), 0.375);
    }

    #[test]
    fn a_side_that_fails_ends_all() {
        let failed =
            Rounds::<f64>::in_turn(2, 3, |_, _| Err(Failure::Interrupted), |_| String::new());
        assert_eq!(failed, Err(Failure::Interrupted));
    }
}
