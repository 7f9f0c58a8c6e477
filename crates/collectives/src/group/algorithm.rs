//! How the results of collectives are computed: steps and bytes.
//!
//! With `n` ranks and a message of `S` bytes, counted as what one rank sends and receives:
//!
//! | Collective | Algorithm | Steps | Bytes sent by a rank | Bytes received |
//! |---|---|---|---|---|
//! | all_reduce | flat | 1 | (n-1) S | (n-1) S |
//! | all_reduce | direct | 2 | 2 (n-1)/n S | 2 (n-1)/n S |
//! | reduce | flat | 1 | S (root: 0) | root: (n-1) S |
//! | reduce | direct | 2 | S | (n-1)/n S, root twice that |
//! | broadcast | flat | 1 | root: (n-1) S | S |
//! | broadcast | direct | 2 | (n-2)/n S, root 2 (n-1)/n S | S |
//! | reduce_scatter | direct | 1 | (n-1)/n S | (n-1)/n S |
//! | all_gather, gather, scatter, all_to_all | direct | 1 | each block goes straight to its rank | |
//! | barrier | flat | 1 | 0 | 0 |
//!
//! To these come n-1 headers of 64 bytes a step: the first step of every collective carries the
//! signature of each rank to each other rank.
//!
//! A `chunk` is the part of a message that one rank owns: rank `r` owns the elements
//! `r len/n .. (r+1) len/n`.

use std::fmt;
use std::ops::Range;

/// How a collective is computed where there is a choice. Either gives the same bits, because
/// every element is reduced in rank order wherever that happens.
///
/// ```
/// use everburn_collectives::group::{Algorithm, GroupOptions};
///
/// let options = GroupOptions { algorithm: Some(Algorithm::Direct), ..GroupOptions::default() };
/// assert_eq!(options.algorithm_for(16), Algorithm::Direct);
/// assert_eq!(GroupOptions::default().algorithm_for(16), Algorithm::Flat);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Every rank gets everything in one step and computes the result itself: fewest steps, for
    /// small messages.
    Flat,
    /// Every rank computes the chunk that it owns, then hands it out: two steps and the fewest
    /// bytes, for large messages.
    Direct,
}

impl Algorithm {
    const ALL: [Self; 2] = [Self::Flat, Self::Direct];

    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Flat => 0,
            Self::Direct => 1,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flat => "flat",
            Self::Direct => "direct",
        })
    }
}

/// The elements that `rank` of `ranks` owns of `length`: as even as can be, none left out.
pub(crate) fn chunk(length: usize, rank: usize, ranks: usize) -> Range<usize> {
    // In 128 bits, because `length * rank` may not fit.
    let at = |rank: usize| (length as u128 * rank as u128 / ranks as u128) as usize;
    at(rank)..at(rank + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_everything_once() {
        for length in [0, 1, 6, 7, 8, 1003, usize::MAX] {
            let mut end = 0;
            for rank in 0..7 {
                let chunk = chunk(length, rank, 7);
                assert_eq!(chunk.start, end);
                assert!(chunk.len().abs_diff(length / 7) <= 1);
                end = chunk.end;
            }
            assert_eq!(end, length);
        }
    }
}
