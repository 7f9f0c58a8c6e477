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
    /// Whether those are all of the epoch, once its last step is made; `None` while there are more, and
    /// after the epoch's end.
    pub(crate) trained: Option<bool>,
    pub(crate) samples: u64,
    /// Of all training steps.
    pub(crate) cost: StepCost,
    pub(crate) best: Option<BestEpoch>,
    pub(crate) stopped: Option<String>,
    /// What the test found, where it belongs to the loop, and how long it took, in seconds.
    pub(crate) test: Option<(Tally, f64)>,
    pub(crate) error: Option<TrainError>,
}

/// Why a loop ended that the user stopped.
pub(crate) fn stopped_by_user(step: usize) -> String {
    format!("by the user after step {step}")
}
