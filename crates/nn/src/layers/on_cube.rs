//! The layers' operations by kernels of this project, which CubeCL makes for any GPU.
//!
//! They are those that Burn's own operations need several passes over memory for, or that its fuser gives one thread a
//! row: softmax, losses of classes, layer norm, sums of columns. Here the threads of a cube share a row.

mod classes;
mod columns;
mod layer_norm;
mod rows;
mod softmax;

use burn::backend::TensorMetadata;
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::ops::{FloatTensorOps, IntTensorOps};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::{DType, IntDType, Shape};
use burn_cubecl::CubeBackend;

use super::formulas::{class_loss, class_loss_gradient, masked_softmax, masked_softmax_gradient};
use super::half::in_f32;
use super::operations::LayerOps;

/// Whether the kernels take numbers of this type. They compute in `f32`.
fn takes(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// What [`LayerOps::cross_entropy`] returns: the loss, and what its backward pass needs.
pub(super) fn cross_entropy_specs(logits: &TensorSpec) -> (TensorSpec, TensorSpec) {
    let saved = match takes(logits.dtype) {
        true => TensorSpec::new(Shape::new([logits.shape[0]]), DType::F32),
        false => logits.clone(),
    };
    let loss = TensorSpec::new(Shape::new([1]), saved.dtype);
    (loss, saved)
}

/// What [`LayerOps::argmax`] returns.
pub(super) fn argmax_spec(logits: &TensorSpec, dtype: IntDType) -> TensorSpec {
    TensorSpec::new(Shape::new([logits.shape[0]]), dtype.into())
}

/// What [`LayerOps::layer_norm`] returns: the output, means and inverse deviations.
pub(super) fn layer_norm_specs(input: &TensorSpec) -> (TensorSpec, TensorSpec, TensorSpec) {
    let of_rows = TensorSpec::new(Shape::new([input.shape[0], 1]), input.dtype);
    (input.clone(), of_rows.clone(), of_rows)
}

impl LayerOps for CubeBackend {
    fn column_sums(input: FloatTensor<Self>) -> FloatTensor<Self> {
        if takes(input.dtype()) {
            return columns::sums(input);
        }
        let columns = Shape::new([input.shape()[1]]);
        Self::float_reshape(Self::float_sum_dim(input, 0), columns)
    }

    fn causal_softmax(scores: FloatTensor<Self>, scale: f64) -> FloatTensor<Self> {
        match takes(scores.dtype()) {
            true => softmax::causal(scores, scale as f32),
            false => masked_softmax::<Self>(scores, scale),
        }
    }

    fn causal_softmax_gradient(
        shares: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        scale: f64,
    ) -> FloatTensor<Self> {
        match takes(shares.dtype()) && shares.dtype() == gradient.dtype() {
            true => softmax::causal_gradient(shares, gradient, scale as f32),
            false => in_f32::<Self, 2>([shares, gradient], |[shares, gradient]| {
                masked_softmax_gradient::<Self>(shares, gradient, scale)
            }),
        }
    }

    fn cross_entropy(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        if !takes(logits.dtype()) {
            return class_loss::<Self>(logits, targets);
        }
        let (losses, logarithms) = classes::losses(logits, targets);
        let loss = Self::float_reshape(Self::float_mean(losses), Shape::new([1]));
        (loss, logarithms)
    }

    fn cross_entropy_gradient(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
        saved: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        match takes(logits.dtype()) {
            true => classes::gradient(logits, targets, saved, gradient),
            false => class_loss_gradient::<Self>(saved, targets, gradient),
        }
    }

    fn argmax(logits: FloatTensor<Self>, dtype: IntDType) -> IntTensor<Self> {
        if takes(logits.dtype()) {
            return classes::argmax(logits, dtype);
        }
        let rows = Shape::new([logits.shape()[0]]);
        Self::int_reshape(Self::float_argmax(logits, 1, dtype), rows)
    }

    fn layer_norm(
        input: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        match input.dtype() {
            DType::F32 => layer_norm::normalized(input, gamma, beta, epsilon as f32),
            _ => super::rows::normalized::<Self>(input, gamma, beta, epsilon),
        }
    }

    fn layer_norm_gradients(
        input: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        inverse: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        match input.dtype() {
            DType::F32 => layer_norm::gradients([input, gamma, mean, inverse, gradient]),
            _ => super::rows::gradients::<Self>(input, &gamma, mean, inverse, gradient),
        }
    }
}
