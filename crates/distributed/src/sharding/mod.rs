//! A rank keeps a part of what all ranks would else have alike: optimizer state, gradients, parameters.
//!
//! Rajbhandari, Rasley, Ruwase and He 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
//! Models", section 5. Every parameter of `n` numbers is cut elementwise into as many *slices* as there are
//! ranks, all `⌈n / W⌉` long, the last ones filled up with zeros ([`Cut`](cut::Cut)). A rank updates its own
//! slices, with the optimizer's state of these only, and gathers the others'. So an optimizer must treat each
//! number by itself; its counters are a parameter's, as without slices.
//!
//! What travels in a step, for `n` bytes of parameters, of each rank: gradients, `2 n (W - 1) / W` where all
//! ranks are given the sums and `n (W - 1) / W` where each is given its slices of them, and parameters,
//! `n (W - 1) / W`, twice that where a backward pass gathers them again.

pub(crate) mod cut;
mod gather;
mod gradients;
mod memory;
mod parameters;
mod pass;
mod prefetcher;
mod slicing;
mod whole;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

pub use gradients::GradientSlices;
pub use memory::HeldBytes;
pub(crate) use memory::{MemoryTracker, TrackedMemory};
pub use parameters::{ParameterShards, Slices};
pub use pass::CutPass;
pub(crate) use pass::Pass;

/// What is cut over the ranks.
///
/// ```
/// use everburn_distributed::ShardStage;
///
/// assert_eq!("gradients".parse(), Ok(ShardStage::Gradients));
/// assert!(ShardStage::Parameters.cuts_gradients());
/// assert!("zero-4".parse::<ShardStage>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ShardStage {
    /// The optimizer's state (ZeRO 1).
    Optimizer,
    /// That, and gradients (ZeRO 2).
    Gradients,
    /// That, and parameters (ZeRO 3).
    Parameters,
}

impl ShardStage {
    /// Whether a rank keeps its slices of the gradients only.
    #[must_use]
    pub const fn cuts_gradients(self) -> bool {
        matches!(self, Self::Gradients | Self::Parameters)
    }

    /// Whether a rank keeps its slices of the parameters only.
    #[must_use]
    pub const fn cuts_parameters(self) -> bool {
        matches!(self, Self::Parameters)
    }
}

impl FromStr for ShardStage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "optimizer" => Ok(Self::Optimizer),
            "gradients" => Ok(Self::Gradients),
            "parameters" => Ok(Self::Parameters),
            _ => Err(format!(
                "`{text}` is not `optimizer`, `gradients` or `parameters`"
            )),
        }
    }
}

/// A stage as a configuration has it: `none` stands for nothing.
pub(crate) fn stage_or_none<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<ShardStage>, D::Error> {
    let text = String::deserialize(deserializer)?;
    match text.as_str() {
        "none" => Ok(None),
        text => text.parse().map(Some).map_err(serde::de::Error::custom),
    }
}

impl fmt::Display for ShardStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Optimizer => "optimizer",
            Self::Gradients => "gradients",
            Self::Parameters => "parameters",
        })
    }
}
