//! Rounds: every side once in each, forwards and backwards in turn. So what grows with time falls on all sides alike,
//! and so does a slow minute of the machine.

use everburn_record::statistics::{Spread, median_ratio};

use crate::failure::Failure;

/// Runs each side once, backwards in every other round, which are counted from 0; returns what they have yielded, by side.
pub(crate) fn each_once<T>(
    round: usize,
    sides: usize,
    mut run: impl FnMut(usize) -> Result<T, Failure>,
) -> Result<Vec<T>, Failure> {
    let mut order: Vec<_> = (0..sides).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    let mut done = Vec::with_capacity(sides);
    for side in order {
        done.push((side, run(side)?));
    }
    done.sort_by_key(|(side, _)| *side);
    Ok(done.into_iter().map(|(_, yielded)| yielded).collect())
}

/// Our numbers and those of peers, one per round.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Beside {
    /// Whether more is faster: else they are times.
    pub(crate) are_rates: bool,
    pub(crate) ours: Vec<f64>,
    /// By peer, in the order in which they were asked for; empty where one was not measured.
    pub(crate) peers: Vec<Vec<f64>>,
}

impl Beside {
    /// Adds a round: our number, then the peers'.
    pub(crate) fn add(&mut self, round: impl IntoIterator<Item = f64>) {
        let sides = std::iter::once(&mut self.ours).chain(&mut self.peers);
        sides
            .zip(round)
            .for_each(|(side, number)| side.push(number));
    }

    /// How many times as fast as each peer we are, compared within each round.
    pub(crate) fn ratios(&self) -> impl Iterator<Item = Option<f64>> {
        self.peers.iter().map(|theirs| match self.are_rates {
            true => median_ratio(&self.ours, theirs),
            false => median_ratio(theirs, &self.ours),
        })
    }

    /// The ratio to the peer that is the fastest, which is the lowest.
    pub(crate) fn to_fastest(&self) -> Option<f64> {
        self.ratios().flatten().min_by(f64::total_cmp)
    }

    /// Whether the rounds of each side agree.
    pub(crate) fn is_steady(&self) -> bool {
        let sides = std::iter::once(&self.ours).chain(&self.peers);
        let mut spreads = sides.filter_map(|numbers| Spread::of(numbers));
        spreads.all(|spread| spread.is_steady())
    }
}

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
            let done = each_once(round, sides, |side| run(round, side))?;
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
    fn ours_is_compared_with_each_peer_and_with_the_fastest() {
        let mut times = Beside {
            peers: vec![Vec::new(); 3],
            ..Beside::default()
        };
        // The third was not measured.
        times.add([2.0, 4.0, 3.0]);
        times.add([2.0, 6.0, 3.0]);
        assert_eq!(
            times.ratios().collect::<Vec<_>>(),
            [Some(2.5), Some(1.5), None]
        );
        assert_eq!((times.to_fastest(), times.is_steady()), (Some(1.5), false));
        let rates = Beside {
            are_rates: true,
            ..times
        };
        assert_eq!(rates.to_fastest(), Some((0.5 + 1.0 / 3.0) / 2.0));
        assert_eq!(Beside::default().to_fastest(), None);
    }

    #[test]
    fn a_side_that_fails_ends_all() {
        let failed =
            Rounds::<f64>::in_turn(2, 3, |_, _| Err(Failure::Interrupted), |_| String::new());
        assert_eq!(failed, Err(Failure::Interrupted));
    }
}
