//! In what proportion ranks of different speed share what there is to compute.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

/// In what proportion ranks share the samples of a global batch, or its logical shards: a number for each rank.
///
/// All ranks must have the same. The numbers are whole, so that all derive the same parts from them.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use std::num::NonZeroUsize;
/// use everburn::distributed::RankWeights;
///
/// let weights: RankWeights = [3, 1].map(|weight| NonZeroUsize::new(weight).unwrap()).into_iter().collect();
/// assert_eq!(weights.counts(64), [48, 16]);
/// assert_eq!(weights.counts(2), [1, 1], "no rank is left without while there is one for each");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankWeights(Arc<[NonZeroUsize]>);

impl RankWeights {
    /// The weights with which ranks share `units` so that the slowest is done as early as can be: a rank takes
    /// `seconds_per_unit` for each, which is positive. Every rank has at least one, and the weights add up to `units`.
    ///
    /// One unit after the other goes to the rank that would be done first with it, in `units * log(ranks)` steps.
    ///
    /// ```
    /// # mod everburn { pub use everburn_distributed as distributed; }
    /// use everburn::distributed::RankWeights;
    ///
    /// let weights = RankWeights::of_speed(64, &[1.2e-3, 3.6e-3]);
    /// assert_eq!(weights.to_string(), "48,16");
    /// ```
    ///
    /// # Panics
    /// Panics if there are fewer units than ranks.
    #[must_use]
    pub fn of_speed(units: usize, seconds_per_unit: &[f64]) -> Self {
        let ranks = seconds_per_unit.len();
        assert!(units >= ranks, "{units} units for {ranks} ranks");
        // Bits of positive numbers have the order of the numbers. Of two ranks alike the lower one is first.
        let done = |rank: usize, units: usize| {
            let seconds = seconds_per_unit[rank] * units as f64;
            Reverse((seconds.to_bits(), rank))
        };
        let mut counts = vec![NonZeroUsize::MIN; ranks];
        let mut next: BinaryHeap<_> = (0..ranks).map(|rank| done(rank, 2)).collect();
        for _ in ranks..units {
            let Some(Reverse((_, rank))) = next.pop() else {
                break;
            };
            counts[rank] = counts[rank].saturating_add(1);
            next.push(done(rank, counts[rank].get() + 1));
        }
        Self(counts.into())
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.0.len()
    }

    /// How many of `length` things each rank has: by the largest remainders, and by the lower ranks where these are
    /// equal. Every rank has one if there are enough.
    pub fn counts(&self, length: usize) -> Vec<usize> {
        let all: u128 = self.0.iter().map(|weight| weight.get() as u128).sum();
        let exact = |weight: &NonZeroUsize| length as u128 * weight.get() as u128;
        let whole = self.0.iter().map(|weight| (exact(weight) / all) as usize);
        let mut counts: Vec<usize> = whole.collect();
        let left = length - counts.iter().sum::<usize>();
        let mut by_remainder: Vec<usize> = (0..counts.len()).collect();
        by_remainder.sort_by_key(|rank| Reverse(exact(&self.0[*rank]) % all));
        for rank in by_remainder.into_iter().take(left) {
            counts[rank] += 1;
        }
        if length >= counts.len() {
            while let Some(without) = counts.iter().position(|count| *count == 0) {
                let most = counts.iter().copied().max().unwrap_or(0);
                let largest = counts.iter().position(|count| *count == most);
                counts[largest.unwrap_or(0)] -= 1;
                counts[without] += 1;
            }
        }
        counts
    }

    /// The contiguous part of `length` things that each rank has.
    pub(crate) fn parts(&self, length: usize) -> Vec<Range<usize>> {
        let mut start = 0;
        let part = |count: usize| {
            start += count;
            start - count..start
        };
        self.counts(length).into_iter().map(part).collect()
    }
}

impl FromIterator<NonZeroUsize> for RankWeights {
    fn from_iter<I: IntoIterator<Item = NonZeroUsize>>(weights: I) -> Self {
        Self(weights.into_iter().collect())
    }
}

impl fmt::Display for RankWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (rank, weight) in self.0.iter().enumerate() {
            if rank > 0 {
                f.write_str(",")?;
            }
            weight.fmt(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::share_of;

    fn weights(numbers: &[usize]) -> RankWeights {
        let numbers = numbers.iter().copied().filter_map(NonZeroUsize::new);
        numbers.collect()
    }

    #[test]
    fn parts_are_in_proportion_and_all_there_is() {
        assert_eq!(weights(&[3, 1]).counts(64), [48, 16]);
        assert_eq!(weights(&[2, 1, 1]).counts(7), [3, 2, 2]);
        assert_eq!(weights(&[100, 1]).counts(10), [9, 1], "nobody is left out");
        assert_eq!(
            weights(&[100, 1, 1]).counts(2),
            [2, 0, 0],
            "too few for all"
        );
        for numbers in [&[1_usize, 1][..], &[5, 1, 9], &[1, 1000, 1, 7]] {
            for length in 0..40 {
                let parts = weights(numbers).parts(length);
                let all = parts.iter().cloned().flatten();
                assert!(all.eq(0..length), "{numbers:?} of {length}: {parts:?}");
                let is_empty = |part: &Range<usize>| part.is_empty();
                assert!(length < numbers.len() || !parts.iter().any(is_empty));
            }
        }
    }

    #[test]
    fn equal_weights_are_equal_parts() {
        for ranks in [1, 2, 3, 7] {
            for length in [0, 1, 2, 6, 7, 8, 64, 101] {
                let parts = weights(&vec![5; ranks]).parts(length);
                let equal = (0..ranks).map(|rank| share_of(length, rank, ranks));
                assert_eq!(parts, equal.collect::<Vec<_>>(), "{length} on {ranks}");
            }
        }
    }

    #[test]
    fn the_slowest_rank_is_done_as_early_as_can_be() {
        let of_speed = |units, seconds: &[f64]| RankWeights::of_speed(units, seconds).to_string();
        assert_eq!(of_speed(64, &[1.0, 3.0]), "48,16");
        assert_eq!(of_speed(4, &[1.0, 2.0]), "3,1");
        assert_eq!(of_speed(7, &[1.0, 1.0, 1.0]), "3,2,2");
        assert_eq!(of_speed(3, &[1.0, 1.0, 1e9]), "1,1,1");
        let counts = RankWeights::of_speed(1000, &[0.5, 1e6]).counts(1000);
        assert_eq!(counts, [999, 1], "the weights are the counts");
    }
}
