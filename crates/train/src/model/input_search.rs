//! Whether the data are the cause of a loss that is NaN or infinite.
//!
//! The inputs are not looked at while all is well. After such a loss every rank reads its part of that global batch once
//! more and looks for numbers that are not finite; then the ranks gather their findings, so that all end with the same error.
//! Of batches whose type is the task's own nothing can be seen: there, a model with fresh weights shows whether the loss of
//! each sample alone is finite.

use std::collections::BTreeMap;

use burn::prelude::*;
use burn::tensor::Int;
use burn_train::InferenceStep;
use everburn_collectives::group::ProcessGroup;
use everburn_distributed::{Prefetch, all_gather_object};
use everburn_record::attempt;
use serde::{Deserialize, Serialize};

use crate::error::TrainError;
use crate::model::batch_tensors::{BatchVisitor, visit_batch};
use crate::model::erased::AnyLoader;
use crate::model::finite::{DivergenceSign, NotFiniteInput};
use crate::task::ConfiguredTask;

/// Looks for the samples that make a loss or a gradient NaN or infinite.
pub(crate) struct InputSearch<'a> {
    pub(crate) group: &'a ProcessGroup,
    /// The number that users have for each rank of the group.
    pub(crate) members: Vec<usize>,
    /// What models are trained on: a device with gradients.
    pub(crate) device: Device,
    /// Names samples, and makes fresh models.
    pub(crate) task: Option<&'a dyn ConfiguredTask>,
    /// Whether all ranks have the error, and look together.
    pub(crate) shared: bool,
}

/// The global batch that is looked at.
pub(crate) struct Suspect<'a> {
    pub(crate) loader: &'a AnyLoader,
    pub(crate) epoch: usize,
    /// Its number in the epoch, from 0; `None` if it is not known.
    pub(crate) batch: Option<usize>,
    /// The number of the loader's first sample in its data set.
    pub(crate) first: usize,
    /// The training step that the error is of or comes after, from 1; `None` outside a training.
    pub(crate) step: Option<usize>,
    /// What the samples are of, `the training` say.
    pub(crate) of: &'static str,
}

/// What a rank has found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Finding {
    inputs: Inputs,
    sign: Option<DivergenceSign>,
}

/// What is in a rank's part of a global batch.
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

impl InputSearch<'_> {
    /// The error with what the inputs show; `sign` is what this rank has seen of a divergence. Where all ranks have the
    /// error, they call it together.
    pub(crate) fn explain(
        &self,
        error: TrainError,
        suspect: &Suspect<'_>,
        sign: Option<DivergenceSign>,
    ) -> TrainError {
        let inputs = match suspect.batch {
            Some(batch) => self.inputs(suspect, batch),
            None => Inputs::Unknown,
        };
        let own = Finding { inputs, sign };
        // Where the ranks cannot gather their findings, the error itself is still the first.
        let all = match self.shared {
            true => self.gather(&own),
            false => Some(vec![(self.members[self.group.rank()], own)]),
        };
        let Some(all) = all else { return error };
        let inputs_are_finite = all.iter().all(|(_, it)| it.inputs != Inputs::Unknown);
        let sign = all.iter().find_map(|(_, it)| it.sign);
        let culprits = all.into_iter().filter_map(|(rank, it)| match it.inputs {
            Inputs::NotFinite(culprit) => Some((rank, culprit)),
            _ => None,
        });
        if let Some((rank, culprit)) = joined(culprits) {
            return TrainError::InputNotFinite(Box::new(NotFiniteInput {
                effect: effect(&error, suspect.step),
                step: suspect.step,
                sample: culprit.sample,
                name: culprit.name,
                of: suspect.of,
                rank,
                tensor: culprit.tensor,
                is_nan: culprit.is_nan,
                others: culprit.others,
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
                inputs_are_finite,
                sign,
            },
            error => error,
        }
    }

    /// The findings of all ranks, each with its number; `None` if they cannot be gathered.
    fn gather(&self, own: &Finding) -> Option<Vec<(usize, Finding)>> {
        let all = all_gather_object(self.group, own).ok()?;
        Some(self.members.iter().copied().zip(all).collect())
    }

    /// Reads this rank's part of the global batch of this number, and looks at all its numbers.
    fn inputs(&self, suspect: &Suspect<'_>, batch: usize) -> Inputs {
        let loader = suspect.loader.clone().prefetching(Prefetch::default());
        let found = match not_finite(&loader, suspect.epoch, batch) {
            None => self.not_finite_alone(&loader, suspect.epoch, batch),
            Some(found) if found.is_empty() => return Inputs::Finite,
            Some(found) => found,
        };
        let mut found = found.into_iter();
        let Some((sample, (tensor, is_nan))) = found.next() else {
            return Inputs::Unknown;
        };
        let named = || {
            let item = loader.dataset().get(sample).ok()?;
            self.task?.sample_name(&item)
        };
        Inputs::NotFinite(Culprit {
            sample: suspect.first + sample,
            name: named(),
            tensor: tensor.to_string(),
            is_nan,
            others: found.map(|(sample, _)| suspect.first + sample).collect(),
        })
    }

    /// The samples whose loss is not finite by fresh weights, either; none where that cannot be found.
    fn not_finite_alone(&self, loader: &AnyLoader, epoch: usize, batch: usize) -> NotFinite {
        let look = || {
            let model = self.task?.model(&self.device).ok()?.valid();
            let loader = loader.clone().on_device(self.device.clone().inner());
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
        attempt::run(look).ok().flatten().unwrap_or_default()
    }
}

/// The culprit of the first rank, with the samples of all others.
fn joined(mut culprits: impl Iterator<Item = (usize, Culprit)>) -> Option<(usize, Culprit)> {
    let (rank, mut first) = culprits.next()?;
    for (_, culprit) in culprits {
        first.others.push(culprit.sample);
        first.others.extend(culprit.others);
    }
    // Ranks that have parts of one model read the same samples.
    let sample = first.sample;
    first.others.retain(|other| *other != sample);
    first.others.sort_unstable();
    first.others.dedup();
    Some((rank, first))
}

/// What is not finite, in words.
fn effect(error: &TrainError, step: Option<usize>) -> String {
    let what = match error {
        TrainError::LossNotFinite { what, loss, .. } => format!("the {what} is {loss}"),
        _ => {
            let of = step.map_or_else(String::new, |step| format!(" of step {step}"));
            return format!("the gradients{of} are not finite");
        }
    };
    match step {
        Some(step) => format!("{what} after step {step}"),
        None => what,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_that_several_ranks_have_read_is_named_once() {
        let culprit = |sample, others: &[usize]| Culprit {
            sample,
            name: None,
            tensor: "input".to_owned(),
            is_nan: true,
            others: others.to_vec(),
        };
        // Two ranks of a pipeline, beside two of another replica.
        let all = [
            (0, culprit(17, &[19])),
            (1, culprit(17, &[19])),
            (2, culprit(4, &[])),
            (3, culprit(4, &[])),
        ];
        let (rank, found) = joined(all.into_iter()).unwrap();
        assert_eq!((rank, found), (0, culprit(17, &[4, 19])));
        assert_eq!(joined(std::iter::empty()), None);
    }
}
