//! How parameters are cut into slices, and where these lie in a bucket.

use std::ops::Range;

use crate::bucket::Bucket;

/// Every parameter is cut into slices of one length, one a rank, in the order of its numbers. Those of the
/// last ranks may be shorter than that, or empty: they are filled up with zeros, which no optimizer that treats
/// each number by itself ever changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
}

impl Cut {
    /// The length of a slice of a parameter of `elements` numbers.
    pub(crate) const fn length(self, elements: usize) -> usize {
        elements.div_ceil(self.world_size)
    }

    /// Which numbers are in the slice of `rank`, zeros not counted.
    pub(crate) fn of_rank(self, rank: usize, elements: usize) -> Range<usize> {
        let length = self.length(elements);
        let start = (rank * length).min(elements);
        start..(start + length).min(elements)
    }

    /// Which numbers are in this rank's slice.
    pub(crate) fn own(self, elements: usize) -> Range<usize> {
        self.of_rank(self.rank, elements)
    }

    /// The slice of `rank` of numbers of `size` bytes each.
    pub(crate) fn bytes(self, rank: usize, whole: &[u8], size: usize) -> Vec<u8> {
        let elements = whole.len() / size;
        let range = self.of_rank(rank, elements);
        let mut slice = whole[range.start * size..range.end * size].to_vec();
        slice.resize(self.length(elements) * size, 0);
        slice
    }
}

/// A bucket of which each rank is given its slices: one *segment* a rank, of its slices of all parameters of
/// the bucket, one after the other, and then one number a parameter that tells whether somebody used it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CutBucket {
    pub(crate) cut: Cut,
    /// By slot: where its slice begins in a segment, and how long it is.
    slots: Vec<Range<usize>>,
    /// How many elements a segment has, without flags.
    length: usize,
}

impl CutBucket {
    pub(crate) fn of(bucket: &Bucket, cut: Cut) -> Self {
        let mut length = 0;
        let slots = (0..bucket.parameters().len()).map(|slot| {
            let start = length;
            length += cut.length(bucket.range(slot).len());
            start..length
        });
        let slots = slots.collect();
        Self { cut, slots, length }
    }

    /// How many elements a segment has.
    pub(crate) fn segment(&self) -> usize {
        self.length + self.slots.len()
    }

    /// How many elements the bucket has.
    pub(crate) fn elements(&self) -> usize {
        self.cut.world_size * self.segment()
    }

    /// The place of a slot's slice in a segment.
    pub(crate) fn slice(&self, slot: usize) -> Range<usize> {
        self.slots[slot].clone()
    }

    /// The place of the slice of `rank` in the bucket.
    pub(crate) fn slice_of(&self, rank: usize, slot: usize) -> Range<usize> {
        let (start, slice) = (rank * self.segment(), self.slice(slot));
        start + slice.start..start + slice.end
    }

    /// The place of all gradients of the segment of `rank`, without flags.
    pub(crate) fn gradients_of(&self, rank: usize) -> Range<usize> {
        let start = rank * self.segment();
        start..start + self.length
    }

    /// The place of a slot's flag in a segment.
    pub(crate) fn flag(&self, slot: usize) -> usize {
        self.length + slot
    }
}

#[cfg(test)]
mod tests {
    use burn::module::ParamId;
    use burn::tensor::DType;

    use super::*;
    use crate::bucket::{BucketEntry, BucketLimits, BucketPlan};

    #[test]
    fn slices_together_are_the_whole_and_have_one_length() {
        for world_size in [1, 2, 3, 4, 7] {
            for elements in [0, 1, 2, 5, 8, 21_841] {
                let mut next = 0;
                for rank in 0..world_size {
                    let cut = Cut { rank, world_size };
                    let own = cut.own(elements);
                    assert!(own.is_empty() || own.start == next, "{own:?} after {next}");
                    next = own.end.max(next);
                    assert!(own.len() <= cut.length(elements));
                }
                assert_eq!(next, elements);
            }
        }
    }

    #[test]
    fn what_is_missing_at_the_end_is_zero() {
        let cut = |rank| Cut {
            rank,
            world_size: 4,
        };
        let whole = [1, 1, 2, 2, 3, 3, 4, 4, 5, 5];
        let slices = [0, 1, 2, 3].map(|rank| cut(0).bytes(rank, &whole, 2));
        assert_eq!(
            slices,
            [
                vec![1, 1, 2, 2],
                vec![3, 3, 4, 4],
                vec![5, 5, 0, 0],
                vec![0, 0, 0, 0]
            ]
        );
        assert_eq!(cut(3).own(5), 5..5);
    }

    #[test]
    fn a_segment_has_a_slice_of_each_parameter_and_its_flags() {
        let entry = |length: usize| BucketEntry {
            path: format!("p{length}"),
            id: ParamId::new(),
            shape: vec![length],
            dtype: DType::F32,
        };
        let limits = BucketLimits {
            first: 1 << 20,
            others: 1 << 20,
        };
        let plan = BucketPlan::in_reverse(&[entry(5), entry(4)], limits);
        let cut = Cut {
            rank: 1,
            world_size: 2,
        };
        let layout = CutBucket::of(&plan.buckets()[0], cut);
        assert_eq!((layout.segment(), layout.elements()), (7, 14));
        assert_eq!((layout.slice(0), layout.slice(1)), (0..2, 2..5));
        assert_eq!((layout.slice_of(1, 1), layout.flag(1)), (9..12, 6));
        assert_eq!(layout.gradients_of(1), 7..12);
    }
}
