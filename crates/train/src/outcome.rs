//! Where a training loop has come to.

use crate::error::TrainError;
use crate::report::BestEpoch;
use crate::tally::{StepCost, Tally};

/// Where a loop has come to.
#[derive(Debug, Clone, Default)]
pub(crate) struct LoopOutcome {
    pub(crate) epoch: usize,
    pub(crate) step: usize,
    /// Global batches of the next epoch that have been learnt from.
    pub(crate) batches: usize,
    /// What those have shown.
    pub(crate) so_far: Tally,
    pub(crate) samples: u64,
    /// Of all training steps.
    pub(crate) cost: StepCost,
    pub(crate) best: Option<BestEpoch>,
    pub(crate) stopped: Option<String>,
    pub(crate) error: Option<TrainError>,
}

/// Why a loop ended that the user stopped.
pub(crate) fn stopped_by_user(step: usize) -> String {
    format!("by the user after step {step}")
}
