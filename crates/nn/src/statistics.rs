//! Mean and variance of each channel over the elements of all ranks.
//!
//! Each rank takes its own in two passes, the second of which also corrects the mean that it
//! subtracts (Chan, Golub and LeVeque 1983, the corrected two-pass algorithm): so the digits that a
//! large mean costs in `f32` come back. Then counts, sums and sums of squares are added up over the
//! ranks in `f64`, in one message. Where the mean is so large that the difference of the two sums
//! would lose too many digits even so, all ranks see it in the same bits, and exchange the squares
//! around the common mean in a second message.

use burn::prelude::*;
use burn::tensor::{DType, TensorData};

use crate::all_reduce::unread;
use crate::batch_norm::Membership;
use crate::checked_all_reduce::{LayerCall, Pass, checked_all_reduce};
use crate::group::SyncError;

/// The largest square of the mean, in variances, for which the difference of sums is taken: it
/// costs about this factor of the 2^-53 of `f64`, which leaves more digits than `f32` has.
const LARGEST_SQUARE_OF_MEAN: f64 = 1e6;

/// Statistics of some elements of each channel.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Statistics {
    /// How many elements each channel has.
    pub(crate) elements: f64,
    pub(crate) mean: Vec<f64>,
    /// The biased variance.
    pub(crate) variance: Vec<f64>,
}

impl Statistics {
    /// Those of `input`, `[B, C, ..]`, on this rank.
    fn local<const D: usize>(
        input: &Tensor<D>,
        membership: &Membership,
    ) -> Result<Self, SyncError> {
        let channels = input.dims()[1];
        let elements = input.shape().num_elements() / channels;
        if elements == 0 || !membership.has_samples {
            // The mean of nothing is not a number, but it counts nothing either.
            return Ok(Self {
                elements: 0.0,
                mean: vec![0.0; channels],
                variance: vec![0.0; channels],
            });
        }
        let data = Tensor::cat(Vec::from(two_passes(input)), 0).try_into_data();
        let data = data.map_err(|error| unread(&*membership.group, &error))?;
        let values = data.iter::<f64>().collect::<Vec<_>>();
        let (mean, rest) = values.split_at(channels);
        let (correction, square) = rest.split_at(channels);
        let variance =
            |(square, correction): (&f64, &f64)| (square - correction * correction).max(0.0);
        Ok(Self {
            elements: elements as f64,
            mean: mean.iter().zip(correction).map(|(a, b)| a + b).collect(),
            variance: square.iter().zip(correction).map(variance).collect(),
        })
    }

    /// Those of the inputs of all ranks; `None` if no rank has an element.
    pub(crate) fn over_ranks<const D: usize>(
        input: &Tensor<D>,
        membership: &Membership,
        layer_call: LayerCall,
    ) -> Result<Option<Self>, SyncError> {
        let local = Self::local(input, membership)?;
        let sum =
            |pass, values: &[f64]| checked_all_reduce(&membership.group, layer_call, pass, values);

        let mut message = vec![local.elements];
        message.extend(local.mean.iter().map(|mean| local.elements * mean));
        message.extend(local.squares_around(&vec![0.0; local.mean.len()]));
        let sums = sum(Pass::Forward, &message)?;
        let (elements, sums) = (sums[0], &sums[1..]);
        if elements == 0.0 {
            return Ok(None);
        }
        let (sums, squares) = sums.split_at(local.mean.len());
        let mean = sums.iter().map(|sum| sum / elements).collect::<Vec<_>>();
        let variance = squares.iter().zip(&mean);
        let mut variance = variance
            .map(|(square, mean)| (square / elements - mean * mean).max(0.0))
            .collect::<Vec<_>>();
        let inexact =
            |(mean, variance): (&f64, &f64)| mean * mean > LARGEST_SQUARE_OF_MEAN * variance;
        if mean.iter().zip(&variance).any(inexact) {
            variance = sum(Pass::Refine, &local.squares_around(&mean))?;
            variance.iter_mut().for_each(|square| *square /= elements);
        }
        Ok(Some(Self {
            elements,
            mean,
            variance,
        }))
    }

    /// The sum of the squares of the distances from `center`, of each channel.
    fn squares_around(&self, center: &[f64]) -> Vec<f64> {
        let own = self.mean.iter().zip(&self.variance);
        own.zip(center)
            .map(|((mean, variance), center)| {
                self.elements * (variance + (mean - center) * (mean - center))
            })
            .collect()
    }

    /// Mean and variance as tensors beside `input`, without a gradient.
    pub(crate) fn tensors<const D: usize>(&self, input: &Tensor<D>) -> [Tensor<1>; 2] {
        let (device, dtype) = (input.device().without_autodiff(), input.dtype());
        [&self.mean, &self.variance].map(|values| {
            let data = TensorData::new(values.clone(), [values.len()]).convert_dtype(dtype);
            Tensor::from_data(data, (&device, dtype))
        })
    }
}

/// The mean of each channel of `input`, `[B, C, ..]` with elements, what rounding has left of the mean, and the mean square
/// around it: `[C, 1]` each.
pub(crate) fn two_passes<const D: usize>(input: &Tensor<D>) -> [Tensor<2>; 3] {
    let channels = input.dims()[1];
    let elements = input.shape().num_elements() / channels;
    let input = input.clone().without_autodiff();
    let input = match input.dtype() {
        DType::F16 | DType::BF16 => input.cast(DType::F32),
        _ => input,
    };
    let rows: Tensor<2> = input.swap_dims(0, 1).reshape([channels, elements]);
    let mean = rows.clone().mean_dim(1);
    let centered = rows - mean.clone();
    let correction = centered.clone().mean_dim(1);
    let square = (centered.clone() * centered).mean_dim(1);
    [mean, correction, square]
}
