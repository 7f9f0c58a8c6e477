//! How ranks make steps together.

use std::ops::RangeInclusive;

use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use everburn_distributed::{Communication, Ddp, GradientNorm};

use super::RankLoop;
use super::each_step::EachStep;
use super::rounds::Rounds;
use crate::erased::{AnyLoader, AnyModel};
use crate::error::TrainError;
use crate::metric_sums::MetricSums;
use crate::step_exchange::Votes;
use crate::step_report::StepCost;

/// Makes the steps of an epoch: with all ranks at each step, or with each rank by itself for a while.
pub(super) trait Engine {
    /// How many global batches of the epoch are left.
    fn left(&self) -> usize;

    /// Makes the next step, or several at once. Where the ranks may lose each other, an error leaves what all have
    /// made before it in [`RankLoop::kept`].
    fn step(&mut self, ranks: &mut RankLoop, model: AnyModel) -> Result<Made, TrainError>;
}

/// What an engine has made.
pub(super) struct Made {
    pub(super) model: AnyModel,
    /// `None` while the numbers of its steps are left on the device.
    pub(super) known: Option<Known>,
}

/// What all ranks know of the newest steps: the same on each.
pub(super) struct Known {
    /// The steps of which they know now.
    pub(super) steps: Vec<KnownStep>,
    /// Those that were made since they knew last.
    pub(super) made: RangeInclusive<usize>,
    /// What any of them wants.
    pub(super) votes: Votes,
}

/// A step on this rank.
pub(super) struct OwnStep {
    pub(super) number: usize,
    pub(super) rate: ModuleLearningRate,
    pub(super) gradient_norm: Option<GradientNorm>,
    /// Gradients were too large: nothing was learnt in it.
    pub(super) skipped: bool,
    pub(super) communication: Communication,
}

/// A step of which all ranks know the same.
pub(super) struct KnownStep {
    pub(super) step: OwnStep,
    pub(super) sums: MetricSums,
    pub(super) cost: StepCost,
}

impl RankLoop {
    /// The engine of an epoch, and the model as it wants it.
    pub(super) fn engine<'a>(
        &self,
        model: AnyModel,
        loader: &'a AnyLoader,
        ddp: &'a Ddp,
        epoch: usize,
    ) -> Result<(Box<dyn Engine + 'a>, AnyModel), TrainError> {
        match self.setup.config.sync.steps() {
            None => Ok((Box::new(EachStep::begin(self, loader, ddp, epoch)), model)),
            Some(every) => {
                let (rounds, model) = Rounds::begin(self, model, loader, epoch, every)?;
                Ok((Box::new(rounds), model))
            }
        }
    }
}
