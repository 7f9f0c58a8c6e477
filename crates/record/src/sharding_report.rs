//! In `report.json`: what each rank has kept of the training's state.

use serde::{Deserialize, Serialize};

/// What each rank has kept of a training's state, whose parts are on several.
///
/// ```
/// use everburn_record::{HeldBytes, ShardingReport};
///
/// let held = HeldBytes { optimizer: 800, ..HeldBytes::default() };
/// let report = ShardingReport { stage: "optimizer".into(), offloaded: false, ranks: vec![held; 2] };
/// assert_eq!(report.most().optimizer, 800);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ShardingReport {
    /// What was cut over the ranks, as `training.ddp.shard` has it.
    pub stage: String,
    /// The optimizer's state was in the host's memory.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub offloaded: bool,
    /// By rank: how many bytes it has held.
    pub ranks: Vec<HeldBytes>,
}

impl ShardingReport {
    /// The most that a rank has held of each.
    pub fn most(&self) -> HeldBytes {
        let most = |of: fn(&HeldBytes) -> u64| self.ranks.iter().map(of).max().unwrap_or(0);
        HeldBytes {
            parameters: most(|held| held.parameters),
            gradients: most(|held| held.gradients),
            optimizer: most(|held| held.optimizer),
            gradient_buckets: most(|held| held.gradient_buckets),
            gathered: most(|held| held.gathered),
        }
    }

    /// The rank that has held the most of all together, the first of several, and what.
    pub fn fullest(&self) -> Option<(usize, HeldBytes)> {
        let ranks = self.ranks.iter().copied().enumerate();
        ranks.max_by_key(|(rank, held)| (held.total(), std::cmp::Reverse(*rank)))
    }
}

/// How many bytes of the training state a rank holds, counted from its tensors: all of it where the state is
/// replicated, about 1/`W` where it is sharded.
///
/// ```
/// use everburn_record::HeldBytes;
///
/// let held = HeldBytes { parameters: 400, gradients: 100, optimizer: 200, ..HeldBytes::default() };
/// assert_eq!(held.total(), 700);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldBytes {
    /// Trained parameters, between steps.
    pub parameters: u64,
    /// Averaged gradients, as passed to the optimizer.
    pub gradients: u64,
    /// Optimizer state, between steps.
    pub optimizer: u64,
    /// Peak size of the gradient buckets during a step: those being filled or in flight; the largest one, where they are
    /// summed on a device. 0 where gradients are not sharded.
    pub gradient_buckets: u64,
    /// Peak size of gathered parameters during a step, except the first one, which records the access trace. 0
    /// where parameters are not sharded. (On a device with memory of its own, copies there do not count.)
    pub gathered: u64,
}

impl HeldBytes {
    /// Parameters, gradients and optimizer state.
    pub const fn total(&self) -> u64 {
        (self.parameters)
            .saturating_add(self.gradients)
            .saturating_add(self.optimizer)
    }
}
