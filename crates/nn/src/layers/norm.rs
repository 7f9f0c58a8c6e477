//! Batch norm by the statistics of one batch.

use burn::backend::Dispatch;
use burn::prelude::*;

use super::operations::LayerOps;

/// Normalises each channel of `input`, `[B, C, ...]`, by given statistics, on a device without autodiff.
pub(crate) fn batch_norm<const D: usize>(
    input: Tensor<D>,
    [gamma, beta]: [Tensor<1>; 2],
    [mean, variance]: [Tensor<1>; 2],
    epsilon: f64,
) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as LayerOps>::batch_norm(
        input.into_dispatch(),
        gamma.into_dispatch(),
        beta.into_dispatch(),
        mean.into_dispatch(),
        variance.into_dispatch(),
        epsilon,
    ))
}

/// Normalises each channel of `input`, `[B, C, ...]`; then its mean and its biased variance.
pub(crate) fn batch_norm_train<const D: usize>(
    input: Tensor<D>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    epsilon: f64,
) -> (Tensor<D>, [Tensor<1>; 2]) {
    let (output, mean, variance) = <Dispatch as LayerOps>::batch_norm_train(
        input.into_dispatch(),
        gamma.into_dispatch(),
        beta.into_dispatch(),
        epsilon,
    );
    let statistics = [mean, variance].map(Tensor::from_dispatch);
    (Tensor::from_dispatch(output), statistics)
}
