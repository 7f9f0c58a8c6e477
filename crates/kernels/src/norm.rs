//! Batch norm, forward and backward.
//!
//! One channel after another, all its planes two or three times: the later times they are still in
//! the cache, as often as not. Each plane is summed in `f32` lanes, planes in `f64`: so a sum of millions of
//! values is as good as one of hundreds.

#[cfg(test)]
mod tests;

use pulp::{Simd, WithSimd};

use crate::error::{KernelError, check_length, product};
use crate::isa::InstructionSet;
use crate::lanes::{keep, load, store};
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
/// ```
/// use everburn_kernels::{BatchNormShape, batch_norm_train};
///
/// let shape = BatchNormShape { batch: 2, channels: 1, pixels: 1 };
/// let (mut output, mut mean, mut variance) = ([0.0; 2], [0.0], [0.0]);
/// let affine = [&[2.0][..], &[1.0]];
/// batch_norm_train(&shape, &[3.0, 5.0], affine, 0.0, &mut output, [&mut mean, &mut variance])?;
/// assert_eq!((output, mean, variance), ([-1.0, 3.0], [4.0], [1.0]));
/// # Ok::<(), everburn_kernels::KernelError>(())
/// ```
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

/// The planes of one channel.
#[derive(Clone, Copy)]
struct Planes<'a> {
    values: &'a [f32],
    stride: usize,
    pixels: usize,
}

impl<'a> Planes<'a> {
    fn of(shape: &BatchNormShape, channel: usize, values: &'a [f32]) -> Self {
        Self {
            values: values.get(channel * shape.pixels..).unwrap_or(&[]),
            stride: (shape.channels * shape.pixels).max(1),
            pixels: shape.pixels,
        }
    }

    #[inline(always)]
    fn each(self) -> impl Iterator<Item = &'a [f32]> {
        // The last sample is followed by less than a stride.
        self.values
            .chunks(self.stride)
            .map(move |sample| &sample[..self.pixels])
    }
}

/// Sums `term` over a plane in four vectors side by side.
#[inline(always)]
fn sum_plane<S: Simd>(
    simd: S,
    [first, second]: [&[f32]; 2],
    term: impl Fn(S::f32s, S::f32s) -> [S::f32s; 2],
    rest_mask: impl Fn(S::f32s, usize) -> S::f32s,
) -> [f64; 2] {
    let zero = simd.splat_f32s(0.0);
    let (first, first_rest) = S::as_simd_f32s(first);
    let (second, second_rest) = S::as_simd_f32s(second);
    let mut sums = [[zero; 4]; 2];
    let (a, a_single) = first.as_chunks::<4>();
    let (b, b_single) = second.as_chunks::<4>();
    for (a, b) in a.iter().zip(b) {
        for lane in 0..4 {
            let [x, y] = term(a[lane], b[lane]);
            sums[0][lane] = simd.add_f32s(sums[0][lane], x);
            sums[1][lane] = simd.add_f32s(sums[1][lane], y);
        }
    }
    for (lane, (&a, &b)) in a_single.iter().zip(b_single).enumerate() {
        let [x, y] = term(a, b);
        sums[0][lane] = simd.add_f32s(sums[0][lane], x);
        sums[1][lane] = simd.add_f32s(sums[1][lane], y);
    }
    if !first_rest.is_empty() {
        let [x, y] = term(load(simd, first_rest), load(simd, second_rest));
        sums[0][3] = simd.add_f32s(sums[0][3], rest_mask(x, first_rest.len()));
        sums[1][3] = simd.add_f32s(sums[1][3], rest_mask(y, first_rest.len()));
    }
    let mut totals = [0.0; 2];
    for (total, [a, b, c, d]) in totals.iter_mut().zip(sums) {
        let sum = simd.add_f32s(simd.add_f32s(a, b), simd.add_f32s(c, d));
        *total = f64::from(simd.reduce_sum_f32s(sum));
    }
    totals
}

/// Mean and variance of a channel.
struct Moments<'a> {
    planes: Planes<'a>,
}

impl WithSimd for Moments<'_> {
    type Output = [f32; 2];

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> [f32; 2] {
        let mut sum = 0.0;
        let mut count = 0;
        for plane in self.planes.each() {
            let same = |a, _| [a, a];
            sum += sum_plane(simd, [plane, plane], same, |value, _| value)[0];
            count += plane.len();
        }
        let mean = sum / count as f64;
        let center = simd.splat_f32s(mean as f32);
        let mut squares = 0.0;
        let mut distances = 0.0;
        for plane in self.planes.each() {
            let term = |value, _| {
                let distance = simd.sub_f32s(value, center);
                [distance, simd.mul_f32s(distance, distance)]
            };
            let kept = |value, count| keep(simd, value, count, 0.0);
            let [distance, square] = sum_plane(simd, [plane, plane], term, kept);
            distances += distance;
            squares += square;
        }
        // The mean was rounded to `f32`: what that shifts is known, and taken back.
        let shift = distances / count as f64;
        let variance = (squares / count as f64 - shift * shift).max(0.0);
        let variance = if count == 0 { f64::NAN } else { variance };
        [mean as f32, variance as f32]
    }
}

/// The sum of a channel's gradient, and of its products with the distances from the mean.
struct Products<'a> {
    input: Planes<'a>,
    gradient: Planes<'a>,
    mean: f32,
}

impl WithSimd for Products<'_> {
    type Output = [f64; 2];

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> [f64; 2] {
        let mean = simd.splat_f32s(self.mean);
        let mut totals = [0.0; 2];
        for (input, gradient) in self.input.each().zip(self.gradient.each()) {
            let term = |value, slope| [slope, simd.mul_f32s(slope, simd.sub_f32s(value, mean))];
            // Where there is no gradient, the product is zero.
            let sums = sum_plane(simd, [input, gradient], term, |value, _| value);
            totals[0] += sums[0];
            totals[1] += sums[1];
        }
        totals
    }
}

/// Normalises some planes.
struct Normalise<'a> {
    pixels: usize,
    first_plane: usize,
    /// Mean, scale, shift of each channel.
    affine: &'a [[f32; 3]],
    input: &'a [f32],
    output: &'a mut [f32],
}

impl WithSimd for Normalise<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let mut channel = self.first_plane % self.affine.len();
        let planes = self.input.chunks(self.pixels);
        for (input, output) in planes.zip(self.output.chunks_mut(self.pixels)) {
            let [mean, scale, shift] = self.affine[channel].map(|value| simd.splat_f32s(value));
            channel = if channel + 1 == self.affine.len() {
                0
            } else {
                channel + 1
            };
            let term = |value| {
                let distance = simd.sub_f32s(value, mean);
                simd.mul_add_e_f32s(distance, scale, shift)
            };
            let (input, input_rest) = S::as_simd_f32s(input);
            let (output, output_rest) = S::as_mut_simd_f32s(output);
            for (output, &input) in output.iter_mut().zip(input) {
                *output = term(input);
            }
            if !input_rest.is_empty() {
                store(simd, output_rest, term(load(simd, input_rest)));
            }
        }
    }
}

/// `gradient * slope.gradient + (input - mean) * slope.input + constant`.
#[derive(Clone, Copy, Default)]
struct Slope {
    mean: f32,
    gradient: f32,
    input: f32,
    constant: f32,
}

/// The input's gradient of a plane.
struct Spread<'a> {
    slope: Slope,
    input: &'a [f32],
    gradient: &'a [f32],
    output: &'a mut [f32],
}

impl WithSimd for Spread<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let slope = self.slope;
        let mean = simd.splat_f32s(slope.mean);
        let by_gradient = simd.splat_f32s(slope.gradient);
        let by_input = simd.splat_f32s(slope.input);
        let constant = simd.splat_f32s(slope.constant);
        let term = |value, gradient| {
            let distance = simd.sub_f32s(value, mean);
            let from_input = simd.mul_add_e_f32s(distance, by_input, constant);
            simd.mul_add_e_f32s(gradient, by_gradient, from_input)
        };
        let (input, input_rest) = S::as_simd_f32s(self.input);
        let (gradient, gradient_rest) = S::as_simd_f32s(self.gradient);
        let (output, output_rest) = S::as_mut_simd_f32s(self.output);
        for ((output, &input), &gradient) in output.iter_mut().zip(input).zip(gradient) {
            *output = term(input, gradient);
        }
        if !input_rest.is_empty() {
            let value = term(load(simd, input_rest), load(simd, gradient_rest));
            store(simd, output_rest, value);
        }
    }
}
