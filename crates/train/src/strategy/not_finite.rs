//! Whether the data are the cause of a loss that is NaN or infinite.
//!
//! The inputs are not looked at while all is well. After such a loss every rank reads its part of that global batch once
//! more and looks for numbers that are not finite; then the ranks exchange their findings, so that all end with the same error.
//! Of batches whose type is the task's own nothing can be seen: there, a model with fresh weights shows whether the loss of
//! each sample alone is finite.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::prelude::*;
use burn::tensor::Int;
use burn_train::InferenceStep;
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
    NotFinite(Culprit),
}

/// The first sample of a rank's part with a number that is not finite.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Culprit {
    /// The sample's number in its data set.
    sample: usize,
    /// What the task calls it.
    name: Option<String>,
    /// Which of its tensors.
    tensor: String,
    is_nan: bool,
    /// The numbers of all others.
    others: Vec<usize>,
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
                let found = self.inputs(&self.setup.train, epoch, batch);
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
            Some(batch) => self.inputs(loader, 0, batch),
            None => Inputs::Unknown,
        };
        let mut of = "the validation";
        if let Some(first) = self.setup.held_out_from {
            of = HELD_OUT_OF;
            if let Inputs::NotFinite(Culprit { sample, others, .. }) = &mut found {
                others
                    .iter_mut()
                    .chain([sample])
                    .for_each(|it| *it += first);
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
        let mut culprits = all.into_iter().filter_map(|(rank, found)| match found {
            Inputs::NotFinite(culprit) => Some((rank, culprit)),
            _ => None,
        });
        if let Some((rank, culprit)) = culprits.next() {
            let effect = match &error {
                TrainError::LossNotFinite { what, loss, .. } => {
                    format!("the {what} is {loss} after step {step}")
                }
                _ => format!("the gradients of step {step} are not finite"),
            };
            let elsewhere =
                culprits.flat_map(|(_, other)| [vec![other.sample], other.others].concat());
            let mut others: Vec<_> = culprit.others.into_iter().chain(elsewhere).collect();
            others.sort_unstable();
            return TrainError::InputNotFinite(Box::new(NotFiniteInput {
                effect,
                step,
                sample: culprit.sample,
                name: culprit.name,
                of,
                rank,
                tensor: culprit.tensor,
                is_nan: culprit.is_nan,
                others,
            }));
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

    /// Reads this rank's part of a global batch, of this number in its epoch from 0, and looks at all its numbers.
    fn inputs(&self, loader: &AnyLoader, epoch: usize, batch: usize) -> Inputs {
        let loader = loader.clone().prefetching(Prefetch::default());
        let found = match not_finite(&loader, epoch, batch) {
            None => self.not_finite_alone(&loader, epoch, batch),
            Some(found) if found.is_empty() => return Inputs::Finite,
            Some(found) => found,
        };
        let mut found = found.into_iter();
        let Some((sample, (tensor, is_nan))) = found.next() else {
            return Inputs::Unknown;
        };
        let named = || {
            let item = loader.dataset().get(sample).ok()?;
            self.setup.task.as_ref()?.sample_name(&item)
        };
        Inputs::NotFinite(Culprit {
            sample,
            name: named(),
            tensor: tensor.to_string(),
            is_nan,
            others: found.map(|(sample, _)| sample).collect(),
        })
    }

    /// The samples whose loss is not finite by fresh weights, either; none where that cannot be found.
    fn not_finite_alone(&self, loader: &AnyLoader, epoch: usize, batch: usize) -> NotFinite {
        let look = || {
            let device = &self.setup.device;
            let model = self.setup.task.as_ref()?.model(device).ok()?.valid();
            let loader = loader.clone().on_device(device.clone().inner());
            let loader = loader.in_micro_batches(usize::MAX);
            let share = loader.epoch(epoch).behind(batch).next()?.ok()?;
            let mut found = NotFinite::new();
            for part in share.micro_batches {
                // Logical shards have several samples in a part.
                let [sample] = part.indices[..] else {
                    return None;
                };
                let loss = InferenceStep::step(&model, part.batch)
                    .sums()
                    .ok()?
                    .loss_sum;
                if !loss.is_finite() {
                    found.push((sample, ("loss by fresh weights", loss.is_nan())));
                }
            }
            Some(found)
        };
        // A loss that takes no single sample must not hide the error that there is.
        let found = catch_unwind(AssertUnwindSafe(look));
        found.ok().flatten().unwrap_or_default()
    }
}

/// The numbers of samples in their data set, each with the tensor that has a number that is not finite, and whether that is
/// NaN.
type NotFinite = Vec<(usize, (&'static str, bool))>;

/// The samples of this rank's part of a global batch with numbers that are not finite; `None` if that cannot be seen.
fn not_finite(loader: &AnyLoader, epoch: usize, batch: usize) -> Option<NotFinite> {
    let share = loader.epoch(epoch).behind(batch).next()?.ok()?;
    let mut found = NotFinite::new();
    for part in share.micro_batches {
        let mut look = FindNotFinite {
            samples: part.indices.len(),
            ..FindNotFinite::default()
        };
        if !visit_batch(&part.batch, &mut look) || look.unreadable {
            return None;
        }
        let of_part = look.found.into_iter();
        found.extend(of_part.map(|(place, what)| (part.indices[place], what)));
    }
    Some(found)
}

/// Looks for numbers that are NaN or infinite: by the sample's place in its batch, the name of the first such tensor, and
/// whether the number is NaN.
#[derive(Default)]
struct FindNotFinite {
    samples: usize,
    found: BTreeMap<usize, (&'static str, bool)>,
    unreadable: bool,
}

impl BatchVisitor for FindNotFinite {
    fn float<const D: usize>(&mut self, name: &'static str, tensor: &Tensor<D>) {
        let (rows, numbers) = (tensor.dims()[0], tensor.shape().num_elements());
        // A batcher may make several rows of a sample.
        let each = numbers / self.samples.max(1);
        let Ok(data) = tensor.clone().try_into_data() else {
            self.unreadable = true;
            return;
        };
        for (at, value) in data.iter::<f64>().enumerate() {
            if !value.is_finite() {
                self.unreadable |= !rows.is_multiple_of(self.samples.max(1));
                let found = self.found.entry(at / each.max(1));
                found.or_insert((name, value.is_nan()));
            }
        }
    }

    fn int<const D: usize>(&mut self, _: &'static str, _: &Tensor<D, Int>) {}
}
