//! Whether the data are the cause of a loss that is NaN or infinite.
//!
//! The inputs are not looked at while all is well. After such a loss every rank reads its part of that global batch once
//! more and looks for the first number that is not finite; then the ranks exchange their findings, so that all end with the same error.

use burn::prelude::*;
use burn::tensor::Int;
use everburn_distributed::{DdpError, Prefetch};
use serde::{Deserialize, Serialize};

use super::RankLoop;
use crate::error::{HELD_OUT_OF, TrainError};
use crate::model::batch_tensors::{BatchVisitor, visit_batch};
use crate::model::erased::AnyLoader;
use crate::model::finite::NotFiniteInput;

/// What a rank has found in its part of a global batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Inputs {
    /// The batch is of a type without known tensors, or could not be read again.
    Unknown,
    Finite,
    NotFinite {
        /// The sample's number in its data set.
        sample: usize,
        /// Which of its tensors.
        tensor: String,
        is_nan: bool,
    },
}

impl RankLoop {
    /// An error of a training step, with what the inputs of that step show where the loss or a gradient is not finite. All
    /// ranks have such an error after the same step, and call it together.
    pub(super) fn with_inputs(&self, error: TrainError, epoch: usize) -> TrainError {
        let outcome = &self.outcome;
        let (step, shared) = match &error {
            TrainError::LossNotFinite { step, .. } => (*step, true),
            // In local steps the gradients are this rank's own.
            TrainError::Ddp(DdpError::GradientNotFinite { .. }) => {
                (outcome.step + 1, self.setup.config.sync.steps().is_none())
            }
            _ => return error,
        };
        // Metrics may be read some steps late, or before a round of local steps is counted.
        let batch = (outcome.batches + step).checked_sub(outcome.step + 1);
        match batch {
            Some(batch) => {
                let found = inputs(&self.setup.train, epoch, batch);
                self.blame(error, step, found, "the training", shared)
            }
            None => error,
        }
    }

    /// The same for a validation whose global batch of this number, counted from 0, was the first with such a loss.
    pub(super) fn with_validation_inputs(
        &self,
        error: TrainError,
        loader: &AnyLoader,
        batch: Option<usize>,
    ) -> TrainError {
        let mut found = match batch {
            Some(batch) => inputs(loader, 0, batch),
            None => Inputs::Unknown,
        };
        let mut of = "the validation";
        if let Some(first) = self.setup.held_out_from {
            of = HELD_OUT_OF;
            if let Inputs::NotFinite { sample, .. } = &mut found {
                *sample += first;
            }
        }
        self.blame(error, self.outcome.step, found, of, true)
    }

    /// What all ranks together make of their findings.
    fn blame(
        &self,
        error: TrainError,
        step: usize,
        own: Inputs,
        of: &'static str,
        shared: bool,
    ) -> TrainError {
        let rank = self.setup.group.rank();
        // Where the ranks cannot exchange their findings, the error itself is still the first.
        let all = match shared {
            true => self.exchange_inputs(&own),
            false => Some(vec![(rank, own)]),
        };
        let Some(all) = all else { return error };
        let unknown = all.iter().any(|(_, found)| *found == Inputs::Unknown);
        let culprit = all.into_iter().find_map(|(rank, found)| match found {
            Inputs::NotFinite {
                sample,
                tensor,
                is_nan,
            } => Some((rank, sample, tensor, is_nan)),
            _ => None,
        });
        if let Some((rank, sample, tensor, is_nan)) = culprit {
            let effect = match &error {
                TrainError::LossNotFinite { what, loss, .. } => {
                    format!("the {what} is {loss} after step {step}")
                }
                _ => format!("the gradients of step {step} are not finite"),
            };
            return TrainError::InputNotFinite(NotFiniteInput {
                effect,
                step,
                sample,
                of,
                rank,
                tensor,
                is_nan,
            });
        }
        match error {
            TrainError::LossNotFinite {
                what,
                loss,
                step,
                epoch,
                ..
            } => TrainError::LossNotFinite {
                what,
                loss,
                step,
                epoch,
                inputs_are_finite: !unknown,
            },
            error => error,
        }
    }

    /// The findings of all ranks, each with its number; `None` if they cannot be exchanged.
    fn exchange_inputs(&self, own: &Inputs) -> Option<Vec<(usize, Inputs)>> {
        let own = serde_json::to_vec(own).ok()?;
        let all = self.setup.group.all_gather_varied(own).wait().ok()?;
        let read = |(rank, found): (usize, Vec<u8>)| {
            Some((rank, serde_json::from_slice::<Inputs>(&found).ok()?))
        };
        self.members().into_iter().zip(all).map(read).collect()
    }
}

/// Reads this rank's part of a global batch, of this number in its epoch from 0, and looks at all its numbers.
fn inputs(loader: &AnyLoader, epoch: usize, batch: usize) -> Inputs {
    let loader = loader.clone().prefetching(Prefetch::default());
    let share = loader.epoch(epoch).behind(batch).next();
    let Some(Ok(share)) = share else {
        return Inputs::Unknown;
    };
    for part in share.micro_batches {
        let mut look = FirstNotFinite::default();
        if !visit_batch(&part.batch, &mut look) || look.unreadable {
            return Inputs::Unknown;
        }
        if let Some((tensor, row, rows, is_nan)) = look.found {
            // A batcher may make several rows of a sample.
            let each = rows / part.indices.len().max(1);
            return match part.indices.get(row / each.max(1)) {
                Some(sample) if each * part.indices.len() == rows => Inputs::NotFinite {
                    sample: *sample,
                    tensor: tensor.to_string(),
                    is_nan,
                },
                _ => Inputs::Unknown,
            };
        }
    }
    Inputs::Finite
}

/// Looks for the first number that is NaN or infinite: the name of its tensor, its row, of how many, and whether it is NaN.
#[derive(Default)]
struct FirstNotFinite {
    found: Option<(&'static str, usize, usize, bool)>,
    unreadable: bool,
}

impl BatchVisitor for FirstNotFinite {
    fn float<const D: usize>(&mut self, name: &'static str, tensor: &Tensor<D>) {
        if self.found.is_some() {
            return;
        }
        let (rows, numbers) = (tensor.dims()[0], tensor.shape().num_elements());
        let Ok(data) = tensor.clone().try_into_data() else {
            self.unreadable = true;
            return;
        };
        let mut values = data.iter::<f64>().enumerate();
        let first = values.find(|(_, value)| !value.is_finite());
        self.found =
            first.map(|(at, value)| (name, at * rows / numbers.max(1), rows, value.is_nan()));
    }

    fn int<const D: usize>(&mut self, _: &'static str, _: &Tensor<D, Int>) {}
}
