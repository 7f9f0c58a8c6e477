//! What a rank keeps for its backward passes. It depends on the order of its list, not on times.

use crate::{Costs, Pass, Schedule};

impl Schedule {
    /// For how many micro-batches `rank` keeps activations at once, at most.
    ///
    /// A micro-batch is live from the start of its forward pass to the end of its backward pass,
    /// that for weights included. With several chunks each chunk counts by itself: a micro-batch
    /// that is live in two chunks counts twice.
    #[must_use]
    pub fn peak_live(&self, rank: usize) -> usize {
        let (mut live, mut peak) = (0_usize, 0);
        for action in self.actions(rank) {
            match action.pass() {
                Pass::Forward => live += 1,
                Pass::Backward | Pass::BackwardWeight => live = live.saturating_sub(1),
                Pass::BackwardInput => {}
            }
            peak = peak.max(live);
        }
        peak
    }

    /// How many bytes of activations `rank` keeps at once, at most:
    /// [`StageCosts::activation_bytes`](crate::StageCosts::activation_bytes) of each live
    /// micro-batch, and of those whose backward pass for inputs is done already,
    /// [`StageCosts::deferred_bytes`](crate::StageCosts::deferred_bytes).
    ///
    /// Stages that `costs` do not have count nothing.
    #[must_use]
    pub fn peak_activation_bytes(&self, rank: usize, costs: &Costs) -> u64 {
        let (mut kept, mut peak) = (0_u64, 0);
        for action in self.actions(rank) {
            let stage = costs.stages.get(action.stage());
            let (activation, deferred) = stage.map_or((0, 0), |stage| {
                (stage.activation_bytes, stage.deferred_bytes)
            });
            let (more, less) = match action.pass() {
                Pass::Forward => (activation, 0),
                Pass::Backward => (0, activation),
                Pass::BackwardInput => (deferred, activation),
                Pass::BackwardWeight => (0, deferred),
            };
            // The operands of a deferred gradient are kept while the activations are still there.
            kept = kept.saturating_add(more);
            peak = peak.max(kept);
            kept = kept.saturating_sub(less);
        }
        peak
    }
}
