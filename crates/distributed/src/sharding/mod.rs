//! Shards optimizer state, gradients and parameters over the ranks, where plain DDP replicates them.
//!
//! Rajbhandari, Rasley, Ruwase and He 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
//! section 5. Every parameter of `n` elements is split into one *shard* per rank, each of `⌈n / W⌉` elements, the last
//! ones padded with zeros ([`ShardLayout`](layout::ShardLayout)). A rank updates its local shards, keeps optimizer
//! state for these only, and gathers the others'. So the optimizer must be elementwise; its counters are per parameter,
//! as without shards.
//!
//! Traffic per rank per step, for `n` bytes of parameters: gradients, `2 n (W - 1) / W` all-reduced or `n (W - 1) / W`
//! reduce-scattered, and parameters, `n (W - 1) / W`, twice that if the backward pass gathers them again.
//!
//! By NCCL, gradients and parameters stay on their device (`device_gather.rs`), but where parameters are sharded: passes
//! gather these when they ask for them, on a rank without samples not at all, and all ranks must begin everything on a GPU
//! in the same order.

mod device_gather;
mod gather;
mod gradients;
pub(crate) mod layout;
mod memory;
mod module_shards;
mod parameters;
mod pass;
mod pending_parameters;
mod prefetcher;

use serde::{Deserialize, Deserializer, Serialize};

pub use everburn_record::HeldBytes;
pub(crate) use gradients::GradientShard;
pub use gradients::GradientShards;
pub(crate) use memory::{MemoryTracker, TrackedMemory};
pub use parameters::{LocalShards, ParameterShards};
pub(crate) use pass::Pass;
pub use pass::ShardedPass;

/// What is sharded over the ranks.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::ShardStage;
///
/// assert_eq!("gradients".parse(), Ok(ShardStage::Gradients));
/// assert!(ShardStage::Parameters.shards_gradients());
/// assert!("zero-4".parse::<ShardStage>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShardStage {
    /// Optimizer state (ZeRO 1).
    Optimizer,
    /// Optimizer state and gradients (ZeRO 2).
    Gradients,
    /// Optimizer state, gradients and parameters (ZeRO 3).
    Parameters,
}

impl ShardStage {
    /// Whether a rank keeps only its shards of the gradients.
    pub const fn shards_gradients(self) -> bool {
        matches!(self, Self::Gradients | Self::Parameters)
    }

    /// Whether a rank keeps only its shards of the parameters.
    pub const fn shards_parameters(self) -> bool {
        matches!(self, Self::Parameters)
    }
}

everburn_record::named!(ShardStage, "not `optimizer`, `gradients` or `parameters`", Self::Optimizer => "optimizer", Self::Gradients => "gradients", Self::Parameters => "parameters");

/// A stage in a configuration, or `none`.
pub(crate) fn stage_or_none<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<ShardStage>, D::Error> {
    let text = String::deserialize(deserializer)?;
    match text.as_str() {
        "none" => Ok(None),
        text => text.parse().map(Some).map_err(serde::de::Error::custom),
    }
}
