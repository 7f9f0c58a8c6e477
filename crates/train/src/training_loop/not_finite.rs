//! What the inputs show of a loss or a gradient that is not finite.

use everburn_distributed::DdpError;

use super::RankLoop;
use crate::error::TrainError;
use crate::model::erased::{AnyLoader, AnyModel};
use crate::model::finite::DivergenceSign;
use crate::model::input_search::{InputSearch, Suspect};

impl RankLoop {
    /// An error of a training step, with what the inputs of that step show where the loss or a gradient is not finite. All
    /// ranks have such an error after the same step, and call it together.
    pub(super) fn with_inputs(&self, error: TrainError, epoch: usize) -> TrainError {
        let outcome = &self.outcome;
        let (step, shared) = match &error {
            TrainError::LossNotFinite {
                step: Some(step), ..
            } => (*step, true),
            // In local steps the gradients are this rank's own.
            TrainError::Ddp(DdpError::GradientNotFinite { .. }) => {
                (outcome.step + 1, self.setup.config.sync.steps().is_none())
            }
            _ => return error,
        };
        // Metrics may be read some steps late, or before a round of local steps is counted.
        let Some(batch) = (outcome.batches + step).checked_sub(outcome.step + 1) else {
            return error;
        };
        let suspect = Suspect {
            loader: &self.setup.train,
            epoch,
            batch: Some(batch),
            first: 0,
            step: Some(step),
            of: "the training",
        };
        self.input_search(shared).explain(error, &suspect, None)
    }

    /// The same for a validation or test of `model`, whose global batch of this number, counted from 0, was the first with such
    /// a loss. Its samples are those of `of` from number `first` on.
    pub(super) fn with_measured_inputs(
        &self,
        error: TrainError,
        model: &AnyModel,
        (loader, batch): (&AnyLoader, Option<usize>),
        (of, first): (&'static str, usize),
    ) -> TrainError {
        let suspect = Suspect {
            loader,
            epoch: 0,
            batch,
            first,
            step: Some(self.outcome.step),
            of,
        };
        let sign = DivergenceSign::find(model, self.outcome.losses);
        self.input_search(true).explain(error, &suspect, sign)
    }

    fn input_search(&self, shared: bool) -> InputSearch<'_> {
        InputSearch {
            group: &self.setup.group,
            members: self.members(),
            device: self.setup.device.clone(),
            task: self.setup.task.as_deref(),
            shared,
        }
    }
}
