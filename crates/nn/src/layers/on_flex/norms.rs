//! Batch norm and layer norm.

use burn::backend::TensorMetadata;
use burn::tensor::Shape;
use everburn_kernels::{self as kernels, BatchNormShape, BatchNormStatistics, LayerNormShape};

use super::tensors::{Tensor, attempt, contiguous, float, values};
use crate::layers::buffers::take;

fn normalization(input: &Shape) -> BatchNormShape {
    BatchNormShape {
        batch: input[0],
        channels: input[1],
        pixels: input.iter().skip(2).product(),
    }
}

pub(super) fn batch_norm_train(
    input: &Tensor,
    gamma: &Tensor,
    beta: &Tensor,
    epsilon: f64,
) -> Option<(Tensor, Tensor, Tensor)> {
    let [input, gamma, beta] = contiguous([input, gamma, beta])?;
    let shape = normalization(&input.shape());
    attempt(|| {
        let mut output = take(input.shape().num_elements());
        let (mut mean, mut variance) = (vec![0.0; shape.channels], vec![0.0; shape.channels]);
        let affine = [values(&gamma), values(&beta)];
        let statistics = [&mut mean[..], &mut variance[..]];
        let input_values = values(&input);
        kernels::batch_norm_train(
            &shape,
            input_values,
            affine,
            epsilon,
            &mut output,
            statistics,
        )?;
        let [mean, variance] =
            [mean, variance].map(|values| float(values, [shape.channels], &input));
        Ok((float(output, input.shape(), &input), mean, variance))
    })
}

pub(super) fn batch_norm_gradients(
    all: [&Tensor; 5],
    epsilon: f64,
) -> Option<(Tensor, Tensor, Tensor)> {
    let [input, gamma, mean, variance, gradient] = contiguous(all)?;
    let shape = normalization(&input.shape());
    attempt(|| {
        let mut input_grad = take(input.shape().num_elements());
        let (mut gamma_grad, mut beta_grad) =
            (vec![0.0; shape.channels], vec![0.0; shape.channels]);
        let statistics = BatchNormStatistics {
            mean: values(&mean),
            variance: values(&variance),
        };
        kernels::batch_norm_train_backward(
            &shape,
            [values(&input), values(&gradient)],
            values(&gamma),
            statistics,
            epsilon,
            &mut input_grad,
            [&mut gamma_grad, &mut beta_grad],
        )?;
        let [gamma_grad, beta_grad] =
            [gamma_grad, beta_grad].map(|values| float(values, [shape.channels], &input));
        Ok((
            float(input_grad, input.shape(), &input),
            gamma_grad,
            beta_grad,
        ))
    })
}

pub(super) fn batch_norm(
    [input, gamma, beta]: [&Tensor; 3],
    [mean, variance]: [&Tensor; 2],
    epsilon: f64,
) -> Option<Tensor> {
    let [input, gamma, beta] = contiguous([input, gamma, beta])?;
    let [mean, variance] = contiguous([mean, variance])?;
    let shape = normalization(&input.shape());
    attempt(|| {
        let mut output = take(values(&input).len());
        let affine = [values(&gamma), values(&beta)];
        let statistics = BatchNormStatistics {
            mean: values(&mean),
            variance: values(&variance),
        };
        let input_values = values(&input);
        kernels::batch_norm(
            &shape,
            input_values,
            affine,
            statistics,
            epsilon,
            &mut output,
        )?;
        Ok(float(output, input.shape(), &input))
    })
}

fn rows_of(input: &Tensor) -> LayerNormShape {
    let [rows, columns] = input.shape().dims();
    LayerNormShape { rows, columns }
}

pub(super) fn layer_norm(
    input: &Tensor,
    gamma: &Tensor,
    beta: &Tensor,
    epsilon: f64,
) -> Option<(Tensor, Tensor, Tensor)> {
    let [input, gamma, beta] = contiguous([input, gamma, beta])?;
    let shape = rows_of(&input);
    attempt(|| {
        let mut output = take(values(&input).len());
        let (mut mean, mut inverse) = (take(shape.rows), take(shape.rows));
        let (affine, statistics) = (
            [values(&gamma), values(&beta)],
            [&mut mean[..], &mut inverse[..]],
        );
        let given = values(&input);
        kernels::layer_norm(&shape, given, affine, epsilon, &mut output, statistics)?;
        let [mean, inverse] = [mean, inverse].map(|values| float(values, [shape.rows, 1], &input));
        Ok((float(output, input.shape(), &input), mean, inverse))
    })
}

/// Of input, gamma, mean, inverse deviation and gradient.
pub(super) fn layer_norm_gradients(all: [&Tensor; 5]) -> Option<(Tensor, Tensor, Tensor)> {
    let [input, gamma, mean, inverse, gradient] = contiguous(all)?;
    let shape = rows_of(&input);
    attempt(|| {
        let mut input_grad = take(values(&input).len());
        let mut sums = [vec![0.0; shape.columns], vec![0.0; shape.columns]];
        let [gamma_grad, beta_grad] = &mut sums;
        kernels::layer_norm_backward(
            &shape,
            [values(&input), values(&gradient)],
            values(&gamma),
            [values(&mean), values(&inverse)],
            &mut input_grad,
            [gamma_grad, beta_grad],
        )?;
        let [of_gamma, of_beta] = sums.map(|values| float(values, [shape.columns], &input));
        Ok((float(input_grad, input.shape(), &input), of_gamma, of_beta))
    })
}
