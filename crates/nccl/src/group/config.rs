//! Who is in a group, and how it behaves.

use std::time::Duration;

use everburn_collectives::group::DEFAULT_TIMEOUT;

use super::error::NcclError;

/// The longest name of a group, in bytes: it is part of the store's keys.
const MAX_NAME_BYTES: usize = 128;

/// What this rank's side of a group is; but for `rank` and `device` the same on all its ranks.
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// use std::time::Duration;
/// use everburn::nccl::NcclConfig;
///
/// // Rank 1 of 4, on the first GPU that it may see.
/// let world = NcclConfig::world(1, 4, 0);
/// // Ranks 1 and 3 of the job as a group of their own.
/// let pair = NcclConfig {
///     name: "pipeline-1".to_owned(),
///     rank: 0,
///     job_ranks: vec![1, 3],
///     timeout: Duration::from_secs(60),
///     ..world
/// };
/// assert_eq!(pair.world_size(), 2);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NcclConfig {
    /// The group's name, unique in its store: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Distinguishes it from an earlier group of that name, such as before the loss of a rank.
    pub generation: u64,
    /// This rank's number in the group.
    pub rank: usize,
    /// The job rank of each member, by number in the group.
    pub job_ranks: Vec<usize>,
    /// This rank's GPU, an index into `CUDA_VISIBLE_DEVICES` or `HIP_VISIBLE_DEVICES`.
    pub device: usize,
    /// The deadline of every operation, and of connecting.
    pub timeout: Duration,
    /// The time between two heartbeats in the store, which report a failure to the others, and of each rank's progress
    /// for the error of a missed deadline.
    pub heartbeat: Duration,
    /// How often operations in flight are checked: whether they are complete, have failed or are late.
    pub tick: Duration,
}

impl NcclConfig {
    /// The group of all ranks, with the deadline of the host's groups.
    #[must_use]
    pub fn world(rank: usize, world_size: usize, device: usize) -> Self {
        Self {
            name: "world".to_owned(),
            generation: 0,
            rank,
            job_ranks: (0..world_size).collect(),
            device,
            timeout: DEFAULT_TIMEOUT,
            heartbeat: Duration::from_secs(1),
            tick: Duration::from_millis(20),
        }
    }

    /// How many ranks the group has.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.job_ranks.len()
    }

    /// This rank's number in the job, which errors name.
    #[must_use]
    pub fn job_rank(&self) -> usize {
        self.job_ranks.get(self.rank).copied().unwrap_or(self.rank)
    }

    pub(crate) fn check(&self) -> Result<(), NcclError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let name = &self.name;
        let named = (1..=MAX_NAME_BYTES).contains(&name.len()) && name.chars().all(plain);
        let (rank, world_size) = (self.rank, self.world_size());
        let mut members = self.job_ranks.clone();
        members.sort_unstable();
        members.dedup();
        let wrong = if !named {
            format!("`{}` is no name", name.escape_default())
        } else if rank >= world_size || i32::try_from(world_size).is_err() {
            format!("rank {rank} does not exist in a group of {world_size}")
        } else if members.len() != world_size {
            format!("the same rank is twice in {:?}", self.job_ranks)
        } else if self.timeout.is_zero() || self.heartbeat.is_zero() || self.tick.is_zero() {
            "timeout, heartbeat and tick must be longer than zero".to_owned()
        } else {
            return Ok(());
        };
        Err(NcclError::Refused {
            rank: self.job_rank(),
            group: name.chars().take(MAX_NAME_BYTES).collect(),
            reason: format!("{wrong}; check the group's configuration"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_cannot_be_is_refused() {
        let refused = |config: NcclConfig| config.check().unwrap_err().to_string();
        let world = NcclConfig::world(0, 2, 0);
        world.check().unwrap();
        let name = "a b\n".to_owned();
        assert!(
            refused(NcclConfig {
                name,
                ..world.clone()
            })
            .contains(r"`a b\n` is no name")
        );
        let name = "x".repeat(129);
        assert!(
            refused(NcclConfig {
                name,
                ..world.clone()
            })
            .contains("is no name")
        );
        assert!(
            refused(NcclConfig {
                rank: 2,
                ..world.clone()
            })
            .contains("rank 2 does not exist")
        );
        let twice = NcclConfig {
            job_ranks: vec![4, 4],
            ..world.clone()
        };
        assert!(refused(twice).contains("is twice in [4, 4]"));
        let heartbeat = Duration::ZERO;
        assert!(refused(NcclConfig { heartbeat, ..world }).contains("longer than zero"));
    }
}
