//! Losses.

use burn::backend::Dispatch;
use burn::prelude::*;
use burn::tensor::{FloatDType, assert_shape};

use super::operations::LayerOps;
use crate::precision::is_half;

/// The mean over all rows of how unlikely the target is by the softmax of the logits:
/// [`burn::nn::loss::CrossEntropyLoss`] of its default configuration but for rounding, with the
/// kernels of `everburn-kernels` on CPUs.
///
/// # Shapes
/// - logits: `[rows, classes]`
/// - targets: `[rows]`, counted from 0
/// - output: `[1]`; not-a-number of no rows
///
/// # Panics
/// Panics if there are not as many targets as rows, and where Burn's own does.
///
/// ```
/// use burn::prelude::*;
///
/// let device = Device::flex();
/// let logits = Tensor::<2>::from_floats([[0.0, 0.0], [100.0, 0.0]], &device);
/// let targets = Tensor::<1, Int>::from_ints([1, 0], &device);
/// let loss = everburn_nn::cross_entropy(logits, targets).into_scalar::<f32>();
/// assert!((loss - 2.0_f32.ln() / 2.0).abs() < 1e-6);
/// ```
pub fn cross_entropy(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    let [rows] = targets.dims();
    assert_shape!(logits, [rows, _]);
    // A loss in half precision would be rounded to steps of a hundredth.
    let logits = match is_half(logits.dtype()) {
        true => logits.cast(FloatDType::F32),
        false => logits,
    };
    let (loss, _) =
        <Dispatch as LayerOps>::cross_entropy(logits.into_dispatch(), targets.into_dispatch());
    Tensor::from_dispatch(loss)
}
