//! Where to cut a model: stages of equal work that fit into memory.
//!
//! A cut of `n` blocks into `k` stages is chosen by dynamic programming over "the first `j` blocks in
//! `i` stages", twice. First the smallest time is found that some cut has as its slowest stage. Then,
//! among the cuts of which no stage is slower, the one with the smallest sum of squared times is taken:
//! a single slow block sets the pace, but the others should be even all the same. What is left equal is
//! decided for the earliest cuts, from the last one to the first: then the first stages are the
//! shorter ones, and it is these that keep the most micro-batches. Both searches take `n² k` steps, and
//! are exact.

use std::ops::{AddAssign, Range};

use crate::{Block, MemoryLimit};

/// The most blocks that are cut. No model has as many; the time grows with their square.
pub const MAX_BLOCKS: usize = 1024;

/// Cuts `blocks` into `parts` stages, so that the slowest stage is as fast as it can be, and each stays
/// within `limit`.
///
/// Among the cuts with the same slowest stage, the one with the smallest sum of squared times is
/// taken, and of these the one with the earliest last cut, then the earliest last but one, and so on:
/// the first stages keep the most micro-batches, so the shorter ones come first.
///
/// # Errors
/// A [`BalanceError`] that names the parts and blocks, or the block that does not fit, or how much memory
/// it would take.
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::{Block, balance};
///
/// let blocks = [4.0, 1.0, 1.0, 1.0, 1.0].map(|seconds| Block::of_forward("block", seconds));
/// assert_eq!(balance(&blocks, 2, None)?, [0..1, 1..5]);
/// assert_eq!(balance(&blocks, 3, None)?, [0..1, 1..3, 3..5]);
/// # Ok::<(), everburn_schedules::BalanceError>(())
/// ```
pub fn balance(
    blocks: &[Block],
    parts: usize,
    limit: Option<&MemoryLimit>,
) -> Result<Vec<Range<usize>>, BalanceError> {
    check(blocks, parts, limit)?;
    let room = Room::of(blocks, limit);
    let times = prefix_sums(blocks.iter().map(Block::total));
    let time = |stage, from, to| room.fits(stage, from, to).then(|| times[to] - times[from]);
    let found = best_cuts(blocks.len(), parts, time, f64::max).and_then(|(pace, _)| {
        let square = |stage, from, to| {
            let time = time(stage, from, to).filter(|time| *time <= pace);
            time.map(|time| time * time)
        };
        best_cuts(blocks.len(), parts, square, |a, b| a + b)
    });
    match (found, limit) {
        (Some((_, cuts)), _) => Ok(cuts),
        (None, Some(limit)) => Err(room.no_fit(blocks, parts, limit)),
        (None, None) => unreachable!("{parts} stages of {} blocks, any of them fit", blocks.len()),
    }
}

/// Cuts blocks of these costs, none of them negative, into `parts` runs of consecutive blocks, none empty, such that the run that
/// costs most costs as little as can be. The earliest of equally good cuts is taken, the last cut first. `None` if there
/// are no parts, or fewer blocks.
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// let parts = everburn::schedules::even_cuts(&[1.0, 1.0, 1.0, 3.0], 2).unwrap();
/// assert_eq!(parts, [0..3, 3..4]);
/// ```
#[must_use]
pub fn even_cuts(costs: &[f64], parts: usize) -> Option<Vec<Range<usize>>> {
    if parts > costs.len() {
        return None;
    }
    let before = prefix_sums(costs.iter().copied());
    let cost = |_, from, to| Some(before[to] - before[from]);
    best_cuts(costs.len(), parts, cost, f64::max).map(|(_, cuts)| cuts)
}

fn check(blocks: &[Block], parts: usize, limit: Option<&MemoryLimit>) -> Result<(), BalanceError> {
    let count = blocks.len();
    if parts == 0 {
        return Err(BalanceError::NoParts);
    }
    if count < parts {
        let blocks = count;
        return Err(BalanceError::TooFewBlocks { blocks, parts });
    }
    if count > MAX_BLOCKS {
        return Err(BalanceError::TooManyBlocks { blocks: count });
    }
    let is_a_time = |seconds: f64| seconds.is_finite() && seconds >= 0.0;
    let bad = |block: &&Block| !block.times().into_iter().all(is_a_time);
    if let Some(block) = blocks.iter().find(bad) {
        return Err(BalanceError::NotATime {
            name: block.name.clone(),
            times: block.times(),
        });
    }
    let seconds = blocks.iter().map(Block::total).sum();
    if !is_a_time(seconds) {
        return Err(BalanceError::TooLong { seconds });
    }
    match limit.map(|limit| limit.live.len()) {
        Some(limit) if limit != parts => Err(BalanceError::OtherStages { limit, parts }),
        _ => Ok(()),
    }
}

/// The cheapest way to cut `count` blocks into `parts` stages, and what it costs. `None` if there is no
/// way.
///
/// `cost(stage, from, to)` is that of the blocks `from..to`, or `None` if they cannot be that stage;
/// `combine` makes one cost of two, and is not smaller than either.
fn best_cuts<T: Copy + PartialOrd>(
    count: usize,
    parts: usize,
    cost: impl Fn(usize, usize, usize) -> Option<T>,
    combine: impl Fn(T, T) -> T,
) -> Option<(T, Vec<Range<usize>>)> {
    // By stage and by the block after it: the cost so far, and where the stage begins.
    let mut best: Vec<Vec<Option<(T, usize)>>> = Vec::with_capacity(parts);
    for stage in 0..parts {
        let mut row = vec![None; count + 1];
        // Each stage before and after has at least one block.
        for to in stage + 1..=count - (parts - 1 - stage) {
            let starts = if stage == 0 { 0..1 } else { stage..to };
            for from in starts {
                let before = best.last().map(|row: &Vec<Option<(T, usize)>>| row[from]);
                let this = cost(stage, from, to);
                let sum = match (before, this) {
                    (None, this) => this,
                    (Some(before), this) => before
                        .zip(this)
                        .map(|((before, _), this)| combine(before, this)),
                };
                let Some(sum) = sum else { continue };
                if row[to].is_none_or(|(least, _)| sum < least) {
                    row[to] = Some((sum, from));
                }
            }
        }
        best.push(row);
    }
    let (least, _) = best.last()?[count]?;
    let mut cuts = Vec::with_capacity(parts);
    let mut to = count;
    for row in best.iter().rev() {
        let (_, from) = row[to]?;
        cuts.push(from..to);
        to = from;
    }
    cuts.reverse();
    Some((least, cuts))
}

/// Which blocks together fit into which stage.
struct Room<'a> {
    parameters: Vec<u128>,
    activations: Vec<u128>,
    limit: Option<&'a MemoryLimit>,
}

impl<'a> Room<'a> {
    fn of(blocks: &[Block], limit: Option<&'a MemoryLimit>) -> Self {
        let bytes =
            |of: fn(&Block) -> u64| prefix_sums(blocks.iter().map(|block| u128::from(of(block))));
        Self {
            parameters: bytes(|block| block.parameter_bytes),
            activations: bytes(|block| block.activation_bytes),
            limit,
        }
    }

    fn needed(&self, limit: &MemoryLimit, stage: usize, from: usize, to: usize) -> u128 {
        let parameters = self.parameters[to] - self.parameters[from];
        let activations = self.activations[to] - self.activations[from];
        limit.needed_for(stage, parameters, activations)
    }

    fn fits(&self, stage: usize, from: usize, to: usize) -> bool {
        let fits = |limit: &MemoryLimit| self.needed(limit, stage, from, to) <= limit.bytes.into();
        self.limit.is_none_or(fits)
    }

    /// What is in the way of every cut.
    fn no_fit(&self, blocks: &[Block], parts: usize, limit: &MemoryLimit) -> BalanceError {
        for block in blocks {
            let least = (0..parts).map(|stage| limit.needed(stage, block)).min();
            if let Some(needed) = least.filter(|needed| *needed > limit.bytes) {
                return BalanceError::BlockTooLarge {
                    name: block.name.clone(),
                    needed,
                    limit: limit.bytes,
                };
            }
        }
        let needed = |stage, from, to| Some(self.needed(limit, stage, from, to));
        let least = best_cuts(blocks.len(), parts, needed, u128::max).map(|(least, _)| least);
        BalanceError::NoFit {
            parts,
            limit: limit.bytes,
            needed: least.map_or(u64::MAX, |least| u64::try_from(least).unwrap_or(u64::MAX)),
        }
    }
}

/// At `i`, the sum of the first `i` values.
fn prefix_sums<T: Copy + Default + AddAssign>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut sum = T::default();
    let mut sums = vec![sum];
    sums.extend(values.map(|value| {
        sum += value;
        sum
    }));
    sums
}

/// Why a model cannot be cut so.
///
/// ```
/// # mod everburn { pub use everburn_schedules as schedules; }
/// use everburn::schedules::{Block, balance};
///
/// let blocks = [1.0, 1.0].map(|seconds| Block::of_forward("block", seconds));
/// let error = balance(&blocks, 3, None).unwrap_err();
/// assert_eq!(error.to_string(), "2 blocks cannot be split into 3 stages: use at most 2 stages");
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BalanceError {
    /// No stages were asked for.
    #[error("a model must be split into at least one stage, not 0")]
    NoParts,
    /// A stage would have no block.
    #[error("{blocks} blocks cannot be split into {parts} stages: use at most {blocks} stages")]
    TooFewBlocks {
        /// How many blocks there are.
        blocks: usize,
        /// How many stages were asked for.
        parts: usize,
    },
    /// More blocks than any model has.
    #[error("{blocks} blocks are more than the {MAX_BLOCKS} that can be split into stages")]
    TooManyBlocks {
        /// How many blocks there are.
        blocks: usize,
    },
    /// A block's time is no time.
    #[error("block {name} takes {times:?} s: each must be finite and not negative")]
    NotATime {
        /// The block.
        name: String,
        /// Its times: forward, backward for inputs, backward for weights.
        times: [f64; 3],
    },
    /// The blocks' times have no finite sum.
    #[error("the blocks take {seconds} s together, which is not finite")]
    TooLong {
        /// Their sum.
        seconds: f64,
    },
    /// The limit is for another number of stages.
    #[error("the memory limit is for {limit} stages, but the model is split into {parts}")]
    OtherStages {
        /// How many stages the limit tells of.
        limit: usize,
        /// How many stages were asked for.
        parts: usize,
    },
    /// One block alone takes more than a stage may, wherever it is.
    #[error(
        "block {name} alone takes {needed}, more than the limit of {limit} a stage: cut the block \
         into smaller ones, use smaller micro-batches or activation checkpointing",
        needed = everburn_record::units::bytes(*needed),
        limit = everburn_record::units::bytes(*limit)
    )]
    BlockTooLarge {
        /// The block.
        name: String,
        /// What it takes in the stage where it takes least, in bytes.
        needed: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// Every block fits somewhere, but no cut fits everywhere.
    #[error(
        "no cut into {parts} stages fits into {limit} a stage; the smallest limit that does is \
         {needed}: use more stages, smaller micro-batches or activation checkpointing",
        limit = everburn_record::units::bytes(*limit),
        needed = everburn_record::units::bytes(*needed)
    )]
    NoFit {
        /// How many stages were asked for.
        parts: usize,
        /// The limit, in bytes.
        limit: u64,
        /// The smallest limit with which there is a cut, in bytes.
        needed: u64,
    },
}
