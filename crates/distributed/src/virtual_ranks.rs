//! Sums that do not depend on how many ranks there are.
//!
//! A global batch is cut into a fixed number of shares, the logical shards; a rank computes several, one
//! after the other (Or et al. 2022, "VirtualFlow"; Li et al. 2023, "EasyScale"). What is added up over
//! them is added up along one binary tree over the logical shards, whichever rank holds them: floating-point
//! sums depend on their order, and this one is always the same.

use std::ops::Range;
use std::sync::Arc;

use everburn_collectives::group::{CollectiveError, Element, ProcessGroup};

use crate::rank_weights::RankWeights;
use crate::sampler::{SamplerError, share_of};

/// Which logical shards this rank computes.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::VirtualRanks;
///
/// // Four logical shards on three ranks.
/// let own = [0, 1, 2].map(|rank| VirtualRanks::new(4, rank, 3).unwrap().own());
/// assert_eq!(own, [0..2, 2..3, 3..4]);
/// assert!(VirtualRanks::new(2, 0, 3).is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualRanks {
    count: usize,
    rank: usize,
    /// By rank, those that it computes.
    of_ranks: Arc<[Range<usize>]>,
}

impl VirtualRanks {
    /// `count` logical shards, of which `rank` of `world_size` has its share.
    ///
    /// # Errors
    /// [`SamplerError::TooFewVirtualRanks`] if some rank would have none.
    ///
    /// # Panics
    /// Panics if the rank is not in the world.
    pub fn new(count: usize, rank: usize, world_size: usize) -> Result<Self, SamplerError> {
        assert!(rank < world_size, "rank {rank} of {world_size}");
        if count < world_size {
            return Err(SamplerError::TooFewVirtualRanks { count, world_size });
        }
        let of_ranks = (0..world_size).map(|rank| share_of(count, rank, world_size));
        Ok(Self {
            count,
            rank,
            of_ranks: of_ranks.collect(),
        })
    }

    /// The same logical shards, shared out in proportion to `weights`, of which there is one for each rank.
    pub(crate) fn balanced(&self, weights: &RankWeights) -> Self {
        Self {
            of_ranks: weights.parts(self.count).into(),
            ..self.clone()
        }
    }

    /// As many logical shards, for another rank or a world of another size.
    pub(crate) fn on_rank(&self, rank: usize, world_size: usize) -> Result<Self, SamplerError> {
        Self::new(self.count, rank, world_size)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Those of this rank, in the order in which it computes them.
    pub fn own(&self) -> Range<usize> {
        self.of_ranks[self.rank].clone()
    }

    /// Those of each rank.
    pub(crate) fn of_ranks(&self) -> &[Range<usize>] {
        &self.of_ranks
    }

    /// The sum of what all logical shards have, in their order, along the tree.
    ///
    /// ```
    /// # mod everburn { pub use everburn_distributed as distributed; }
    /// use everburn::distributed::VirtualRanks;
    ///
    /// let ranks = VirtualRanks::new(3, 0, 1).unwrap();
    /// assert_eq!(ranks.fold([1.0, 2.0, 3.0], |a, b| a + b), Some(6.0));
    /// ```
    pub fn fold<T>(
        &self,
        values: impl IntoIterator<Item = T>,
        mut add: impl FnMut(T, T) -> T,
    ) -> Option<T> {
        let mut sums = Sums::new(self.count);
        for (virtual_rank, value) in values.into_iter().enumerate() {
            sums.push(virtual_rank..virtual_rank + 1, value, &mut add);
        }
        sums.nodes.pop().map(|(_, value)| value)
    }

    /// What is to be done with what each of this rank's logical shards yields.
    pub(crate) fn additions(&self) -> Vec<Addition> {
        let mut sums = Sums::new(self.count);
        let own = self.own();
        own.map(|virtual_rank| {
            let slot = sums.nodes.len();
            sums.push(virtual_rank..virtual_rank + 1, (), &mut |(), ()| ());
            let merges = slot + 1 - sums.nodes.len();
            Addition { slot, merges }
        })
        .collect()
    }

    /// The parts of the tree that the logical shards of `rank` make up, in order.
    fn nodes(&self, rank: usize) -> Vec<Range<usize>> {
        let mut sums = Sums::new(self.count);
        for virtual_rank in self.of_ranks[rank].clone() {
            sums.push(virtual_rank..virtual_rank + 1, (), &mut |(), ()| ());
        }
        sums.nodes.into_iter().map(|(node, ())| node).collect()
    }

    /// How many sums this rank holds in the end.
    pub(crate) fn num_nodes(&self) -> usize {
        self.nodes(self.rank).len()
    }

    /// Adds `nodes`, this rank's sums, to those of all others, which all call it; all get the whole sum,
    /// and how many bytes this rank has handed over. Each rank adds up one part of the elements.
    pub(crate) fn all_reduce<T: Element>(
        &self,
        nodes: &[&[T]],
        group: &ProcessGroup,
        mut add: impl FnMut(&mut T, T),
    ) -> Result<(Vec<T>, u64), CollectiveError> {
        let length = nodes.first().map_or(0, |node| node.len());
        let world_size = self.of_ranks.len();
        let part = |rank| share_of(length, rank, world_size);
        let lists = (0..world_size).map(|rank| {
            let parts = nodes.iter().flat_map(|node| &node[part(rank)]);
            parts.copied().collect()
        });
        let came = group.all_to_all::<T>(lists.collect()).wait()?;
        let own = part(self.rank).len();
        let mut sums = Sums::new(self.count);
        for (rank, list) in came.into_iter().enumerate() {
            let mut rest = list;
            for node in self.nodes(rank) {
                let others = rest.split_off(own.min(rest.len()));
                let part = std::mem::replace(&mut rest, others);
                sums.push(node, part, &mut |mut left: Vec<T>, right| {
                    for (left, right) in left.iter_mut().zip(right) {
                        add(left, right);
                    }
                    left
                });
            }
        }
        let sum = sums.nodes.pop().map(|(_, sum)| sum).unwrap_or_default();
        let handed_over = nodes.len() * length + sum.len() * (world_size - 1);
        let parts = group.all_gather_varied(sum).wait()?;
        Ok((parts.concat(), (handed_over * size_of::<T>()) as u64))
    }
}

/// What becomes of a logical shard's gradient on a rank that keeps sums on a stack: it is pushed as number
/// `slot`, then the upper two sums are made one, `merges` times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Addition {
    pub(crate) slot: usize,
    pub(crate) merges: usize,
}

/// Sums of neighbours, each a node of the tree: two that have the same parent are made one at once.
struct Sums<T> {
    count: usize,
    nodes: Vec<(Range<usize>, T)>,
}

impl<T> Sums<T> {
    fn new(count: usize) -> Self {
        Self {
            count,
            nodes: Vec::new(),
        }
    }

    fn push(&mut self, node: Range<usize>, value: T, add: &mut impl FnMut(T, T) -> T) {
        self.nodes.push((node, value));
        while let [.., (left, _), (right, _)] = self.nodes.as_slice()
            && is_split(self.count, left, right)
        {
            if let (Some((right, value)), Some((left, sum))) = (self.nodes.pop(), self.nodes.pop())
            {
                self.nodes.push((left.start..right.end, add(sum, value)));
            }
        }
    }
}

/// Whether `left` and `right` are the two halves of a node of the tree over `0..count`: the left half of
/// a node is the largest power of two that leaves something for the right one.
fn is_split(count: usize, left: &Range<usize>, right: &Range<usize>) -> bool {
    let mut node = 0..count;
    while node.len() > 1 {
        let middle = node.start + node.len().next_power_of_two() / 2;
        if node == (left.start..right.end) {
            return middle == left.end && middle == right.start;
        }
        node = match left.start < middle {
            true => node.start..middle,
            false => middle..node.end,
        };
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_ranks::on_ranks;

    fn written(count: usize) -> String {
        let ranks = VirtualRanks::new(count, 0, 1).unwrap();
        let names = (0..count).map(|number| number.to_string());
        ranks.fold(names, |a, b| format!("({a}+{b})")).unwrap()
    }

    #[test]
    fn the_tree_is_of_powers_of_two() {
        assert_eq!(written(1), "0");
        assert_eq!(written(4), "((0+1)+(2+3))");
        assert_eq!(written(5), "(((0+1)+(2+3))+4)");
        assert_eq!(written(7), "(((0+1)+(2+3))+((4+5)+6))");
    }

    #[test]
    fn a_rank_keeps_no_more_sums_than_it_must() {
        let of = |count, rank, world_size| VirtualRanks::new(count, rank, world_size).unwrap();
        assert_eq!(of(8, 1, 2).nodes(1), vec![4..8; 1]);
        assert_eq!(of(4, 0, 3).nodes(0), vec![0..2; 1]);
        assert_eq!(of(6, 0, 2).nodes(0), [0..2, 2..3]);
        let additions = of(4, 0, 1).additions();
        let found = additions.iter().map(|a| (a.slot, a.merges));
        assert_eq!(found.collect::<Vec<_>>(), [(0, 0), (1, 1), (1, 0), (2, 2)]);
    }

    #[test]
    fn sums_have_the_same_bits_on_any_number_of_ranks() {
        const LENGTH: usize = 1001;
        let value = |virtual_rank: usize, index: usize| {
            let mixed = (virtual_rank * 7919 + index).wrapping_mul(2_654_435_761) % 1_000_003;
            mixed as f32 * 1e-3 - 300.0
        };
        for count in [1, 2, 4, 5, 6, 7, 12] {
            let mut expected: Option<Vec<f32>> = None;
            for world_size in 1..=count.min(5) {
                // Equal parts, and the last rank four times as fast.
                for slowest in [1.0, 4.0] {
                    let mut seconds = vec![slowest; world_size];
                    seconds[world_size - 1] = 1.0;
                    let weights = RankWeights::of_speed(count, &seconds);
                    let sums = on_ranks(world_size, |group| {
                        let ranks = VirtualRanks::new(count, group.rank(), world_size).unwrap();
                        let ranks = ranks.balanced(&weights);
                        let mut sums = Sums::new(count);
                        for own in ranks.own() {
                            let values = (0..LENGTH).map(|index| value(own, index));
                            sums.push(own..own + 1, values.collect(), &mut add);
                        }
                        let nodes = sums.nodes.iter().map(|(_, sum)| sum.as_slice());
                        let nodes = nodes.collect::<Vec<_>>();
                        let plus = |a: &mut f32, b| *a += b;
                        ranks.all_reduce(&nodes, &group, plus).unwrap().0
                    });
                    for sum in sums {
                        assert_eq!(sum.len(), LENGTH);
                        let expected = expected.get_or_insert_with(|| sum.clone());
                        assert_eq!(*expected, sum, "{count} on {world_size}, {weights}");
                    }
                }
            }
        }
    }

    fn add(mut left: Vec<f32>, right: Vec<f32>) -> Vec<f32> {
        left.iter_mut().zip(right).for_each(|(a, b)| *a += b);
        left
    }
}
