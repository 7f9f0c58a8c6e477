//! Batch norm, forward and backward.
//!
//! One channel after another, all its planes two or three times: the later times they are still in
//! the cache, as often as not. Each plane is summed in `f32` lanes, planes in `f64`: so a sum of millions of
//! values is as good as one of hundreds.

mod planes;
#[cfg(test)]
mod tests;

use self::planes::{Moments, Normalise, Planes, Products, Slope, Spread};
use crate::error::{KernelError, check_length, product};
use crate::isa::InstructionSet;
use crate::parallel::{each_piece, each_task};

const BATCH_NORM: &str = "batch_norm";

/// About how many values one task reads and writes.
const PIECE: usize = 1 << 14;

/// Into how many tasks a call is cut, at least, as long as there are channels.
const TASKS: usize = 8;

/// The shape of a batch norm of `[B, C, ...]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchNormShape {
    /// Samples.
    pub batch: usize,
    /// Channels.
    pub channels: usize,
    /// Values of one sample in one channel: 1, or height times width.
    pub pixels: usize,
}

impl BatchNormShape {
    pub(crate) fn len(&self) -> Result<usize, KernelError> {
        product(BATCH_NORM, &[self.batch, self.channels, self.pixels])
    }

    fn check(
        &self,
        tensors: &[(&'static str, usize)],
        per_channel: &[(&'static str, usize)],
    ) -> Result<(), KernelError> {
        let length = self.len()?;
        for &(what, actual) in tensors {
            check_length(BATCH_NORM, what, length, actual)?;
        }
        for &(what, actual) in per_channel {
            check_length(BATCH_NORM, what, self.channels, actual)?;
        }
        Ok(())
    }
}

/// Mean and biased variance of each channel.
#[derive(Clone, Copy, Debug)]
pub struct BatchNormStatistics<'a> {
    /// Means.
    pub mean: &'a [f32],
    /// Mean squared distances from the mean.
    pub variance: &'a [f32],
}

/// Normalises `input` by the statistics of the batch itself, which it writes to `mean` and
/// `variance` (biased, what running statistics are fed with).
///
/// # Errors
/// Slices of other lengths than the shape says.
pub fn batch_norm_train(
    shape: &BatchNormShape,
    input: &[f32],
    [gamma, beta]: [&[f32]; 2],
    epsilon: f64,
    output: &mut [f32],
    [mean, variance]: [&mut [f32]; 2],
) -> Result<(), KernelError> {
    let set = InstructionSet::best();
    shape.check(
        &[("input", input.len()), ("output", output.len())],
        &[("mean", mean.len()), ("variance", variance.len())],
    )?;
    shape.check(&[], &[("gamma", gamma.len()), ("beta", beta.len())])?;
    let group = channels_per_task(shape);
    let targets = by_channels(shape, group, output);
    let statistics = mean.chunks_mut(group).zip(variance.chunks_mut(group));
    let tasks: Vec<_> = statistics.zip(targets).enumerate().collect();
    each_task(
        tasks,
        input.len(),
        |(index, ((mean, variance), mut target))| {
            for (at, (mean, variance)) in mean.iter_mut().zip(variance).enumerate() {
                let channel = index * group + at;
                let planes = Planes::of(shape, channel, input);
                [*mean, *variance] = set.run(Moments { planes });
                let scale = f64::from(gamma[channel]) * inverse_deviation(*variance, epsilon);
                let affine = [[*mean, scale as f32, beta[channel]]];
                for (input, target) in planes.each().zip(&mut target) {
                    set.run(Normalise {
                        pixels: shape.pixels.max(1),
                        first_plane: 0,
                        affine: &affine,
                        input,
                        output: &mut target[at * shape.pixels..][..shape.pixels],
                    });
                }
            }
        },
    );
    Ok(())
}

/// How many channels a task takes: few enough that there is work for some threads.
fn channels_per_task(shape: &BatchNormShape) -> usize {
    (shape.channels / TASKS).max(1)
}

/// For each `group` of channels its part of each sample.
fn by_channels<'a>(
    shape: &BatchNormShape,
    group: usize,
    values: &'a mut [f32],
) -> Vec<Vec<&'a mut [f32]>> {
    let groups = shape.channels.div_ceil(group);
    let mut parts: Vec<_> = (0..groups)
        .map(|_| Vec::with_capacity(shape.batch))
        .collect();
    for sample in values.chunks_mut((shape.channels * shape.pixels).max(1)) {
        let of_group = sample.chunks_mut((group * shape.pixels).max(1));
        for (part, values) in parts.iter_mut().zip(of_group) {
            part.push(values);
        }
    }
    parts
}

/// Normalises `input` by given statistics: `(input - mean) / sqrt(variance + epsilon) * gamma +
/// beta`.
///
/// # Errors
/// Slices of other lengths than the shape says.
pub fn batch_norm(
    shape: &BatchNormShape,
    input: &[f32],
    [gamma, beta]: [&[f32]; 2],
    statistics: BatchNormStatistics<'_>,
    epsilon: f64,
    output: &mut [f32],
) -> Result<(), KernelError> {
    let set = InstructionSet::best();
    let BatchNormStatistics { mean, variance } = statistics;
    shape.check(
        &[("input", input.len()), ("output", output.len())],
        &[
            ("gamma", gamma.len()),
            ("beta", beta.len()),
            ("mean", mean.len()),
            ("variance", variance.len()),
        ],
    )?;
    let affine: Vec<[f32; 3]> = (0..shape.channels)
        .map(|channel| {
            let scale = f64::from(gamma[channel]) * inverse_deviation(variance[channel], epsilon);
            [mean[channel], scale as f32, beta[channel]]
        })
        .collect();
    let planes_per_piece = (PIECE / shape.pixels.max(1)).max(1);
    let piece = planes_per_piece * shape.pixels;
    each_piece(output, piece, input.len(), |index, output| {
        let length = output.len();
        set.run(Normalise {
            pixels: shape.pixels,
            first_plane: index * planes_per_piece,
            affine: &affine,
            input: &input[index * piece..][..length],
            output,
        });
    });
    Ok(())
}

/// Computes the gradients of [`batch_norm_train`] with respect to its input, `gamma` and `beta`;
/// `statistics` are those that it wrote.
///
/// # Errors
/// Slices of other lengths than the shape says.
pub fn batch_norm_train_backward(
    shape: &BatchNormShape,
    [input, gradient]: [&[f32]; 2],
    gamma: &[f32],
    statistics: BatchNormStatistics<'_>,
    epsilon: f64,
    input_grad: &mut [f32],
    [gamma_grad, beta_grad]: [&mut [f32]; 2],
) -> Result<(), KernelError> {
    let set = InstructionSet::best();
    let BatchNormStatistics { mean, variance } = statistics;
    shape.check(
        &[
            ("input", input.len()),
            ("gradient", gradient.len()),
            ("input_grad", input_grad.len()),
        ],
        &[
            ("gamma", gamma.len()),
            ("mean", mean.len()),
            ("variance", variance.len()),
            ("gamma_grad", gamma_grad.len()),
            ("beta_grad", beta_grad.len()),
        ],
    )?;
    let count = (shape.batch * shape.pixels) as f64;
    let group = channels_per_task(shape);
    let targets = by_channels(shape, group, input_grad);
    let sums = gamma_grad
        .chunks_mut(group)
        .zip(beta_grad.chunks_mut(group));
    let tasks: Vec<_> = sums.zip(targets).enumerate().collect();
    each_task(
        tasks,
        input.len(),
        |(index, ((gamma_grad, beta_grad), mut target))| {
            for (at, (gamma_grad, beta_grad)) in gamma_grad.iter_mut().zip(beta_grad).enumerate() {
                let channel = index * group + at;
                let planes = [input, gradient].map(|values| Planes::of(shape, channel, values));
                let [sum, product] = set.run(Products {
                    input: planes[0],
                    gradient: planes[1],
                    mean: mean[channel],
                });
                let inverse = inverse_deviation(variance[channel], epsilon);
                *beta_grad = sum as f32;
                *gamma_grad = (product * inverse) as f32;
                let scale = f64::from(gamma[channel]) * inverse;
                let slope = Slope {
                    mean: mean[channel],
                    gradient: scale as f32,
                    input: (-scale * inverse * inverse * product / count) as f32,
                    constant: (-scale * sum / count) as f32,
                };
                let planes = planes[0].each().zip(planes[1].each());
                for ((input, gradient), target) in planes.zip(&mut target) {
                    set.run(Spread {
                        slope,
                        input,
                        gradient,
                        output: &mut target[at * shape.pixels..][..shape.pixels],
                    });
                }
            }
        },
    );
    Ok(())
}

fn inverse_deviation(variance: f32, epsilon: f64) -> f64 {
    1.0 / (f64::from(variance) + epsilon).sqrt()
}
