//! Layer norm over the last axis (Ba, Kiros and Hinton 2016), forward and backward.

#[cfg(test)]
mod tests;

use pulp::{Simd, WithSimd};

use crate::error::{KernelError, check_length, product};
use crate::isa::InstructionSet;
use crate::lanes::{map, sum};
use crate::parallel::each_task;

const LAYER_NORM: &str = "layer_norm";

/// About how many values a task takes.
const PIECE: usize = 1 << 14;

/// The fewest and the most rows a task takes: it has sums of its own for each column.
const ROWS: [usize; 2] = [16, 256];

/// The shape of a layer norm of `[..., columns]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerNormShape {
    /// How many rows are normalised, each for itself.
    pub rows: usize,
    /// The values of a row.
    pub columns: usize,
}

impl LayerNormShape {
    fn check(
        &self,
        tensors: &[(&'static str, usize)],
        per_row: &[(&'static str, usize)],
        per_column: &[(&'static str, usize)],
    ) -> Result<(), KernelError> {
        let length = product(LAYER_NORM, &[self.rows, self.columns])?;
        let given = [
            (length, tensors),
            (self.rows, per_row),
            (self.columns, per_column),
        ];
        for (expected, slices) in given {
            for &(what, actual) in slices {
                check_length(LAYER_NORM, what, expected, actual)?;
            }
        }
        Ok(())
    }

    fn rows_per_task(&self) -> usize {
        (PIECE / self.columns.max(1)).clamp(ROWS[0], ROWS[1])
    }
}

/// Writes `(input - mean) / sqrt(variance + epsilon) * gamma + beta` to `output`, with the mean and
/// the biased variance of each row, and to `mean` and `inverse_deviation` what the backward pass
/// needs of each row.
///
/// # Errors
/// Slices of other lengths than the shape says.
pub fn layer_norm(
    shape: &LayerNormShape,
    input: &[f32],
    [gamma, beta]: [&[f32]; 2],
    epsilon: f64,
    output: &mut [f32],
    [mean, inverse]: [&mut [f32]; 2],
) -> Result<(), KernelError> {
    let set = InstructionSet::best();
    shape.check(
        &[("input", input.len()), ("output", output.len())],
        &[("mean", mean.len()), ("inverse_deviation", inverse.len())],
        &[("gamma", gamma.len()), ("beta", beta.len())],
    )?;
    let rows = shape.rows_per_task();
    let (columns, work) = (shape.columns.max(1), 2 * input.len());
    let values = input.chunks(rows * columns);
    let values = values.zip(output.chunks_mut(rows * columns));
    if shape.columns == 0 {
        mean.fill(f32::NAN);
        inverse.fill(f32::NAN);
    }
    let tasks = mean.chunks_mut(rows).zip(inverse.chunks_mut(rows));
    let tasks: Vec<_> = tasks.zip(values).collect();
    each_task(tasks, work, |((mean, inverse), (input, output))| {
        set.run(Forward {
            columns,
            affine: [gamma, beta],
            epsilon,
            input,
            output,
            statistics: [mean, inverse],
        });
    });
    Ok(())
}

/// Computes the gradients of [`layer_norm`] with respect to its input, `gamma` and `beta`; the statistics, mean and inverse
/// deviation, are those that it wrote.
///
/// # Errors
/// Slices of other lengths than the shape says.
pub fn layer_norm_backward(
    shape: &LayerNormShape,
    [input, gradient]: [&[f32]; 2],
    gamma: &[f32],
    [mean, inverse]: [&[f32]; 2],
    input_grad: &mut [f32],
    [gamma_grad, beta_grad]: [&mut [f32]; 2],
) -> Result<(), KernelError> {
    let set = InstructionSet::best();
    shape.check(
        &[
            ("input", input.len()),
            ("gradient", gradient.len()),
            ("input_grad", input_grad.len()),
        ],
        &[("mean", mean.len()), ("inverse_deviation", inverse.len())],
        &[
            ("gamma", gamma.len()),
            ("gamma_grad", gamma_grad.len()),
            ("beta_grad", beta_grad.len()),
        ],
    )?;
    gamma_grad.fill(0.0);
    beta_grad.fill(0.0);
    if input.is_empty() {
        return Ok(());
    }
    let (columns, rows) = (shape.columns, shape.rows_per_task());
    // Each task's sums for gamma and beta.
    let mut sums = vec![0.0; shape.rows.div_ceil(rows) * 2 * columns];
    let targets = input_grad.chunks_mut(rows * columns);
    let tasks: Vec<_> = targets
        .zip(sums.chunks_mut(2 * columns))
        .enumerate()
        .collect();
    each_task(tasks, 3 * input.len(), |(index, (input_grad, sums))| {
        let first = index * rows;
        let count = input_grad.len() / columns;
        set.run(Backward {
            gamma,
            given: [input, gradient].map(|values| &values[first * columns..][..input_grad.len()]),
            statistics: [mean, inverse].map(|values| &values[first..][..count]),
            input_grad,
            sums: sums.split_at_mut(columns),
        });
    });
    let mut totals = vec![0.0; 2 * columns];
    for sums in sums.chunks(2 * columns) {
        for (total, &sum) in totals.iter_mut().zip(sums) {
            *total += f64::from(sum);
        }
    }
    for (grad, total) in gamma_grad.iter_mut().chain(beta_grad).zip(totals) {
        *grad = total as f32;
    }
    Ok(())
}

struct Forward<'a> {
    columns: usize,
    affine: [&'a [f32]; 2],
    epsilon: f64,
    input: &'a [f32],
    output: &'a mut [f32],
    statistics: [&'a mut [f32]; 2],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let [gamma, beta] = self.affine;
        let count = self.columns as f64;
        let [means, inverses] = self.statistics;
        let rows = self.input.chunks(self.columns);
        let rows = rows.zip(self.output.chunks_mut(self.columns));
        for ((input, output), (mean, inverse)) in rows.zip(means.iter_mut().zip(inverses)) {
            let total = sum(
                simd,
                [input],
                #[inline(always)]
                |[x]| x,
            );
            *mean = (total / count) as f32;
            let center = simd.splat_f32s(*mean);
            let squares = sum(
                simd,
                [input],
                #[inline(always)]
                |[x]| {
                    let distance = simd.sub_f32s(x, center);
                    simd.mul_f32s(distance, distance)
                },
            );
            // The mean was rounded to `f32`: what that shifts is taken back.
            let shift = total / count - f64::from(*mean);
            let variance = (squares / count - shift * shift).max(0.0);
            // `max` hides not-a-number.
            let variance = if squares.is_nan() { squares } else { variance };
            *inverse = (1.0 / (variance + self.epsilon).sqrt()) as f32;
            let scale = simd.splat_f32s(*inverse);
            map(
                simd,
                [input, gamma, beta],
                output,
                #[inline(always)]
                |[x, gamma, beta]| {
                    let normal = simd.mul_f32s(simd.sub_f32s(x, center), scale);
                    simd.mul_add_e_f32s(normal, gamma, beta)
                },
            );
        }
    }
}

struct Backward<'a> {
    gamma: &'a [f32],
    given: [&'a [f32]; 2],
    statistics: [&'a [f32]; 2],
    input_grad: &'a mut [f32],
    /// For gamma and beta, zero at first.
    sums: (&'a mut [f32], &'a mut [f32]),
}

impl WithSimd for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let gamma = self.gamma;
        let columns = gamma.len();
        let [input, gradient] = self.given.map(|values| values.chunks(columns));
        let [means, inverses] = self.statistics;
        let (for_gamma, for_beta) = self.sums;
        let rows = input.zip(gradient).zip(self.input_grad.chunks_mut(columns));
        let rows = rows.zip(means.iter().zip(inverses));
        for (((input, gradient), target), (&mean, &inverse)) in rows {
            let [center, scale] = [mean, inverse].map(|value| simd.splat_f32s(value));
            let flat = sum(
                simd,
                [gradient, gamma],
                #[inline(always)]
                |[g, gamma]| simd.mul_f32s(g, gamma),
            );
            let tilted = sum(
                simd,
                [input, gradient, gamma],
                #[inline(always)]
                |[x, g, gamma]| {
                    let normal = simd.mul_f32s(simd.sub_f32s(x, center), scale);
                    simd.mul_f32s(simd.mul_f32s(g, gamma), normal)
                },
            );
            let flat = simd.splat_f32s((flat / columns as f64) as f32);
            let tilted = simd.splat_f32s((-tilted / columns as f64) as f32);
            map(
                simd,
                [input, gradient, gamma],
                target,
                #[inline(always)]
                |[x, g, gamma]| {
                    let normal = simd.mul_f32s(simd.sub_f32s(x, center), scale);
                    let level = simd.sub_f32s(simd.mul_f32s(g, gamma), flat);
                    simd.mul_f32s(simd.mul_add_e_f32s(normal, tilted, level), scale)
                },
            );
            for ((sum, &x), &g) in for_gamma.iter_mut().zip(input).zip(gradient) {
                *sum += (x - mean) * inverse * g;
            }
            for (sum, &g) in for_beta.iter_mut().zip(gradient) {
                *sum += g;
            }
        }
    }
}
