//! Whether the loss of a task is a sum over the batch, where a training takes it for the mean.

use burn::module::Module;
use burn_train::InferenceStep;
use everburn_nn::with_checked_targets;
use everburn_record::{Event, EventKind, attempt, units};

use super::Trainer;
use crate::model::draw::draw_parameters;
use crate::model::erased::{AnyBatch, AnyData, AnyModel};

/// At most this many samples are looked at: enough to tell a sum from a mean.
const SAMPLES: usize = 16;

/// Fewer tell nothing: a loss that compares samples with each other is `log n` at the start, and of four the halves add up to
/// the whole.
const FEWEST: usize = 6;

impl Trainer {
    /// Warns of a loss of the task's own that is a sum over the batch: results then depend on the number of ranks. Rank 0 looks
    /// at a few samples and at their halves, before the first step. Returns the model, whose parameters are drawn then.
    pub(super) fn warn_of_a_summed_loss(&self, model: AnyModel, data: &AnyData) -> AnyModel {
        let has_own_loss = self.task.as_ref().is_some_and(|task| task.has_own_loss());
        let readers = self.group.world_size() * self.config.accumulate;
        let samples = SAMPLES.min(self.config.batch_size / readers.max(1));
        let samples = samples.min(data.train.len()) & !1;
        let looks = has_own_loss && self.is_first() && !self.resume && samples >= FEWEST;
        // Where each rank reads its part of the first model, this one has no values.
        if !looks || self.initial_values.is_some() {
            return model;
        }
        // Drawn now, on the model's device: a fork of parameters that are still to be drawn would draw its own.
        draw_parameters(&model);
        let (device, half) = (self.device.clone().autodiff(), samples / 2);
        let look = || {
            let valid = model.clone().fork(&device).valid();
            let loss = |indices: std::ops::Range<usize>| {
                let items = data.train.get_many(indices.collect()).ok()?;
                let batch: AnyBatch = data.batcher.batch(items, &self.device);
                let sums = InferenceStep::step(&valid, batch).sums().ok()?;
                Some(sums.mean_loss())
            };
            Some((loss(0..samples)?, loss(0..half)?, loss(half..samples)?))
        };
        // What fails here fails in the first step, where the error is. A wrong label is no panic there, and has none here.
        let losses = attempt::run(|| with_checked_targets(false, look).ok().flatten());
        let losses = losses.ok().flatten();
        if let Some((whole, first, second)) = losses
            && is_sum(whole, [first, second])
        {
            let [whole, first, second] = [whole, first, second].map(|loss| units::fixed(loss, 4));
            let text = format!(
                "the loss of {samples} samples is {whole}, and those of their halves, {first} and {second}, add up to it: it \
                 seems to be a sum over the batch, and results depend on the number of ranks then. Give the mean to `Loss::new`: \
                 `.mean()` in place of `.sum()`"
            );
            tracing::warn!("{text}");
            if let Some(run) = &self.run {
                run.note(Event::new(EventKind::Warning, text));
            }
        }
        model
    }
}

/// Whether the losses of the halves of a batch add up to that of the whole, and none of the three is near zero.
fn is_sum(whole: f64, halves: [f64; 2]) -> bool {
    let of_all = [whole.abs(), halves[0].abs(), halves[1].abs()];
    let near = 1e-3 * of_all.into_iter().fold(0.0, f64::max);
    (halves[0] + halves[1] - whole).abs() <= near && of_all.into_iter().all(|it| it > near)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_a_sum_add_up_to_it_and_those_of_a_mean_do_not() {
        assert!(is_sum(8.0, [3.0, 5.001]));
        assert!(is_sum(-8.0, [-3.0, -5.0]));
        assert!(!is_sum(4.0, [3.0, 5.0]), "a mean");
        assert!(!is_sum(5.0, [0.0, 5.0]), "a mean over what one half has");
        assert!(!is_sum(0.0, [0.0, 0.0]));
        assert!(!is_sum(0.0, [1.0, -1.0]), "a mean near zero");
        assert!(!is_sum(f64::NAN, [f64::NAN; 2]));
        // The loss of telling each of `n` samples from the others, by scores that are equal.
        let contrast = |samples: usize| (samples as f64).ln();
        for samples in (FEWEST..=SAMPLES).step_by(2) {
            assert!(!is_sum(contrast(samples), [contrast(samples / 2); 2]));
        }
    }
}
