//! Where a training loop has come to.

use std::sync::Arc;
use std::time::Duration;

use everburn_record::{BestEpoch, OuterReport, ShardingReport, StepCost};
use serde::{Deserialize, Serialize};

use crate::config::loss_scaling::LossScaling;
use crate::data_fingerprint::DataFingerprint;
use crate::error::TrainError;
use crate::evaluation::Tested;
use crate::metrics::rank_times::PastStep;
use crate::metrics::sums::MetricSums;

/// Why a training has stopped before its last epoch.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Stopped {
    /// A rule or a hook has found that it has come far enough: it is tested.
    Early(String),
    /// The user has stopped it, or a hook that failed.
    Interrupted(String),
}

/// Where a loop has come to. A rank that comes is given it by another.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct LoopOutcome {
    pub(crate) epoch: usize,
    pub(crate) step: usize,
    /// Global batches of the next epoch that have been learnt from.
    pub(crate) batches: usize,
    /// What those have shown.
    pub(crate) so_far: MetricSums,
    /// What those have cost, before a resume too.
    pub(crate) cost_so_far: StepCost,
    /// Whether those are all of the epoch, once its last step is made; `None` while there are more, and
    /// after the epoch's end.
    pub(crate) trained: Option<bool>,
    /// How many epochs were finished and steps made in the checkpoint that it began with.
    pub(crate) resumed_after: Option<(usize, usize)>,
    /// The fingerprints of the data that it learnt from before a resume, where they were others.
    pub(crate) earlier_data: Vec<DataFingerprint>,
    /// How long the run had taken before this process, where another rank has given it its state.
    pub(crate) earlier: Duration,
    pub(crate) samples: u64,
    /// The training losses of the first step and of the newest, in a run that was not resumed.
    pub(crate) losses: Option<[f64; 2]>,
    /// It was said that these show a training that has diverged.
    pub(crate) said_to_diverge: bool,
    /// Of all training steps since the run was begun or resumed.
    pub(crate) cost: StepCost,
    pub(crate) best: Option<BestEpoch>,
    /// Where losses are scaled.
    pub(crate) loss_scaling: Option<LossScaling>,
    pub(crate) stopped: Option<Stopped>,
    /// What the test found, where it belongs to the loop.
    pub(crate) test: Option<Tested>,
    /// Of a training whose ranks take steps by themselves.
    pub(crate) outer: Option<OuterReport>,
    /// Of a training whose ranks keep parts of its state.
    #[serde(skip)]
    pub(crate) sharding: Option<ShardingReport>,
    /// The averaged model as a safetensors file, where this rank has it.
    #[serde(skip)]
    pub(crate) averaged: Option<Arc<Vec<u8>>>,
    /// What the newest step was for this rank.
    #[serde(skip)]
    pub(crate) past: Option<PastStep>,
    #[serde(skip)]
    pub(crate) error: Option<TrainError>,
}

impl LoopOutcome {
    /// Takes note of the training loss of the newest step.
    pub(crate) fn note_loss(&mut self, loss: f64) {
        let first = match self.losses {
            Some([first, _]) => Some(first),
            // That of a model that has learned is near zero: ten times as much is no divergence.
            None => self.resumed_after.is_none().then_some(loss),
        };
        self.losses = first.map(|first| [first, loss]);
    }

    /// Whether no step was made since the run was resumed.
    pub(crate) fn has_just_resumed(&self) -> bool {
        let resumed_after = self.resumed_after.map(|(_, step)| step);
        resumed_after == Some(self.step)
    }

    /// Whether the user or a hook that failed has stopped the training.
    pub(crate) fn is_interrupted(&self) -> bool {
        matches!(self.stopped, Some(Stopped::Interrupted(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_compared_with_the_first_of_the_run_and_not_with_one_after_a_resume() {
        let noted = |mut outcome: LoopOutcome| {
            for loss in [2.5, 0.001, 0.02] {
                outcome.note_loss(loss);
            }
            outcome.losses
        };
        assert_eq!(noted(LoopOutcome::default()), Some([2.5, 0.02]));
        let resumed = LoopOutcome {
            resumed_after: Some((1, 20)),
            ..LoopOutcome::default()
        };
        assert_eq!(noted(resumed), None);
        // Another rank has handed them over.
        let later = LoopOutcome {
            losses: Some([3.0, 1.0]),
            ..LoopOutcome::default()
        };
        assert_eq!(noted(later), Some([3.0, 0.02]));
    }

    #[test]
    fn a_run_has_just_resumed_until_its_next_step() {
        let at = |step, resumed_after| LoopOutcome {
            step,
            resumed_after,
            ..LoopOutcome::default()
        };
        assert!(!at(0, None).has_just_resumed());
        assert!(at(20, Some((1, 20))).has_just_resumed());
        assert!(!at(21, Some((1, 20))).has_just_resumed());
    }
}
