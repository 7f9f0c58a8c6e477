//! How parameters are split into shards, and where these are in a bucket.

use std::ops::Range;

use crate::bucket::Bucket;

/// Every parameter is split into shards of equal length, one per rank, in element order. The last ranks' shards may be
/// padded with zeros, which an elementwise optimizer never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ShardLayout {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
}

impl ShardLayout {
    /// The length of a shard of a parameter of `elements` elements, with padding.
    pub(crate) const fn length(self, elements: usize) -> usize {
        elements.div_ceil(self.world_size)
    }

    /// The elements in the shard of `rank`, without padding.
    pub(crate) fn of_rank(self, rank: usize, elements: usize) -> Range<usize> {
        let length = self.length(elements);
        let start = (rank * length).min(elements);
        start..(start + length).min(elements)
    }

    /// The elements in this rank's shard, without padding.
    pub(crate) fn own(self, elements: usize) -> Range<usize> {
        self.of_rank(self.rank, elements)
    }

    /// The shard of `rank`, of elements of `size` bytes each.
    pub(crate) fn bytes(self, rank: usize, full: &[u8], size: usize) -> Vec<u8> {
        let elements = full.len() / size;
        let range = self.of_rank(rank, elements);
        let mut shard = full[range.start * size..range.end * size].to_vec();
        shard.resize(self.length(elements) * size, 0);
        shard
    }
}

/// The layout of a bucket to reduce-scatter: one *segment* per rank, which holds its shards of all parameters of the
/// bucket and then a flag per parameter, which says whether a rank used it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShardedBucket {
    pub(crate) shards: ShardLayout,
    /// By slot: the range of its shard in a segment.
    slots: Vec<Range<usize>>,
    /// The elements in a segment, without flags.
    length: usize,
}

impl ShardedBucket {
    pub(crate) fn of(bucket: &Bucket, layout: ShardLayout) -> Self {
        let mut length = 0;
        let slots = (0..bucket.parameters().len()).map(|slot| {
            let start = length;
            length += layout.length(bucket.range(slot).len());
            start..length
        });
        let slots = slots.collect();
        Self {
            shards: layout,
            slots,
            length,
        }
    }

    /// The elements in a segment.
    pub(crate) fn segment(&self) -> usize {
        self.length + self.slots.len()
    }

    pub(crate) fn elements(&self) -> usize {
        self.shards.world_size * self.segment()
    }

    /// The elements in the segments of all ranks, without flags.
    pub(crate) fn gradients(&self) -> usize {
        self.shards.world_size * self.length
    }

    pub(crate) fn shard(&self, slot: usize) -> Range<usize> {
        self.slots[slot].clone()
    }

    pub(crate) fn shard_of(&self, rank: usize, slot: usize) -> Range<usize> {
        let (start, shard) = (rank * self.segment(), self.shard(slot));
        start + shard.start..start + shard.end
    }

    /// The range of the segment of `rank` in the bucket, without flags.
    pub(crate) fn gradients_of(&self, rank: usize) -> Range<usize> {
        let start = rank * self.segment();
        start..start + self.length
    }

    /// The index of a slot's flag in a segment.
    pub(crate) fn flag(&self, slot: usize) -> usize {
        self.length + slot
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::DType;

    use super::*;

    #[test]
    fn shards_together_are_the_full_parameter_and_have_one_length() {
        for world_size in [1, 2, 3, 4, 7] {
            for elements in [0, 1, 2, 5, 8, 21_841] {
                let mut next = 0;
                for rank in 0..world_size {
                    let layout = ShardLayout { rank, world_size };
                    let own = layout.own(elements);
                    assert!(own.is_empty() || own.start == next, "{own:?} after {next}");
                    next = own.end.max(next);
                    assert!(own.len() <= layout.length(elements));
                }
                assert_eq!(next, elements);
            }
        }
    }

    #[test]
    fn shards_are_padded_with_zeros() {
        let layout = |rank| ShardLayout {
            rank,
            world_size: 4,
        };
        let full = [1, 1, 2, 2, 3, 3, 4, 4, 5, 5];
        let shards = [0, 1, 2, 3].map(|rank| layout(0).bytes(rank, &full, 2));
        assert_eq!(
            shards,
            [
                vec![1, 1, 2, 2],
                vec![3, 3, 4, 4],
                vec![5, 5, 0, 0],
                vec![0, 0, 0, 0]
            ]
        );
        assert_eq!(layout(3).own(5), 5..5);
    }

    #[test]
    fn a_segment_has_a_shard_of_each_parameter_and_its_flags() {
        let layout = ShardLayout {
            rank: 1,
            world_size: 2,
        };
        let bucket = Bucket::of_shapes(&[&[4], &[5]], DType::F32);
        let layout = ShardedBucket::of(&bucket, layout);
        assert_eq!((layout.segment(), layout.elements()), (7, 14));
        assert_eq!(layout.gradients(), 10);
        assert_eq!((layout.shard(0), layout.shard(1)), (0..2, 2..5));
        assert_eq!((layout.shard_of(1, 1), layout.flag(1)), (9..12, 6));
        assert_eq!(layout.gradients_of(1), 7..12);
    }
}
