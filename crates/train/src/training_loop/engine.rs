//! How ranks make steps together.

use std::ops::RangeInclusive;

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use everburn_distributed::{Communication, Ddp, GradientNorm};
use everburn_record::StepCost;

use super::RankLoop;
use super::local_steps::LocalSteps;
use super::synchronous_steps::SynchronousSteps;
use crate::error::TrainError;
use crate::metrics::step_reduction::Votes;
use crate::metrics::sums::MetricSums;
use crate::model::erased::{AnyLoader, AnyModel};

/// Makes the steps of an epoch: synchronous ones, or local ones with an outer step between.
pub(super) trait Engine {
    /// How many global batches of the epoch are left.
    fn left(&self) -> usize;

    /// Makes the next step, or several local ones. An error in an elastic job leaves the model of the last finished
    /// step in [`ElasticState::snapshot`](super::elastic_state::ElasticState::snapshot).
    fn step(&mut self, ranks: &mut RankLoop, model: AnyModel) -> Result<EngineStep, TrainError>;
}

pub(super) struct EngineStep {
    pub(super) model: AnyModel,
    /// `None` while the step's metrics are still on the device.
    pub(super) synced: Option<SyncedSteps>,
}

/// The newest steps, the same on all ranks.
pub(super) struct SyncedSteps {
    pub(super) steps: Vec<SyncedStep>,
    /// Their numbers; some may be without metrics.
    pub(super) range: RangeInclusive<usize>,
    /// The votes of all ranks together.
    pub(super) votes: Votes,
}

impl SyncedSteps {
    /// These steps and those after them, with the votes of both.
    pub(super) fn followed_by(mut self, next: Self) -> Self {
        self.steps.extend(next.steps);
        Self {
            steps: self.steps,
            range: *self.range.start()..=*next.range.end(),
            votes: self.votes.or(next.votes),
        }
    }
}

pub(super) struct LocalStep {
    pub(super) number: usize,
    pub(super) rate: ModuleLearningRate,
    pub(super) gradient_norm: Option<GradientNorm>,
    /// The gradients have overflowed, and the optimizer has skipped the step.
    pub(super) skipped: bool,
    pub(super) communication: Communication,
}

/// A step with its metrics over all ranks.
pub(super) struct SyncedStep {
    pub(super) step: LocalStep,
    pub(super) sums: MetricSums,
    pub(super) cost: StepCost,
}

impl RankLoop {
    /// The engine of an epoch, and the model prepared for it.
    pub(super) fn engine<'a>(
        &self,
        model: AnyModel,
        loader: &'a AnyLoader,
        ddp: &'a Ddp,
        epoch: usize,
    ) -> Result<(Box<dyn Engine + 'a>, AnyModel), TrainError> {
        match self.setup.config.sync.steps() {
            None => {
                let steps = SynchronousSteps::begin(self, loader, ddp, epoch);
                Ok((Box::new(steps), model))
            }
            Some(every) => {
                let (steps, model) = LocalSteps::begin(self, model, loader, epoch, every)?;
                Ok((Box::new(steps), model))
            }
        }
    }
}
