//! The softmax of causal attention's scores, forward and backward.
//!
//! A row is read three times, for its maximum, its sum and its result: from the cache, after the
//! first time.

#[cfg(test)]
mod tests;

use pulp::{Simd, WithSimd};

use crate::elementary::exp;
use crate::error::{KernelError, check_length, product};
use crate::isa::InstructionSet;
use crate::lanes::{keep, load, map, sum};
use crate::parallel::each_piece;

const CAUSAL_SOFTMAX: &str = "causal_softmax";

/// About how many values a task takes.
const PIECE: usize = 1 << 13;

/// What a value costs, in values moved.
const COST: usize = 2;

/// The softmax of `scale * scores` for tokens that look at themselves and at those before them;
/// `scores` and `shares` are `[matrices, length, length]`.
///
/// Row `r` of a matrix is the softmax of its columns `0..=r`; the others are not read and become
/// zero.
///
/// The maximum of a row is taken away first, so nothing overflows. Minus infinity becomes zero; a row
/// of nothing else becomes not-a-number, as in PyTorch.
///
/// # Errors
/// Slices of other lengths than the shape says.
pub fn causal_softmax(
    [matrices, length]: [usize; 2],
    scale: f32,
    scores: &[f32],
    shares: &mut [f32],
) -> Result<(), KernelError> {
    let values = product(CAUSAL_SOFTMAX, &[matrices, length, length])?;
    check_length(CAUSAL_SOFTMAX, "scores", values, scores.len())?;
    check_length(CAUSAL_SOFTMAX, "shares", values, shares.len())?;
    forward(
        InstructionSet::best(),
        Rows::new(length, scale),
        scores,
        shares,
    );
    Ok(())
}

/// Writes the gradient with respect to the scores of [`causal_softmax`], from its `shares`: zero for
/// what is not looked at.
///
/// # Errors
/// Slices of other lengths than the shape says.
pub fn causal_softmax_backward(
    [matrices, length]: [usize; 2],
    scale: f32,
    shares: &[f32],
    gradient: &[f32],
    scores_grad: &mut [f32],
) -> Result<(), KernelError> {
    let values = product(CAUSAL_SOFTMAX, &[matrices, length, length])?;
    check_length(CAUSAL_SOFTMAX, "shares", values, shares.len())?;
    check_length(CAUSAL_SOFTMAX, "gradient", values, gradient.len())?;
    check_length(CAUSAL_SOFTMAX, "scores_grad", values, scores_grad.len())?;
    let (set, rows) = (InstructionSet::best(), Rows::new(length, scale));
    backward(set, rows, [shares, gradient], scores_grad);
    Ok(())
}

fn forward(set: InstructionSet, rows: Rows, input: &[f32], output: &mut [f32]) {
    let (piece, work) = (rows.piece(), COST * input.len());
    each_piece(output, piece, work, |index, output| {
        let first = index * piece;
        set.run(Forward {
            rows: rows.from(first),
            input: &input[first..][..output.len()],
            output,
        });
    });
}

fn backward(
    set: InstructionSet,
    rows: Rows,
    [output, gradient]: [&[f32]; 2],
    input_grad: &mut [f32],
) {
    let (piece, work) = (rows.piece(), COST * output.len());
    each_piece(input_grad, piece, work, |index, input_grad| {
        let first = index * piece;
        set.run(Backward {
            rows: rows.from(first),
            output: &output[first..][..input_grad.len()],
            gradient: &gradient[first..][..input_grad.len()],
            input_grad,
        });
    });
}

/// Rows of matrices of scores, and which the first is.
#[derive(Clone, Copy)]
struct Rows {
    columns: usize,
    first: usize,
    scale: f32,
}

impl Rows {
    fn new(columns: usize, scale: f32) -> Self {
        Self {
            columns,
            first: 0,
            scale,
        }
    }

    /// How many values a task takes: whole rows.
    fn piece(self) -> usize {
        (PIECE / self.columns.max(1)).max(1) * self.columns
    }

    /// The rows from value `index` on.
    fn from(self, index: usize) -> Self {
        Self {
            first: index / self.columns,
            ..self
        }
    }

    /// How many columns of row `row` count.
    #[inline(always)]
    fn visible(self, row: usize) -> usize {
        (self.first + row) % self.columns + 1
    }
}

/// The largest value of `row` times `scale`. What becomes of not-a-number does not matter: it makes
/// the sum one, too.
#[inline(always)]
pub(crate) fn maximum<S: Simd>(simd: S, row: &[f32], scale: S::f32s) -> f32 {
    let lowest = simd.splat_f32s(f32::NEG_INFINITY);
    let (vectors, rest) = S::as_simd_f32s(row);
    let mut highest = lowest;
    for &values in vectors {
        highest = simd.max_f32s(highest, simd.mul_f32s(values, scale));
    }
    if !rest.is_empty() {
        let values = simd.mul_f32s(load(simd, rest), scale);
        highest = simd.max_f32s(highest, keep(simd, values, rest.len(), f32::NEG_INFINITY));
    }
    simd.reduce_max_f32s(highest)
}

struct Forward<'a> {
    rows: Rows,
    input: &'a [f32],
    output: &'a mut [f32],
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let rows = self.rows;
        let scale = simd.splat_f32s(rows.scale);
        let pairs = self.input.chunks(rows.columns);
        let pairs = pairs.zip(self.output.chunks_mut(rows.columns));
        for (row, (input, output)) in pairs.enumerate() {
            let (input, _) = input.split_at(rows.visible(row));
            let (output, hidden) = output.split_at_mut(input.len());
            hidden.fill(0.0);
            let highest = simd.splat_f32s(maximum(simd, input, scale));
            map(
                simd,
                [input],
                output,
                #[inline(always)]
                |[x]| exp(simd, simd.sub_f32s(simd.mul_f32s(x, scale), highest)),
            );
            let total = sum(
                simd,
                [&*output],
                #[inline(always)]
                |[x]| x,
            );
            let share = simd.splat_f32s((1.0 / total) as f32);
            let (vectors, rest) = S::as_mut_simd_f32s(output);
            for value in vectors {
                *value = simd.mul_f32s(*value, share);
            }
            for value in rest {
                *value *= (1.0 / total) as f32;
            }
        }
    }
}

struct Backward<'a> {
    rows: Rows,
    output: &'a [f32],
    gradient: &'a [f32],
    input_grad: &'a mut [f32],
}

impl WithSimd for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let rows = self.rows;
        let scale = simd.splat_f32s(rows.scale);
        let given = self.output.chunks(rows.columns);
        let given = given.zip(self.gradient.chunks(rows.columns));
        let targets = self.input_grad.chunks_mut(rows.columns);
        for (row, ((output, gradient), target)) in given.zip(targets).enumerate() {
            let visible = rows.visible(row);
            let [output, gradient] = [output, gradient].map(|values| &values[..visible]);
            let (target, hidden) = target.split_at_mut(visible);
            hidden.fill(0.0);
            let mean = sum(
                simd,
                [output, gradient],
                #[inline(always)]
                |[y, gradient]| simd.mul_f32s(y, gradient),
            );
            let mean = simd.splat_f32s(mean as f32);
            map(
                simd,
                [output, gradient],
                target,
                #[inline(always)]
                |[y, gradient]| {
                    let distance = simd.sub_f32s(gradient, mean);
                    simd.mul_f32s(simd.mul_f32s(y, scale), distance)
                },
            );
        }
    }
}
