//! The softmax of causal attention, and its gradient.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::rows::{LOWEST, Rows, address, largest_of_cube, sum_of_cube};

/// `[rows, columns]` of square matrices. Row `r` of each has the columns `0..=r`; zeros stand in the others.
#[cube(launch, address_type = "dynamic")]
fn softmax<F: Float>(
    scores: &Tensor<F>,
    shares: &mut Tensor<F>,
    scale: f32,
    #[comptime] threads: usize,
    #[define(F)] _dtype: ElemType,
) {
    let row = CUBE_POS;
    if row >= scores.shape(0) {
        terminate!();
    }
    let columns = scores.shape(1);
    let present = row % columns + 1;
    let (start, out) = (row * scores.stride(0), row * shares.stride(0));
    let first = UNIT_POS as usize;

    let mut highest = f32::new(LOWEST);
    let mut column = first;
    while column < present {
        highest = max(highest, f32::cast_from(scores[start + column]) * scale);
        column += threads;
    }
    let highest = largest_of_cube(highest, threads);

    let mut sum = f32::new(0.0);
    let mut column = first;
    while column < present {
        sum += (f32::cast_from(scores[start + column]) * scale - highest).exp();
        column += threads;
    }
    let sum = sum_of_cube(sum, threads);

    let mut column = first;
    while column < columns {
        let mut share = f32::new(0.0);
        if column < present {
            share = (f32::cast_from(scores[start + column]) * scale - highest).exp() / sum;
        }
        shares[out + column] = F::cast_from(share);
        column += threads;
    }
}

/// With the shares `p` of a row and their gradients `g`, the gradients of its scores: `scale * p * (g - sum(p * g))`.
#[cube(launch, address_type = "dynamic")]
fn softmax_gradient<F: Float>(
    shares: &Tensor<F>,
    gradient: &Tensor<F>,
    scores_grad: &mut Tensor<F>,
    scale: f32,
    #[comptime] threads: usize,
    #[define(F)] _dtype: ElemType,
) {
    let row = CUBE_POS;
    if row >= shares.shape(0) {
        terminate!();
    }
    let columns = shares.shape(1);
    let (start, of_gradient) = (row * shares.stride(0), row * gradient.stride(0));
    let out = row * scores_grad.stride(0);
    let first = UNIT_POS as usize;

    let mut sum = f32::new(0.0);
    let mut column = first;
    while column < columns {
        let share = f32::cast_from(shares[start + column]);
        sum += share * f32::cast_from(gradient[of_gradient + column]);
        column += threads;
    }
    let sum = sum_of_cube(sum, threads);

    let mut column = first;
    while column < columns {
        let share = f32::cast_from(shares[start + column]);
        let distance = f32::cast_from(gradient[of_gradient + column]) - sum;
        scores_grad[out + column] = F::cast_from(scale * share * distance);
        column += threads;
    }
}

/// The softmax of `scale * scores`, `[B, heads, T, T]`.
pub(super) fn causal(scores: CubeTensor, scale: f32) -> CubeTensor {
    let scores = Rows::of(scores);
    let shares = scores.like();
    if scores.is_empty() {
        return shares.tensor;
    }
    let (cubes, threads) = scores.cubes();
    softmax::launch(
        &scores.tensor.client,
        cubes,
        threads,
        address([&scores.tensor, &shares.tensor]),
        scores.matrix(),
        shares.matrix(),
        scale,
        scores.threads(),
        dtype_to_storage_type(scores.tensor.dtype),
    );
    shares.tensor
}

/// Its gradient, from its output.
pub(super) fn causal_gradient(shares: CubeTensor, gradient: CubeTensor, scale: f32) -> CubeTensor {
    let [shares, gradient] = [shares, gradient].map(Rows::of);
    let scores_grad = shares.like();
    if shares.is_empty() {
        return scores_grad.tensor;
    }
    let (cubes, threads) = shares.cubes();
    softmax_gradient::launch(
        &shares.tensor.client,
        cubes,
        threads,
        address([&shares.tensor, &gradient.tensor, &scores_grad.tensor]),
        shares.matrix(),
        gradient.matrix(),
        scores_grad.matrix(),
        scale,
        shares.threads(),
        dtype_to_storage_type(shares.tensor.dtype),
    );
    scores_grad.tensor
}
