//! Where a training loop has come to.

use std::sync::Arc;
use std::time::Duration;

use everburn_record::ConfusionMatrix;

use crate::config::loss_scaling::LossScaling;
use crate::error::TrainError;
use crate::metrics::rank_times::PastStep;
use crate::metrics::step_report::StepCost;
use crate::metrics::sums::MetricSums;
use crate::record::report::{BestEpoch, OuterReport, ShardingReport};

/// Where a loop has come to.
#[derive(Debug, Clone, Default)]
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
    pub(crate) earlier_data: Vec<String>,
    /// How long the run had taken before this process, where another rank has given it its state.
    pub(crate) earlier: Duration,
    pub(crate) samples: u64,
    /// The training losses of the first step since the run was begun or resumed, and of the newest.
    pub(crate) losses: Option<[f64; 2]>,
    /// It was said that these show a training that has diverged.
    pub(crate) said_to_diverge: bool,
    /// Of all training steps since the run was begun or resumed.
    pub(crate) cost: StepCost,
    pub(crate) best: Option<BestEpoch>,
    /// Where losses are scaled.
    pub(crate) loss_scaling: Option<LossScaling>,
    pub(crate) stopped: Option<String>,
    /// What the test found, where it belongs to the loop, and how long it took, in seconds.
    pub(crate) test: Option<(MetricSums, f64)>,
    /// Of a training whose ranks take steps by themselves.
    pub(crate) outer: Option<OuterReport>,
    /// Of a training whose ranks keep parts of its state.
    pub(crate) sharding: Option<ShardingReport>,
    /// The averaged model as a safetensors file, where this rank has it.
    pub(crate) averaged: Option<Arc<Vec<u8>>>,
    /// What the newest step was for this rank, which nobody has been told yet.
    pub(crate) past: Option<PastStep>,
    /// Of the test, where it belongs to the loop.
    pub(crate) confusion: Option<ConfusionMatrix>,
    pub(crate) error: Option<TrainError>,
}

impl LoopOutcome {
    /// Whether the user or a hook has stopped the training.
    pub(crate) fn is_interrupted(&self) -> bool {
        let stopped = self.stopped.as_deref();
        stopped.is_some_and(|why| why.starts_with("on request") || why.starts_with("by "))
    }
}
