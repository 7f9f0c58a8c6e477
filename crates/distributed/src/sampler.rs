//! Which rank reads which sample.

use std::ops::Range;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::rank_weights::RankWeights;
use crate::virtual_ranks::VirtualRanks;

/// What happens to the samples that do not fill the last global batch.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::{DistributedSampler, SamplerConfig, Tail};
///
/// let batches = [Tail::Keep, Tail::Drop].map(|tail| {
///     let config = SamplerConfig { num_samples: 10, batch_size: 4, shuffle: None, tail };
///     DistributedSampler::new(config, 0, 1).unwrap().num_batches()
/// });
/// assert_eq!(batches, [3, 2]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tail {
    /// They form a smaller last batch; a rank may get no sample of it.
    #[default]
    Keep,
    /// They are left out of this epoch.
    Drop,
}

/// Why a sampler cannot be made.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::{DistributedSampler, SamplerConfig, SamplerError, Tail};
///
/// let config = SamplerConfig { num_samples: 10, batch_size: 2, shuffle: None, tail: Tail::Keep };
/// let error = DistributedSampler::new(config, 0, 4).unwrap_err();
/// assert!(matches!(error, SamplerError::BatchSmallerThanWorld { world_size: 4, .. }));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplerError {
    /// The global batch gives some rank no sample in every step.
    #[error(
        "a global batch of {batch_size} samples cannot be shared by {world_size} ranks: \
         use `training.batch_size = {world_size}` or more, or fewer ranks"
    )]
    BatchSmallerThanWorld {
        /// The size of the global batch.
        batch_size: usize,
        /// How many ranks there are.
        world_size: usize,
    },
    /// The rank is not one of the world.
    #[error("rank {rank} is not in a world of {world_size} ranks")]
    RankOutOfRange {
        /// The rank that was given.
        rank: usize,
        /// How many ranks there are.
        world_size: usize,
    },
    /// There are fewer logical shards than ranks.
    #[error(
        "{count} logical shards cannot be shared out to {world_size} ranks: use \
         `training.virtual_ranks = {world_size}` or more, or fewer ranks"
    )]
    TooFewVirtualRanks {
        /// How many logical shards were asked for.
        count: usize,
        /// How many ranks there are.
        world_size: usize,
    },
    /// There is not one weight for each rank.
    #[error(
        "the weights {weights} are of {} ranks, and there are {world_size}: use a weight for each rank",
        weights.ranks()
    )]
    OtherWeights {
        /// The weights that were given.
        weights: RankWeights,
        /// How many ranks there are.
        world_size: usize,
    },
}

/// What a [`DistributedSampler`] is made from.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::{DistributedSampler, SamplerConfig, Tail};
///
/// let config = SamplerConfig { num_samples: 10, batch_size: 4, shuffle: Some(7), tail: Tail::Drop };
/// let sampler = DistributedSampler::new(config, 0, 2)?;
/// assert_eq!(sampler.samples_per_epoch(), 8);
/// # Ok::<(), everburn_distributed::SamplerError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplerConfig {
    /// How many samples the data set has.
    pub num_samples: usize,
    /// How many samples all ranks together read a step.
    pub batch_size: usize,
    /// The seed of the shuffle; `None` keeps the order of the data set.
    pub shuffle: Option<u64>,
    /// What happens to the last, smaller batch.
    pub tail: Tail,
}

/// Deals the samples of each global batch to the ranks.
///
/// The unit is the *global* batch: batch `k` of epoch `e` holds the same samples whatever the world
/// size, and each rank takes its contiguous share of it. Every rank makes the same number of steps;
/// shares of a batch differ by one sample at the most, unless ranks are [balanced](Self::balanced).
/// Over an epoch each sample is read once, by one rank: nothing is padded and nothing repeated. Shares
/// may change between two batches, on all ranks at once: which samples a batch has does not depend on them.
///
/// The epoch is an argument, so that it cannot be forgotten (PyTorch's `set_epoch`).
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::{DistributedSampler, SamplerConfig, Tail};
///
/// let config = SamplerConfig { num_samples: 10, batch_size: 4, shuffle: Some(7), tail: Tail::Keep };
/// let ranks = [0, 1].map(|rank| DistributedSampler::new(config.clone(), rank, 2).unwrap());
/// let mut seen = ranks.iter().flat_map(|s| s.indices(1)).collect::<Vec<_>>();
/// seen.sort();
/// assert_eq!(seen, (0..10).collect::<Vec<_>>());
/// assert_eq!(ranks[0].num_batches(), ranks[1].num_batches());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DistributedSampler {
    config: SamplerConfig,
    rank: usize,
    world_size: usize,
    virtual_ranks: Option<VirtualRanks>,
    weights: Option<RankWeights>,
}

/// The contiguous share of `length` things that falls to `rank` of `world_size`.
///
/// Shares differ by one at the most; the lower ranks take the remainder.
pub fn share_of(length: usize, rank: usize, world_size: usize) -> Range<usize> {
    let (base, remainder) = (length / world_size, length % world_size);
    let start = rank * base + rank.min(remainder);
    start..start + base + usize::from(rank < remainder)
}

impl DistributedSampler {
    /// The sampler of one rank.
    ///
    /// # Errors
    /// [`SamplerError`] if the global batch has fewer samples than there are ranks, or the rank is
    /// not in the world.
    pub fn new(
        config: SamplerConfig,
        rank: usize,
        world_size: usize,
    ) -> Result<Self, SamplerError> {
        if rank >= world_size {
            return Err(SamplerError::RankOutOfRange { rank, world_size });
        }
        if config.batch_size < world_size {
            return Err(SamplerError::BatchSmallerThanWorld {
                batch_size: config.batch_size,
                world_size,
            });
        }
        Ok(Self {
            config,
            rank,
            world_size,
            virtual_ranks: None,
            weights: None,
        })
    }

    /// The same rank's sampler, whose shares are those of its logical shards: each global batch is cut
    /// into as many as there are, and these are the same on any number of ranks.
    #[must_use]
    pub fn over_virtual(self, ranks: VirtualRanks) -> Self {
        let ranks = match &self.weights {
            Some(weights) => ranks.balanced(weights),
            None => ranks,
        };
        Self {
            virtual_ranks: Some(ranks),
            ..self
        }
    }

    /// The same rank's sampler, where ranks share each global batch in proportion to `weights`, the same on all of
    /// them; logical shards are shared out whole.
    ///
    /// ```
    /// # mod everburn { pub use everburn_distributed as distributed; }
    /// use everburn::distributed::{DistributedSampler, RankWeights, SamplerConfig, Tail};
    ///
    /// let config = SamplerConfig { num_samples: 9, batch_size: 4, shuffle: None, tail: Tail::Keep };
    /// let weights = RankWeights::of_speed(4, &[1.0, 3.0]);
    /// let sampler = DistributedSampler::new(config, 0, 2)?.balanced(weights)?;
    /// assert_eq!(sampler.local_batches(), [3, 1]);
    /// assert_eq!(sampler.indices(1), [0, 1, 2, 4, 5, 6, 8]);
    /// # Ok::<(), everburn_distributed::SamplerError>(())
    /// ```
    ///
    /// # Errors
    /// [`SamplerError::OtherWeights`] if there is not one for each rank.
    pub fn balanced(self, weights: RankWeights) -> Result<Self, SamplerError> {
        if weights.ranks() != self.world_size {
            return Err(SamplerError::OtherWeights {
                weights,
                world_size: self.world_size,
            });
        }
        let virtual_ranks = self.virtual_ranks.map(|ranks| ranks.balanced(&weights));
        Ok(Self {
            virtual_ranks,
            weights: Some(weights),
            ..self
        })
    }

    /// The sampler of another rank, or of a rank in a world of another size: of the same samples in the same
    /// batches, which ranks share equally.
    ///
    /// ```
    /// # mod everburn { pub use everburn_distributed as distributed; }
    /// use everburn::distributed::{DistributedSampler, SamplerConfig, Tail};
    ///
    /// let config = SamplerConfig { num_samples: 4, batch_size: 4, shuffle: None, tail: Tail::Keep };
    /// let alone = DistributedSampler::new(config, 0, 1)?;
    /// assert_eq!(alone.on_rank(1, 2)?.indices(1), [2, 3]);
    /// # Ok::<(), everburn_distributed::SamplerError>(())
    /// ```
    ///
    /// # Errors
    /// As [`DistributedSampler::new`]; also if there are fewer logical shards than ranks.
    pub fn on_rank(self, rank: usize, world_size: usize) -> Result<Self, SamplerError> {
        let sampler = Self::new(self.config, rank, world_size)?;
        match self.virtual_ranks {
            None => Ok(sampler),
            Some(ranks) => Ok(sampler.over_virtual(ranks.on_rank(rank, world_size)?)),
        }
    }

    /// The logical shards whose shares this rank reads, if it does.
    pub fn virtual_ranks(&self) -> Option<&VirtualRanks> {
        self.virtual_ranks.as_ref()
    }

    /// How ranks share a whole global batch, in what it is shared out by: logical shards, or else samples.
    pub fn units(&self) -> Vec<usize> {
        match &self.virtual_ranks {
            Some(ranks) => ranks
                .of_ranks()
                .iter()
                .map(ExactSizeIterator::len)
                .collect(),
            None => self.local_batches(),
        }
    }

    /// How many samples of a whole global batch each rank has.
    pub fn local_batches(&self) -> Vec<usize> {
        let parts = (0..self.world_size).map(|rank| self.part(self.config.batch_size, rank).len());
        parts.collect()
    }

    /// The contiguous part of a global batch of `length` samples that `rank` has.
    fn part(&self, length: usize, rank: usize) -> Range<usize> {
        match (&self.virtual_ranks, &self.weights) {
            (Some(ranks), _) => {
                let of = |virtual_rank| share_of(length, virtual_rank, ranks.count());
                let own = &ranks.of_ranks()[rank];
                of(own.start).start..of(own.end - 1).end
            }
            (None, Some(weights)) => weights.parts(length).swap_remove(rank),
            (None, None) => share_of(length, rank, self.world_size),
        }
    }

    /// How many samples of a global batch of `length` the rank with the most has.
    pub(crate) fn largest_part(&self, length: usize) -> usize {
        match &self.weights {
            None => share_of(length, 0, self.world_size).len(),
            Some(weights) => weights.counts(length).into_iter().max().unwrap_or(0),
        }
    }

    /// The same rank's sampler over a part of the data set.
    pub(crate) fn with_config(self, config: SamplerConfig) -> Self {
        Self { config, ..self }
    }

    /// The rank whose samples these are.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks share each global batch.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// What the sampler was made from.
    pub fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// How many global batches an epoch has: the same on every rank.
    pub fn num_batches(&self) -> usize {
        let SamplerConfig {
            num_samples,
            batch_size,
            tail,
            ..
        } = self.config;
        match tail {
            Tail::Keep => num_samples.div_ceil(batch_size),
            Tail::Drop => num_samples / batch_size,
        }
    }

    /// How many samples all ranks together read in an epoch.
    pub fn samples_per_epoch(&self) -> usize {
        match self.config.tail {
            Tail::Keep => self.config.num_samples,
            Tail::Drop => self.num_batches() * self.config.batch_size,
        }
    }

    /// The order in which all ranks together read the data set in this epoch.
    ///
    /// A Fisher-Yates shuffle (Durstenfeld 1964) driven by ChaCha8 keyed with the seed and the
    /// epoch: the same on every rank, machine and platform.
    pub fn permutation(&self, epoch: usize) -> Vec<usize> {
        let mut order = (0..self.config.num_samples).collect::<Vec<_>>();
        if let Some(seed) = self.config.shuffle {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&seed.to_le_bytes());
            key[8..16].copy_from_slice(&(epoch as u64).to_le_bytes());
            let mut rng = ChaCha8Rng::from_seed(key);
            for last in (1..order.len()).rev() {
                order.swap(last, uniform_below(&mut rng, last as u64 + 1) as usize);
            }
        }
        order
    }

    /// This rank's share of each global batch of the epoch, with the size of the whole batch.
    pub fn batches(
        &self,
        epoch: usize,
    ) -> impl ExactSizeIterator<Item = (Vec<usize>, usize)> + use<> {
        let order = self.permutation(epoch);
        let sampler = self.clone();
        (0..self.num_batches()).map(move |batch| {
            let start = batch * sampler.config.batch_size;
            let end = order.len().min(start + sampler.config.batch_size);
            let global = &order[start..end];
            let share = sampler.part(global.len(), sampler.rank);
            (global[share].to_vec(), global.len())
        })
    }

    /// All samples of this rank in the epoch, in the order in which it reads them.
    #[doc(alias = "set_epoch")]
    pub fn indices(&self, epoch: usize) -> Vec<usize> {
        self.batches(epoch).flat_map(|(share, _)| share).collect()
    }
}

/// A number in `0..bound` without bias (Lemire 2019, "Fast Random Integer Generation in an
/// Interval", algorithm 5): written here because `rand` may change its own between versions, and
/// with it every run that is to be repeated.
fn uniform_below(rng: &mut ChaCha8Rng, bound: u64) -> u64 {
    loop {
        let wide = u128::from(rng.next_u64()) * u128::from(bound);
        let low = wide as u64;
        if low >= bound || low >= bound.wrapping_neg() % bound {
            return (wide >> 64) as u64;
        }
    }
}

#[cfg(test)]
mod tests;
