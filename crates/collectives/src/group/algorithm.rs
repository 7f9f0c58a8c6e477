//! How the results of collectives are computed: steps and bytes.
//!
//! With `n` ranks, `h` hosts of `m` ranks each, `p` the largest power of two up to `n`, and a
//! message of `S` bytes, counted as what one rank sends (it receives as much, except where said):
//!
//! | Collective | Algorithm | Steps | Bytes sent by a rank | Source |
//! |---|---|---|---|---|
//! | all_reduce | flat | 1 | (n-1) S | |
//! | all_reduce | direct | 2 | 2 (n-1)/n S | pairwise exchange [1, §4.2] |
//! | all_reduce | recursive-doubling | log2 p (+2 where p < n) | S log2 p | [1, §4.1] |
//! | all_reduce | ring | 2 (n-1) | 2 (n-1)/n S | [2] |
//! | all_reduce | halving-doubling | 2 log2 p (+2 where p < n) | 2 (p-1)/p S | [3], [1, §4.5] |
//! | all_reduce | hierarchical | 2 + ring or recursive doubling of `h` leaders | S, leader also (m-1) S | [4] |
//! | reduce | flat | 1 | S (root: 0; it receives (n-1) S) | |
//! | reduce | direct | 2 | S (root: (n-1)/n S; it receives twice that) | |
//! | broadcast | flat | 1 | root: (n-1) S | |
//! | broadcast | direct | 2 | (n-2)/n S, root 2 (n-1)/n S | scatter and all-gather [1, §4.4] |
//! | reduce_scatter | direct | 1 | (n-1)/n S | |
//! | all_gather, gather, scatter, all_to_all | direct | 1 | each block goes straight to its rank | |
//! | barrier | flat | 1 | 0 | |
//!
//! To these come n-1 headers of 64 bytes a collective, with the signature of each rank for each
//! other rank, in one burst with the first data. Where `p < n`, the `n - p` ranks that are too
//! many hand their values to a neighbour first and get the result from it last. No step waits for
//! the end of the one before: each byte continues as soon as the bytes that it depends on are there.
//!
//! 1. R. Thakur, R. Rabenseifner, W. Gropp: Optimization of Collective Communication Operations
//!    in MPICH. Int. J. High Performance Computing Applications 19(1), 2005.
//! 2. P. Patarasuk, X. Yuan: Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations.
//!    J. Parallel and Distributed Computing 69(2), 2009.
//! 3. R. Rabenseifner: Optimization of Collective Reduction Operations. ICCS 2004, LNCS 3036.
//! 4. N. Karonis et al.: Exploiting Hierarchy in Parallel Computer Networks to Optimize Collective
//!    Operation Performance. IPDPS 2000.
//!
//! A `chunk` is the part of a message that one rank owns: rank `r` owns the elements
//! `r len/n .. (r+1) len/n`.

use std::ops::Range;
use std::str::FromStr;

use super::names::names;

/// How a collective is computed where there is a choice.
///
/// Flat and direct reduce in rank order; each of the others in an order of its own, which depends
/// on the numbers of ranks and hosts only. With any of them all ranks hold the same bits. Only
/// all_reduce has all six; for reduce and broadcast the ones for small messages stand for
/// [`Algorithm::Flat`], the others for [`Algorithm::Direct`].
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::group::{Algorithm, GroupOptions};
///
/// let algorithm: Algorithm = "halving-doubling".parse()?;
/// assert_eq!(algorithm, Algorithm::HalvingDoubling);
/// let options = GroupOptions { algorithm: Some(algorithm), ..GroupOptions::default() };
/// # Ok::<(), String>(())
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
    /// Every rank exchanges everything with one other at distance 1, 2, 4, ..: few messages, for
    /// small values on many ranks.
    RecursiveDoubling,
    /// Chunks travel around the ring of ranks twice: the fewest bytes, and each rank has one
    /// receiver only.
    Ring,
    /// Halves, quarters, .. are exchanged at distance 1, 2, 4, .. and gathered the same way back:
    /// the fewest bytes in logarithmically many steps.
    HalvingDoubling,
    /// One leader a host collects its host's values, the leaders exchange sums, and hand the
    /// result out.
    Hierarchical,
}

impl Algorithm {
    /// What stands for this algorithm where there are only flat and direct.
    pub(crate) const fn simplified(self) -> Self {
        match self {
            Self::Flat | Self::RecursiveDoubling => Self::Flat,
            Self::Direct | Self::Ring | Self::HalvingDoubling | Self::Hierarchical => Self::Direct,
        }
    }
}

names!(Algorithm {
    Flat: "flat",
    Direct: "direct",
    RecursiveDoubling: "recursive-doubling",
    Ring: "ring",
    HalvingDoubling: "halving-doubling",
    Hierarchical: "hierarchical",
});

impl FromStr for Algorithm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|known| known.name() == text);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("there is no algorithm `{text}`; choose one of {names}")
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

    #[test]
    fn names_are_read_back() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }
        let error = "rings".parse::<Algorithm>().unwrap_err();
        assert!(error.contains("choose one of flat, direct"), "{error}");
    }
}
