//! What a training keeps besides the model: an outer loop, a moving average.

use burn::module::Module;
use std::sync::Arc;

use super::RankLoop;
use crate::checkpoint::ema::Keepers;
use crate::checkpoint::weights::to_safetensors;
use crate::config::divergence::OnDivergence;
use crate::error::TrainError;
use crate::model::erased::AnyModel;

impl RankLoop {
    /// Makes what needs the ranks of the present group, all of which have `model` now.
    pub(super) fn meet(&mut self, model: &AnyModel) -> Result<(), TrainError> {
        let progress = self.progress();
        let setup = &mut self.setup;
        let config = &setup.config;
        // A rank that is lost, or given another's state, must not be the only one to know something.
        let repairs = config.on_divergence == OnDivergence::Repair;
        let may_change = setup.elasticity.rolls_back() || repairs;
        let keepers = match config.ema {
            _ if may_change => Keepers::Every,
            Some(ema) if ema.sharded => Keepers::Shared,
            _ => Keepers::First,
        };
        let group = &setup.group;
        setup.state.meet(model, group, config, keepers, &progress)
    }

    /// The model that is validated and tested: without gradients, and averaged where that is asked for. All
    /// ranks call it.
    pub(super) fn measured(&self, model: &AnyModel) -> Result<AnyModel, TrainError> {
        match &self.setup.state.ema {
            Some(ema) if self.validates_averaged() => ema.everywhere(model, &self.setup.group),
            _ => Ok(model.valid()),
        }
    }

    fn validates_averaged(&self) -> bool {
        let ema = self.setup.config.ema.as_ref();
        ema.is_some_and(|ema| ema.validate)
    }

    /// Hands out the averaged model at the end of a training: to rank 0, which writes it, and to all where
    /// it is what is tested. All ranks call it.
    pub(super) fn leave_averaged(&mut self, model: &AnyModel) -> Result<(), TrainError> {
        let Some(ema) = &self.setup.state.ema else {
            return Ok(());
        };
        let averaged = match ema.is_shared() || self.validates_averaged() {
            true => Some(ema.everywhere(model, &self.setup.group)?),
            false => ema.here(model),
        };
        if let Some(averaged) = averaged {
            let bytes = to_safetensors(&averaged).map_err(TrainError::BurnTrain)?;
            self.outcome.averaged = Some(Arc::new(bytes));
        }
        Ok(())
    }

    /// Makes the same on all ranks, before a checkpoint, what each has made of its optimizer in steps by
    /// itself: the mean. What their differences have lost, rank 0 then owes. All ranks call it.
    pub(super) fn make_states_equal(&mut self, model: &AnyModel) -> Result<(), TrainError> {
        let state = &mut self.setup.state;
        let Some(outer) = &mut state.outer else {
            return Ok(());
        };
        if self.setup.group.world_size() == 1 {
            return Ok(());
        }
        let residuals = outer.gather_residuals()?;
        let states = state.average_optimizer(model, &self.setup.group)?;
        let report = self.outcome.outer.get_or_insert_default();
        report.bytes_of_checkpoints += residuals + states;
        Ok(())
    }
}
