//! Batch norm by its definition; sums in `f64`.

use super::Float;
use crate::error::{KernelError, check_length};
use crate::norm::BatchNormShape;

const BATCH_NORM: &str = "batch_norm";

/// Calls `body` with the index of each value and its channel.
fn each_value(shape: &BatchNormShape, mut body: impl FnMut(usize, usize)) {
    let planes = shape.batch * shape.channels;
    for plane in 0..planes {
        for pixel in 0..shape.pixels {
            body(plane * shape.pixels + pixel, plane % shape.channels);
        }
    }
}

fn check<T>(
    shape: &BatchNormShape,
    tensors: &[&[T]],
    per_channel: &[&[T]],
) -> Result<(), KernelError> {
    let length = shape.len()?;
    for tensor in tensors {
        check_length(BATCH_NORM, "a tensor", length, tensor.len())?;
    }
    for values in per_channel {
        check_length(
            BATCH_NORM,
            "a channel's slice",
            shape.channels,
            values.len(),
        )?;
    }
    Ok(())
}

/// [`crate::batch_norm_train`] by definition.
///
/// # Errors
/// As there.
pub fn batch_norm_train<T: Float>(
    shape: &BatchNormShape,
    input: &[T],
    [gamma, beta]: [&[T]; 2],
    epsilon: f64,
    output: &mut [T],
    [mean, variance]: [&mut [T]; 2],
) -> Result<(), KernelError> {
    check(shape, &[input], &[mean, variance])?;
    let count = (shape.batch * shape.pixels) as f64;
    let mut sums = vec![0.0; shape.channels];
    each_value(shape, |at, channel| sums[channel] += input[at].to_f64());
    let means: Vec<f64> = sums.iter().map(|sum| sum / count).collect();
    sums.fill(0.0);
    each_value(shape, |at, channel| {
        sums[channel] += (input[at].to_f64() - means[channel]).powi(2);
    });
    for channel in 0..shape.channels {
        mean[channel] = T::from_f64(means[channel]);
        variance[channel] = T::from_f64(sums[channel] / count);
    }
    batch_norm(
        shape,
        input,
        [gamma, beta],
        [mean, variance],
        epsilon,
        output,
    )
}

/// [`crate::batch_norm`] by definition, with mean and variance.
///
/// # Errors
/// As there.
pub fn batch_norm<T: Float>(
    shape: &BatchNormShape,
    input: &[T],
    [gamma, beta]: [&[T]; 2],
    [mean, variance]: [&[T]; 2],
    epsilon: f64,
    output: &mut [T],
) -> Result<(), KernelError> {
    check(shape, &[input, output], &[gamma, beta, mean, variance])?;
    each_value(shape, |at, channel| {
        let deviation = (variance[channel].to_f64() + epsilon).sqrt();
        let normalised = (input[at].to_f64() - mean[channel].to_f64()) / deviation;
        let value = normalised * gamma[channel].to_f64() + beta[channel].to_f64();
        output[at] = T::from_f64(value);
    });
    Ok(())
}

/// [`crate::batch_norm_train_backward`] by definition, with mean and variance.
///
/// # Errors
/// As there.
pub fn batch_norm_train_backward<T: Float>(
    shape: &BatchNormShape,
    [input, gradient]: [&[T]; 2],
    gamma: &[T],
    [mean, variance]: [&[T]; 2],
    epsilon: f64,
    input_grad: &mut [T],
    [gamma_grad, beta_grad]: [&mut [T]; 2],
) -> Result<(), KernelError> {
    check(
        shape,
        &[input, gradient, input_grad],
        &[gamma, mean, variance, gamma_grad, beta_grad],
    )?;
    let count = (shape.batch * shape.pixels) as f64;
    let inverse = |channel: usize| 1.0 / (variance[channel].to_f64() + epsilon).sqrt();
    let normalised = |at: usize, channel: usize| {
        (input[at].to_f64() - mean[channel].to_f64()) * inverse(channel)
    };
    let mut sums = vec![[0.0; 2]; shape.channels];
    each_value(shape, |at, channel| {
        let slope = gradient[at].to_f64();
        sums[channel][0] += slope;
        sums[channel][1] += slope * normalised(at, channel);
    });
    for (channel, [sum, product]) in sums.iter().enumerate() {
        beta_grad[channel] = T::from_f64(*sum);
        gamma_grad[channel] = T::from_f64(*product);
    }
    each_value(shape, |at, channel| {
        let [sum, product] = sums[channel].map(|sum| sum / count);
        let centered = gradient[at].to_f64() - sum - normalised(at, channel) * product;
        let scale = gamma[channel].to_f64() * inverse(channel);
        input_grad[at] = T::from_f64(scale * centered);
    });
    Ok(())
}
