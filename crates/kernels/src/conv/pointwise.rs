//! Convolutions whose kernels are single pixels: products of matrices as they are, one an image.
//!
//! An image is `[C_in, pixels]`, the weights are `[C_out, C_in]`. Nothing is gathered or packed by
//! us; the `gemm` crate's kernels pack what they need.

use super::shape::Conv2dShape;
use crate::matmul::{Matrix, Sum, multiply};
use crate::parallel::{each_piece, each_task, multiply_adds};

/// With fewer, packing costs as much as the product.
const CHANNELS: usize = 16;

/// In how many tasks a convolution is cut at least, where it has as many rows.
const TASKS: usize = 16;

/// Whether the products here are those of a convolution of this `shape`, and worth it.
pub(super) fn fits(shape: &Conv2dShape) -> bool {
    shape.kernel == [1, 1]
        && shape.stride == [1, 1]
        && shape.padding == [(0, 0); 2]
        && shape.groups == 1
        && shape.channels.iter().all(|channels| *channels >= CHANNELS)
        && shape.input.iter().product::<usize>() >= CHANNELS
}

/// The weights as a matrix of `[C_out, C_in]`.
pub(super) fn weights<'a>(shape: &Conv2dShape, weight: &'a [f32]) -> Matrix<'a> {
    Matrix::new(weight, [shape.channels[1], shape.channels[0]])
}

/// Writes the product of `weight` and each image of `input` to `output`, and adds `bias` to each
/// channel.
pub(super) fn apply(
    shape: &Conv2dShape,
    weight: Matrix<'_>,
    input: &[f32],
    bias: Option<&[f32]>,
    output: &mut [f32],
) {
    let pixels = shape.input[0] * shape.input[1];
    let [features, channels] = weight.extent();
    let work = multiply_adds(output.len() * channels);
    // Parts of an image's channels where there are few images; no part of two images.
    let parts = TASKS
        .div_ceil(shape.batch.max(1))
        .min(features / CHANNELS)
        .max(1);
    let part = features
        .div_ceil(parts)
        .next_multiple_of(CHANNELS)
        .min(features);
    let parts = features.div_ceil(part);
    let mut tasks = Vec::with_capacity(shape.batch * parts);
    for (image, output) in output.chunks_mut(features * pixels).enumerate() {
        for (index, output) in output.chunks_mut(part * pixels).enumerate() {
            tasks.push((image, index * part, output));
        }
    }
    each_task(tasks, work, |(image, first, output)| {
        let image = &input[image * channels * pixels..][..channels * pixels];
        let count = output.len() / pixels;
        let image = Matrix::new(image, [channels, pixels]);
        multiply(weight.rows(first, count), image, Sum::New, output);
        if let Some(bias) = bias {
            for (row, bias) in output.chunks_mut(pixels).zip(&bias[first..]) {
                row.iter_mut().for_each(|value| *value += bias);
            }
        }
    });
}

/// Writes the sum over the images of the products of `gradient` and `input`, over the pixels.
pub(super) fn weight_grad(
    shape: &Conv2dShape,
    input: &[f32],
    gradient: &[f32],
    weight_grad: &mut [f32],
) {
    let pixels = shape.input[0] * shape.input[1];
    let [channels, features] = shape.channels;
    if shape.batch == 0 {
        weight_grad.fill(0.0);
        return;
    }
    let work = multiply_adds(gradient.len() * channels);
    let part = features.div_ceil(TASKS).next_multiple_of(2 * CHANNELS);
    each_piece(weight_grad, part * channels, work, |index, weight_grad| {
        let count = weight_grad.len() / channels;
        let images = input
            .chunks(channels * pixels)
            .zip(gradient.chunks(features * pixels));
        for (number, (image, gradient)) in images.enumerate() {
            let gradient = Matrix::new(gradient, [features, pixels]).rows(index * part, count);
            let image = Matrix::new(image, [channels, pixels]).transposed();
            let sum = if number == 0 { Sum::New } else { Sum::Added };
            multiply(gradient, image, sum, weight_grad);
        }
    });
}
