//! Mean and variance of each channel over the elements of all ranks, on the device of the input.
//!
//! As `statistics.rs`, in `f64` too, without the host: it waits for no sum and sees none. So it cannot choose by the numbers
//! what to exchange, and the squares are always added up around the common mean, in a second message.

use burn::prelude::*;
use burn::tensor::DType;

use crate::batch_norm::Membership;
use crate::checked_all_reduce::{LayerCall, Pass, checked_all_reduce_on_device};
use crate::group::{DeviceAllReduce, SyncError};
use crate::statistics::two_passes;

/// Statistics of the inputs of all ranks, in `f64`.
#[derive(Debug, Clone)]
pub(crate) struct DeviceStatistics {
    /// How many elements each channel has, `[1]`; 1 where it has none.
    pub(crate) elements: Tensor<1>,
    /// 1, or 0 where no rank has an element, `[1]`.
    pub(crate) counts: Tensor<1>,
    /// `[C]`.
    pub(crate) mean: Tensor<1>,
    /// The biased variance, `[C]`.
    pub(crate) variance: Tensor<1>,
}

impl DeviceStatistics {
    /// Those of `input`, `[B, C, ..]`, on all ranks.
    pub(crate) fn over_ranks<const D: usize>(
        input: &Tensor<D>,
        membership: &Membership,
        ranks: &dyn DeviceAllReduce,
        layer_call: LayerCall,
    ) -> Result<Self, SyncError> {
        let channels = input.dims()[1];
        let world_size = membership.group.world_size();
        let sum = |pass, numbers| {
            checked_all_reduce_on_device(ranks, world_size, &layer_call.values(pass), numbers)
        };

        let [own, own_mean, own_variance] = local(input, membership.has_samples);
        let message = vec![own.clone(), own_mean.clone() * own.clone()];
        let sums = sum(Pass::Forward, Tensor::cat(message, 0))?;
        let elements = sums.clone().slice(0..1);
        let counts = elements.clone().clamp_max(1.0);
        // Where there are none, nothing is divided by zero.
        let elements = elements.clamp_min(1.0);
        let mean = sums.slice(1..1 + channels) / elements.clone();
        let distance = own_mean - mean.clone();
        let squares = (own_variance + distance.clone() * distance) * own;
        let variance = sum(Pass::Refine, squares)? / elements.clone();
        Ok(Self {
            elements,
            counts,
            mean,
            variance,
        })
    }
}

/// This rank's number of elements in each channel, `[1]`, their mean and their variance, `[C]`.
fn local<const D: usize>(input: &Tensor<D>, has_samples: bool) -> [Tensor<1>; 3] {
    let channels = input.dims()[1];
    let elements = input.shape().num_elements() / channels;
    let device = input.device().without_autodiff();
    let of =
        |length: usize, number: f64| Tensor::<1>::full([length], number, (&device, DType::F64));
    if elements == 0 || !has_samples {
        // The mean of nothing is not a number, but it counts nothing either.
        return [of(1, 0.0), of(channels, 0.0), of(channels, 0.0)];
    }
    let wide = |numbers: Tensor<2>| {
        let row: Tensor<1> = numbers.reshape([channels]);
        row.cast(DType::F64)
    };
    let [mean, correction, square] = two_passes(input).map(wide);
    let variance = (square - correction.clone() * correction.clone()).clamp_min(0.0);
    [of(1, elements as f64), mean + correction, variance]
}
