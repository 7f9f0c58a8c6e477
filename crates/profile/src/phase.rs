//! What a rank does at a time.

use serde::{Deserialize, Serialize};

/// What the training thread of a rank does at a time. A step is cut into phases without gaps, so that they sum up
/// to it.
///
/// ```
/// # mod everburn { pub use everburn_profile as profile; }
/// use everburn::profile::Phase;
///
/// assert_eq!(Phase::Data.name(), "data");
/// assert!(Phase::Exchange.waits() && !Phase::Forward.waits());
/// ```
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Getting the batch: assembling it, or waiting for the threads that do.
    Data,
    /// The forward pass, the loss included.
    Forward,
    /// The backward pass; exchanges of gradients that run meanwhile are hidden in it.
    Backward,
    /// The exchange of gradients that the backward pass did not hide, up to the gradients that it yields.
    Exchange,
    /// The optimizer.
    Optimizer,
    /// Waiting for the other ranks' verdict on the step.
    Waiting,
    /// What is done after a step: records, comparisons, checkpoints.
    Records,
    /// All else.
    #[default]
    Other,
}

impl Phase {
    /// All phases, in the order in which a step goes through them.
    pub const ALL: [Self; 8] = [
        Self::Data,
        Self::Forward,
        Self::Backward,
        Self::Exchange,
        Self::Optimizer,
        Self::Waiting,
        Self::Records,
        Self::Other,
    ];

    /// As it is in files and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Exchange => "exchange",
            Self::Optimizer => "optimizer",
            Self::Waiting => "waiting",
            Self::Records => "records",
            Self::Other => "other",
        }
    }

    /// Whether how long it takes depends on other ranks.
    pub fn waits(self) -> bool {
        matches!(self, Self::Exchange | Self::Waiting)
    }

    /// Whether layers compute in it.
    pub fn is_pass(self) -> bool {
        matches!(self, Self::Forward | Self::Backward)
    }

    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_is_the_place_in_all() {
        for (index, phase) in Phase::ALL.into_iter().enumerate() {
            assert_eq!(phase.index(), index);
            let text = serde_json::to_string(&phase).unwrap();
            assert_eq!(text, format!("\"{}\"", phase.name()));
        }
    }
}
