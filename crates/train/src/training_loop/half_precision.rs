//! Steps in half precision: losses scaled, gradients unscaled, steps that are skipped.

use std::collections::HashSet;

use burn::module::{ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::prelude::*;
use everburn_collectives::group::ReduceOp;
use everburn_distributed::{GradientNorm, SyncedGradients, clip_coefficient};
use everburn_record::{Event, EventKind};

use super::RankLoop;
use crate::config::chaos::Fault;
use crate::config::loss_scaling::ScaledLosses;
use crate::error::TrainError;
use crate::model::erased::AnyModel;

impl RankLoop {
    /// Where losses are scaled, those of step `step` are from now on until what this yields is dropped. A rank
    /// on which an overflow is wanted scales them beyond all bounds.
    pub(super) fn scale_losses(&self, step: usize) -> Option<ScaledLosses> {
        let scaling = self.outcome.loss_scaling?;
        let overflows = |fault: &Fault| matches!(fault, Fault::Overflow(_));
        let factor = match self.faults_at(step).iter().any(overflows) {
            true => f64::INFINITY,
            false => scaling.scale,
        };
        Some(ScaledLosses::begin(factor))
    }

    /// Checks that the passes over this rank's `samples` samples have computed as the configuration says, and
    /// undoes the scaling of their losses in the gradients, which are clipped after it. `true` if they are not
    /// finite, on all ranks or on none: then the step is to be skipped, and they are nobody's. Where each rank has
    /// its shards of the gradients only, all ranks call it.
    pub(super) fn unscale(
        &self,
        model: &AnyModel,
        synced: &mut SyncedGradients,
        scaled: Option<ScaledLosses>,
        samples: usize,
    ) -> Result<bool, TrainError> {
        let config = &self.setup.config;
        if samples > 0 {
            config.precision.check_reached(self.low_before)?;
        }
        let (Some(scaling), Some(scaled)) = (self.outcome.loss_scaling, scaled) else {
            return Ok(false);
        };
        if scaled.end() == 0 && samples > 0 {
            return Err(TrainError::Config(format!(
                "`training.precision = {}` needs a loss that is scaled, and this model's TrainStep does not scale it: call \
                 everburn_train::scaled_loss on it before backward, or use everburn_train::Supervised",
                config.precision
            )));
        }
        let gradients = std::mem::take(&mut synced.gradients);
        let (gradients, norm) = self.multiplied(model, gradients, scaling.scale.recip());
        let mut norm = norm
            .try_into_scalar::<f64>()
            .map_err(|error| TrainError::Device(error.to_string()))?;
        if self.shards_gradients() {
            // An overflow is in one rank's shards, and is in the norm of all ranks.
            let mut squares = [norm * norm];
            let group = &self.setup.group;
            group.all_reduce_in_place(&mut squares, ReduceOp::Sum)?;
            norm = squares[0].sqrt();
        }
        if !norm.is_finite() {
            synced.norm = None;
            return Ok(true);
        }
        synced.norm = Some(GradientNorm::known(norm));
        let most = config.ddp.max_gradient_norm.map(f64::from);
        let clips = most.map(|most| clip_coefficient(norm, most));
        synced.gradients = match clips.filter(|factor| *factor < 1.0) {
            Some(factor) => self.multiplied(model, gradients, factor).0,
            None => gradients,
        };
        Ok(false)
    }

    /// The gradients that this rank has, of `model` or its shards of them, times `factor`, and their norm, `[1]`.
    fn multiplied(
        &self,
        model: &AnyModel,
        gradients: GradientsParams,
        factor: f64,
    ) -> (GradientsParams, Tensor<1>) {
        match &self.shards {
            Some(shards) if self.shards_gradients() => {
                let ids = shards.ddp().parameters().iter().map(|entry| entry.id);
                multiplied_local_shards(ids, gradients, factor)
            }
            _ => multiplied(model, gradients, factor),
        }
    }

    /// Counts a step that was skipped, or was not; all ranks come to the same.
    pub(super) fn count_overflow(
        &mut self,
        step: usize,
        overflowed: bool,
    ) -> Result<(), TrainError> {
        let Some(scaling) = &mut self.outcome.loss_scaling else {
            return Ok(());
        };
        let before = scaling.scale;
        scaling.count(overflowed);
        let (scale, skipped_steps) = (scaling.scale, scaling.skipped_steps);
        if !overflowed {
            return Ok(());
        }
        if scaling.is_exhausted() {
            return Err(TrainError::LossScaleTooLow {
                scale: before,
                step,
                skipped_steps,
            });
        }
        if self.is_first() {
            let text = format!(
                "step {step} is skipped: a gradient is too large for f16; the loss scale falls from {before} to \
                 {scale}"
            );
            tracing::info!("{text}");
            self.note(Event {
                step: Some(step as u64),
                ..Event::new(EventKind::Skip, text)
            });
        }
        Ok(())
    }
}

/// The gradients of `model` times `factor`, and the norm of all of them together, `[1]`.
fn multiplied<M: Module>(
    model: &M,
    gradients: GradientsParams,
    factor: f64,
) -> (GradientsParams, Tensor<1>) {
    let mut multiply = Multiply::new(gradients, factor);
    model.visit(&mut multiply);
    multiply.finish()
}

/// The same of gradients of the shards of the parameters `ids`.
fn multiplied_local_shards(
    ids: impl Iterator<Item = ParamId>,
    gradients: GradientsParams,
    factor: f64,
) -> (GradientsParams, Tensor<1>) {
    let mut multiply = Multiply::new(gradients, factor);
    ids.for_each(|id| multiply.multiply::<1>(id));
    multiply.finish()
}

struct Multiply {
    factor: f64,
    given: GradientsParams,
    made: GradientsParams,
    squares: Vec<Tensor<1>>,
    /// Tied weights are visited twice and have one gradient.
    seen: HashSet<ParamId>,
}

impl Multiply {
    fn new(given: GradientsParams, factor: f64) -> Self {
        Self {
            factor,
            given,
            made: GradientsParams::new(),
            squares: Vec::new(),
            seen: HashSet::new(),
        }
    }

    fn multiply<const D: usize>(&mut self, id: ParamId) {
        if !self.seen.insert(id) {
            return;
        }
        if let Some(gradient) = self.given.remove::<D>(id) {
            let gradient = gradient.mul_scalar(self.factor);
            let squares = gradient.clone().mul(gradient.clone()).sum();
            self.squares.push(squares);
            self.made.register(id, gradient);
        }
    }

    fn finish(self) -> (GradientsParams, Tensor<1>) {
        let mut squares = self.squares.into_iter();
        let sum = match squares.next() {
            // The parts of a model may be on several devices.
            Some(first) => squares.fold(first, |sum, more| {
                let device = sum.device();
                sum + more.to_device(&device)
            }),
            None => Tensor::zeros([1], &Device::default()),
        };
        (self.made, sum.sqrt())
    }
}

impl ModuleVisitor for Multiply {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.multiply::<D>(param.id);
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};

    use super::*;

    fn gradients_of(linear: &Linear, loss_scale: f64) -> GradientsParams {
        let device = linear.weight.device();
        let rows = Tensor::<2>::from_floats([[3.0, 0.0], [3.0, 0.0]], &device);
        let loss = linear.forward(rows).mean().mul_scalar(loss_scale);
        GradientsParams::from_grads(loss.backward(), linear)
    }

    #[test]
    fn gradients_are_multiplied_once_each_and_their_norm_is_that_of_all() {
        let device = Device::flex().autodiff();
        let linear: Linear = LinearConfig::new(2, 1).init(&device);
        // The same parameters twice, as tied weights are.
        let model = vec![linear.clone(), linear.clone()];
        let gradients = gradients_of(&linear, 1024.0);
        let (gradients, norm) = multiplied(&model, gradients, 1.0 / 1024.0);
        let weight = gradients.get::<2>(linear.weight.id).unwrap();
        assert_eq!(weight.into_data(), TensorData::from([[3.0_f32], [0.0]]));
        let norm = norm.into_scalar::<f64>();
        assert!((norm - 10.0_f64.sqrt()).abs() < 1e-6, "{norm}");
    }

    #[test]
    fn shards_are_multiplied_by_their_identities() {
        let (device, id) = (Device::flex(), ParamId::new());
        let mut shards = GradientsParams::new();
        shards.register(id, Tensor::<1>::from_floats([6.0, 8.0], &device));
        let ids = [ParamId::new(), id].into_iter();
        let (shards, norm) = multiplied_local_shards(ids, shards, 0.5);
        let shard = shards.get::<1>(id).unwrap().into_data();
        assert_eq!(shard, TensorData::from([3.0_f32, 4.0]));
        assert_eq!(norm.into_scalar::<f64>(), 5.0);
    }

    #[test]
    fn one_gradient_that_is_not_finite_shows_in_the_norm() {
        let device = Device::flex().autodiff();
        let linear: Linear = LinearConfig::new(2, 1).init(&device);
        for factor in [f64::INFINITY, f64::NAN] {
            let (_, norm) = multiplied(&linear, gradients_of(&linear, factor), 1.0 / 1024.0);
            assert!(!norm.into_scalar::<f64>().is_finite(), "{factor}");
        }
        let (_, none) = multiplied(&linear, GradientsParams::new(), 1.0);
        assert_eq!(none.into_scalar::<f64>(), 0.0);
    }
}
