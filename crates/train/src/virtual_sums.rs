//! Sums over virtual ranks, which have the same bits on any number of ranks.

use everburn_collectives::group::{CollectiveError, ProcessGroup, Work};
use everburn_distributed::VirtualRanks;

use crate::tally::Tally;

/// The numbers of a [`Tally`].
const TALLY: usize = 4;

/// What this rank's virtual ranks have found.
#[derive(Debug)]
pub(crate) struct VirtualSums {
    ranks: VirtualRanks,
    /// How many numbers each virtual rank has.
    width: usize,
    numbers: Vec<f64>,
}

/// Sums on their way between the ranks.
pub(crate) struct PendingSums {
    ranks: VirtualRanks,
    width: usize,
    gathered: Work<Vec<Vec<f64>>>,
}

impl VirtualSums {
    /// Nothing found yet; each virtual rank may add so many numbers to its tally.
    pub(crate) fn new(ranks: VirtualRanks, others: usize) -> Self {
        let width = TALLY + others;
        Self {
            ranks,
            width,
            numbers: vec![0.0; ranks.own().len() * width],
        }
    }

    /// What the `own`th of this rank's virtual ranks has found.
    pub(crate) fn set(&mut self, own: usize, tally: Tally, others: impl Iterator<Item = f64>) {
        let Tally {
            loss_sum,
            correct,
            predictions,
            samples,
        } = tally;
        let counts = [correct, predictions, samples].map(|count| count as f64);
        let numbers = std::iter::once(loss_sum).chain(counts).chain(others);
        let place = &mut self.numbers[own * self.width..][..self.width];
        for (place, number) in place.iter_mut().zip(numbers) {
            *place = number;
        }
    }

    /// Starts to tell all ranks, and whether this one wants to stop.
    pub(crate) fn tell(mut self, stop: bool, group: &ProcessGroup) -> PendingSums {
        self.numbers.push(f64::from(stop));
        PendingSums {
            ranks: self.ranks,
            width: self.width,
            gathered: group.all_gather_varied(self.numbers),
        }
    }
}

impl PendingSums {
    /// The sums over all virtual ranks, the other numbers' too, and whether any rank wants to stop: the
    /// same on every rank.
    pub(crate) fn wait(self) -> Result<(Tally, Vec<f64>, bool), CollectiveError> {
        let mut lists = self.gathered.wait()?;
        let mut stop = false;
        for list in &mut lists {
            stop |= list.pop().is_some_and(|vote| vote > 0.0);
        }
        let all = lists.iter().flat_map(|list| list.chunks_exact(self.width));
        let sum = self
            .ranks
            .fold(all.map(<[f64]>::to_vec), |mut left, right| {
                for (left, right) in left.iter_mut().zip(right) {
                    *left += right;
                }
                left
            });
        let mut sum = sum.unwrap_or_else(|| vec![0.0; self.width]);
        let others = sum.split_off(TALLY);
        let tally = Tally {
            loss_sum: sum[0],
            correct: sum[1] as u64,
            predictions: sum[2] as u64,
            samples: sum[3] as u64,
        };
        Ok((tally, others, stop))
    }
}
