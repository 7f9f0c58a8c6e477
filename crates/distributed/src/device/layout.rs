//! Where gradients are in a flat buffer.

use std::ops::Range;

use crate::bucket::Bucket;

/// Each gradient begins at a multiple of this many bytes: CubeCL on CUDA requires it of a view into another tensor's
/// memory.
pub(crate) const ALIGNMENT: usize = 512;

/// The ranges of a bucket's gradients in a flat buffer. The padding between them is zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FlatLayout {
    ranges: Vec<Range<usize>>,
    length: usize,
}

impl FlatLayout {
    pub(crate) fn of(bucket: &Bucket) -> Self {
        let step = (ALIGNMENT / bucket.dtype().size()).max(1);
        let mut length = 0;
        let ranges = (0..bucket.slots().len()).map(|slot| {
            let start = length;
            let end = start + bucket.range(slot).len();
            length = end.next_multiple_of(step);
            start..end
        });
        let ranges = ranges.collect();
        Self { ranges, length }
    }

    pub(crate) fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// The length of the buffer, with padding.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// The padding between gradient `slot` and the next one.
    pub(crate) fn gap(&self, slot: usize) -> usize {
        let next = self.ranges.get(slot + 1);
        next.map_or(self.length, |next| next.start) - self.ranges[slot].end
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::DType;
    use proptest::prelude::*;

    use super::*;

    fn layout(lengths: &[usize], dtype: DType) -> FlatLayout {
        let shapes: Vec<&[usize]> = lengths.iter().map(std::slice::from_ref).collect();
        FlatLayout::of(&Bucket::of_shapes(&shapes, dtype))
    }

    #[test]
    fn gradients_begin_where_a_tensor_may() {
        let found = layout(&[10, 128, 129], DType::F32);
        assert_eq!(found.ranges(), [0..10, 128..256, 256..385]);
        assert_eq!((found.len(), found.gap(0), found.gap(2)), (512, 118, 127));
        assert_eq!(layout(&[10, 1], DType::F16).ranges(), [0..10, 256..257]);
        assert_eq!(layout(&[0, 3], DType::F64).ranges(), [0..0, 0..3]);
    }

    proptest! {
        #[test]
        fn every_number_has_one_place(lengths in prop::collection::vec(0usize..1000, 1..20)) {
            let found = layout(&lengths, DType::F32);
            let mut end = 0;
            for (slot, (range, length)) in found.ranges().iter().zip(&lengths).enumerate() {
                prop_assert_eq!(range.start, end);
                prop_assert_eq!(range.len(), *length);
                prop_assert!((4 * range.start).is_multiple_of(ALIGNMENT));
                end = range.end + found.gap(slot);
            }
            prop_assert_eq!(end, found.len());
        }
    }
}
