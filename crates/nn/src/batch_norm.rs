//! Batch norm, over the samples of one rank or of all.

mod module;

use std::sync::Arc;

use burn::backend::Dispatch;
use burn::config::Config;
use burn::module::{Flag, Param, RunningState};
use burn::nn as burns;
use burn::prelude::*;
use burn::tensor::{DType, assert_shape};

use crate::checked_all_reduce::{LayerCall, LayerPlace};
use crate::device_statistics::DeviceStatistics;
use crate::group::{DeviceAllReduce, StatisticsGroup};
use crate::layers::{batch_norm, batch_norm_train};
use crate::normalize::{Elements, GlobalBatch};
use crate::precision::{in_f32, is_half};
use crate::rank_ops::RankOps;
use crate::recompute::recomputing;
use crate::statistics::Statistics;

/// Configuration of [`BatchNorm`]: the same as [`burn::nn::BatchNormConfig`].
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::BatchNormConfig;
///
/// let device = Device::flex();
/// let norm = BatchNormConfig::new(3).with_momentum(0.01).init(&device);
/// assert_eq!(norm.running_mean.value().dims(), [3]);
/// ```
#[derive(Config, Debug)]
pub struct BatchNormConfig {
    /// How many channels the input has. Must be greater than zero.
    pub num_features: usize,
    /// What is added to the variance so that nothing is divided by zero. Finite and positive.
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// The share of each batch's statistics that goes into the running ones, in `[0, 1]`.
    #[config(default = 0.1)]
    pub momentum: f64,
}

impl BatchNormConfig {
    /// Initialises the module on `device`, alone: [`crate::synchronize_batch_norms`] attaches a
    /// group.
    ///
    /// # Panics
    /// Panics if a value is outside its range, as [`burn::nn::BatchNormConfig::init`] does.
    pub fn init(&self, device: &Device) -> BatchNorm {
        burns::BatchNormConfig::new(self.num_features)
            .with_epsilon(self.epsilon)
            .with_momentum(self.momentum)
            .init(device)
            .into()
    }
}

/// Burn's [`burn::nn::BatchNorm`], whose training statistics span all ranks of a group once there is one.
///
/// It has the fields of Burn's module. Parameters, their paths, records and the settings
/// that `freeze` and its like change are Burn's, so a checkpoint loads either way. Without a group,
/// with a group of one it computes what Burn's module does, on flex by the kernels of
/// `everburn-kernels` and so but for rounding; frozen it *is* Burn's module.
///
/// With a group, each forward pass in training is a collective operation, and so is its backward
/// pass: all ranks run the same layers in the same order. Mean and variance are those of all ranks'
/// elements, however many each has, and they enter the running statistics of all ranks with the
/// same bits. A rank without samples takes part through [`crate::without_samples`], or with an input
/// of zero rows where the rest of the model can bear it.
///
/// If a collective fails, this step's statistics are those of this rank alone. The group reports it to the
/// step ([`StatisticsGroup`]), for a forward pass cannot return an error.
///
/// Clones, copies by `valid`, `fork` and `to_device`, and what an optimizer returns keep the group.
/// As with Burn's module, clones share the running statistics.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::{BatchNorm, BatchNormConfig};
///
/// let device = Device::flex().autodiff();
/// let norm = BatchNormConfig::new(3).with_momentum(0.01).init(&device);
/// let output = norm.forward(Tensor::<2>::ones([8, 3], &device));
/// assert_eq!(output.dims(), [8, 3]);
/// assert_eq!(norm.gamma.val().dims(), [3]);
///
/// // A field is changed as in Burn's module.
/// let mut norm = norm;
/// norm.gamma = norm.gamma.set_require_grad(false);
///
/// let burns_own: burn::nn::BatchNorm = norm.into();
/// let _ours = BatchNorm::from(burns_own);
/// ```
#[derive(Debug, Clone)]
pub struct BatchNorm {
    /// What each normalised channel is multiplied by.
    pub gamma: Param<Tensor<1>>,
    /// What is added to each channel then.
    pub beta: Param<Tensor<1>>,
    /// Whether the layer trains where gradients are recorded.
    pub training: Param<Flag>,
    /// The running mean of each channel.
    pub running_mean: RunningState<Tensor<1>>,
    /// The running variance of each channel.
    pub running_var: RunningState<Tensor<1>>,
    /// The share of each batch's statistics that goes into the running ones.
    pub momentum: f64,
    /// What is added to the variance so that nothing is divided by zero.
    pub epsilon: f64,
    membership: Option<Membership>,
}

/// A layer's place among the ranks.
#[derive(Debug, Clone)]
pub(crate) struct Membership {
    pub(crate) group: Arc<dyn StatisticsGroup>,
    place: LayerPlace,
    /// Whether this rank's input counts.
    pub(crate) has_samples: bool,
}

impl Membership {
    pub(crate) fn new(group: Arc<dyn StatisticsGroup>, layer: u32) -> Self {
        Self {
            group,
            place: LayerPlace::new(layer),
            has_samples: true,
        }
    }

    pub(crate) fn without_samples(self) -> Self {
        Self {
            has_samples: false,
            ..self
        }
    }
}

impl BatchNorm {
    /// Normalises each channel of `input`.
    ///
    /// # Shapes
    /// - input: `[B, C, ...]`
    /// - output: `[B, C, ...]`
    ///
    /// # Panics
    /// Panics if the input has another number of channels than the configuration.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        if is_half(input.dtype()) && !is_half(self.gamma.dtype()) {
            return in_f32(input, |input| self.forward_in_own_type(input));
        }
        self.forward_in_own_type(input)
    }

    fn forward_in_own_type<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        match &self.membership {
            // The group makes no difference otherwise.
            Some(membership) if self.trains(&input) && membership.group.world_size() > 1 => {
                self.forward_over_ranks(input, membership)
            }
            _ => self.forward_alone(input),
        }
    }

    /// How many ranks the training statistics span.
    pub fn world_size(&self) -> usize {
        let group = self.membership.as_ref();
        group.map_or(1, |membership| membership.group.world_size())
    }

    /// As Burn's module.
    fn forward_alone<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let device = input.device();
        let trains = self.trains(&input);
        let [num_features] = self.gamma.shape().dims();
        assert_shape!(input, [_, num_features, ..]);
        if !trains && device.is_autodiff() {
            return self.forward_by_running_statistics(input);
        }
        if !trains {
            let affine = [self.gamma.val(), self.beta.val()];
            let running = [&self.running_mean, &self.running_var]
                .map(|running| running.value().to_device(&device));
            return batch_norm(input, affine, running, self.epsilon);
        }
        let (gamma, beta) = (self.gamma.val(), self.beta.val());
        let (output, [mean, variance]) = batch_norm_train(input, gamma, beta, self.epsilon);
        // When a checkpointed segment runs again, its samples have been counted.
        if !recomputing() {
            self.update_running_statistics(&mean, &variance, &device);
        }
        output
    }

    /// When Burn trains.
    fn trains<const D: usize>(&self, input: &Tensor<D>) -> bool {
        input.device().is_autodiff() && self.training.is_enabled()
    }

    fn forward_over_ranks<const D: usize>(
        &self,
        input: Tensor<D>,
        membership: &Membership,
    ) -> Tensor<D> {
        let [num_features] = self.gamma.shape().dims();
        assert_shape!(input, [_, num_features, ..]);
        let layer_call = membership.place.next_call();
        let samples = match membership.has_samples {
            true => input.dims()[0],
            false => 0,
        };
        let device = input.device().without_autodiff();
        if let Some(ranks) = membership.group.on_device()
            && device.supports_dtype(DType::F64)
        {
            return self.forward_on_device(input, membership, ranks, layer_call, samples);
        }
        let statistics = match Statistics::over_ranks(&input, membership, layer_call) {
            Ok(Some(statistics)) => statistics,
            // Failed, which the group makes known, or nobody has samples.
            _ if samples > 0 => return self.forward_alone(input),
            _ => return self.forward_by_running_statistics(input),
        };
        let [mean, variance] = statistics.tensors(&input);
        if !recomputing() {
            self.update_running_statistics(&mean, &variance, &input.device());
        }
        let batch = GlobalBatch {
            epsilon: self.epsilon,
            elements: Elements::Known(statistics.elements),
            weight: GlobalBatch::weight(&membership.group, samples),
            layer_call,
            group: Arc::clone(&membership.group),
        };
        self.normalize(input, mean, variance, batch)
    }

    /// The same where sums stay on their device, and this thread waits for none.
    fn forward_on_device<const D: usize>(
        &self,
        input: Tensor<D>,
        membership: &Membership,
        ranks: &dyn DeviceAllReduce,
        layer_call: LayerCall,
        samples: usize,
    ) -> Tensor<D> {
        let statistics = match DeviceStatistics::over_ranks(&input, membership, ranks, layer_call) {
            Ok(statistics) => statistics,
            // Failed, which the group makes known.
            Err(_) if samples > 0 => return self.forward_alone(input),
            Err(_) => return self.forward_by_running_statistics(input),
        };
        let DeviceStatistics {
            elements,
            counts,
            mean,
            variance,
        } = statistics;
        let dtype = input.dtype();
        let (mean, variance) = (mean.cast(dtype), variance.cast(dtype));
        if !recomputing() {
            self.update_on_device(&mean, &variance, &counts, &input.device());
        }
        let batch = GlobalBatch {
            epsilon: self.epsilon,
            elements: Elements::OnDevice(Box::new(elements)),
            weight: GlobalBatch::weight(&membership.group, samples),
            layer_call,
            group: Arc::clone(&membership.group),
        };
        self.normalize(input, mean, variance, batch)
    }

    /// Normalises with the statistics of all ranks.
    fn normalize<const D: usize>(
        &self,
        input: Tensor<D>,
        mean: Tensor<1>,
        variance: Tensor<1>,
        batch: GlobalBatch,
    ) -> Tensor<D> {
        Tensor::from_dispatch(<Dispatch as RankOps>::batch_norm_over_ranks(
            input.into_dispatch(),
            self.gamma.val().into_dispatch(),
            self.beta.val().into_dispatch(),
            mean.into_dispatch(),
            variance.into_dispatch(),
            batch,
        ))
    }

    /// What enters a running statistic is what enters Burn's: the biased variance, with the share
    /// `momentum`.
    fn update_running_statistics(&self, mean: &Tensor<1>, variance: &Tensor<1>, device: &Device) {
        let momentum = self.momentum;
        let new = [(&self.running_mean, mean), (&self.running_var, variance)];
        for (running, of_batch) in new {
            let of_batch = of_batch.clone().mul_scalar(momentum);
            let old = running.value_sync().to_device(device);
            let value = old.mul_scalar(1.0 - momentum).add(of_batch);
            running.update(value.detach());
        }
    }

    /// The same where the host has not seen whether any rank has an element: `counts` is 1 then, and else 0.
    fn update_on_device(
        &self,
        mean: &Tensor<1>,
        variance: &Tensor<1>,
        counts: &Tensor<1>,
        device: &Device,
    ) {
        let share = counts.clone().mul_scalar(self.momentum);
        let rest = share.clone().neg().add_scalar(1.0);
        let new = [(&self.running_mean, mean), (&self.running_var, variance)];
        for (running, of_batch) in new {
            let old = running.value_sync().to_device(device);
            let of_batch = of_batch.clone() * share.clone().cast(of_batch.dtype());
            let rest = rest.clone().cast(old.dtype());
            running.update((old * rest + of_batch).detach());
        }
    }

    fn forward_by_running_statistics<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let device = input.device();
        burn::tensor::module::batch_norm(
            input,
            self.gamma.val(),
            self.beta.val(),
            self.running_mean.value().to_device(&device),
            self.running_var.value().to_device(&device),
            self.epsilon,
        )
    }
}
