//! Sums over logical shards, which have the same bits on any number of ranks.

use everburn_collectives::group::{CollectiveError, ProcessGroup, Work};
use everburn_distributed::VirtualRanks;

use crate::metrics::layout::MetricLayout;
use crate::metrics::sums::MetricSums;

/// What this rank's logical shards have found.
#[derive(Debug)]
pub(crate) struct VirtualSums {
    ranks: VirtualRanks,
    /// How many numbers each logical shard may add to its sums.
    others: usize,
    /// By logical shard of this one: nothing of those that have no samples.
    found: Vec<(MetricSums, Vec<f64>)>,
}

/// Sums on their way between the ranks.
pub(crate) struct PendingSums {
    ranks: VirtualRanks,
    layout: MetricLayout,
    others: usize,
    gathered: Work<Vec<Vec<f64>>>,
}

impl VirtualSums {
    /// Nothing found yet; each logical shard may add this many numbers to its sums.
    pub(crate) fn new(ranks: VirtualRanks, others: usize) -> Self {
        Self {
            others,
            found: vec![Default::default(); ranks.own().len()],
            ranks,
        }
    }

    /// What the `own`th of this rank's logical shards has found.
    pub(crate) fn set(&mut self, own: usize, sums: MetricSums, others: impl Iterator<Item = f64>) {
        self.found[own] = (sums, others.collect());
    }

    /// What they have found so far.
    pub(crate) fn found(&self) -> impl Iterator<Item = &MetricSums> + Clone {
        self.found.iter().map(|(sums, _)| sums)
    }

    /// Starts to tell all ranks, and whether this one wants to stop.
    pub(crate) fn send(
        self,
        stop: bool,
        layout: MetricLayout,
        group: &ProcessGroup,
    ) -> PendingSums {
        let width = layout.width() + self.others;
        let mut numbers = vec![0.0; self.found.len() * width];
        for ((sums, others), place) in self.found.iter().zip(numbers.chunks_exact_mut(width)) {
            let (own, rest) = place.split_at_mut(layout.width());
            layout.write(sums, own);
            for (place, number) in rest.iter_mut().zip(others) {
                *place = *number;
            }
        }
        numbers.push(f64::from(stop));
        PendingSums {
            ranks: self.ranks,
            layout,
            others: self.others,
            gathered: group.all_gather_varied(numbers),
        }
    }
}

impl PendingSums {
    /// The sums over all logical shards, the other numbers' too, and whether any rank wants to stop: the
    /// same on every rank.
    pub(crate) fn wait(self) -> Result<(MetricSums, Vec<f64>, bool), CollectiveError> {
        let width = self.layout.width() + self.others;
        let mut lists = self.gathered.wait()?;
        let mut stop = false;
        for list in &mut lists {
            stop |= list.pop().is_some_and(|vote| vote > 0.0);
        }
        let all = lists.iter().flat_map(|list| list.chunks_exact(width));
        let sum = self
            .ranks
            .fold(all.map(<[f64]>::to_vec), |mut left, right| {
                for (left, right) in left.iter_mut().zip(right) {
                    *left += right;
                }
                left
            });
        let mut sum = sum.unwrap_or_else(|| vec![0.0; width]);
        let others = sum.split_off(self.layout.width());
        Ok((self.layout.read(&sum), others, stop))
    }
}
