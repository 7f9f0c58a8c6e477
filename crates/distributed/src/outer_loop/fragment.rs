//! The fragments of a model that are reduced in turn.

use std::ops::Range;

use super::quantized::BLOCK;

/// A part of the row that is reduced by itself.
#[derive(Debug, Clone)]
pub(super) struct Fragment {
    pub(super) range: Range<usize>,
    /// How many samples this rank has learnt from since its last outer step.
    pub(super) samples: u64,
}

/// A row of `length` numbers as parts of about the same length, each of whole blocks of a compression.
pub(super) fn cut(length: usize, parts: usize) -> Vec<Fragment> {
    let part = length.div_ceil(parts).next_multiple_of(BLOCK);
    let range = |index: usize| (index * part).min(length)..((index + 1) * part).min(length);
    let fragment = |index| Fragment {
        range: range(index),
        samples: 0,
    };
    (0..parts).map(fragment).collect()
}
