//! Max pooling with indices.

mod quarter;

use pulp::{Simd, WithSimd};

use super::PIECE;
use super::shape::Pool2dShape;
use crate::error::{KernelError, check_length};
use crate::isa::InstructionSet;
use crate::parallel::each_task;

const MAX_POOL: &str = "max_pool2d";

/// Writes the largest value of each window to `output`, and its index in its plane to `indices`.
///
/// As in Burn and PyTorch, not-a-number is larger than all numbers, of several the last counts, and
/// of equal numbers the first. A window without any input yields minus infinity and index -1.
///
/// # Errors
/// A shape that is no pooling, and slices of other lengths than it says.
pub fn max_pool2d(
    shape: &Pool2dShape,
    input: &[f32],
    output: &mut [f32],
    indices: &mut [i32],
) -> Result<(), KernelError> {
    let set = InstructionSet::best();
    check_length(MAX_POOL, "input", shape.input_len()?, input.len())?;
    check_length(MAX_POOL, "output", shape.output_len()?, output.len())?;
    check_length(MAX_POOL, "indices", output.len(), indices.len())?;
    let [rows, columns] = shape.output()?;
    if output.is_empty() {
        return Ok(());
    }
    let plane = shape.input[0] * shape.input[1];
    let per_task = (PIECE / (plane + rows * columns)).max(1);
    let piece = per_task * rows * columns;
    let tasks: Vec<Task<'_>> = output
        .chunks_mut(piece)
        .zip(indices.chunks_mut(piece))
        .enumerate()
        .map(|(index, (output, indices))| Task {
            shape,
            output_extent: [rows, columns],
            input: &input[index * per_task * plane..],
            output,
            indices,
        })
        .collect();
    each_task(tasks, input.len(), |task| set.run(task));
    Ok(())
}

/// Some planes.
struct Task<'a> {
    shape: &'a Pool2dShape,
    output_extent: [usize; 2],
    /// From the first plane on.
    input: &'a [f32],
    output: &'a mut [f32],
    indices: &'a mut [i32],
}

impl WithSimd for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        let shape = self.shape;
        let [rows, columns] = self.output_extent;
        let [height, width] = shape.input;
        let [inner_rows, inner] = [inner(shape, 0, rows), inner(shape, 1, columns)];
        let quarters = shape.kernel == [2, 2]
            && shape.stride == [2, 2]
            && shape.dilation == [1, 1]
            && [inner_rows, inner] == [[0, rows], [0, columns]];
        for (plane, (output, indices)) in self
            .output
            .chunks_mut(rows * columns)
            .zip(self.indices.chunks_mut(rows * columns))
            .enumerate()
        {
            let input = &self.input[plane * height * width..][..height * width];
            if quarters {
                quarter::pool(input, width, columns, output, indices);
                continue;
            }
            let lines = output.chunks_mut(columns).zip(indices.chunks_mut(columns));
            for (row, (output, indices)) in lines.enumerate() {
                let whole = (inner_rows[0]..inner_rows[1]).contains(&row);
                let [mut first, mut end] = [0, 0];
                if whole && shape.dilation == [1, 1] {
                    let top = row * shape.stride[0] - shape.padding[0];
                    let line = Line {
                        input: &input[top * width..],
                        width,
                        first_index: (top * width) as i32,
                        column: inner[0] * shape.stride[1]
                            - shape.padding[1].min(inner[0] * shape.stride[1]),
                    };
                    let output = &mut output[inner[0]..inner[1]];
                    let indices = &mut indices[inner[0]..inner[1]];
                    let done = match (shape.kernel, shape.stride[1]) {
                        ([2, 2], 2) => line.search::<2, 2>(output, indices),
                        ([3, 3], 2) => line.search::<3, 2>(output, indices),
                        ([2, 2], 1) => line.search::<2, 1>(output, indices),
                        ([3, 3], 1) => line.search::<3, 1>(output, indices),
                        ([3, 3], 3) => line.search::<3, 3>(output, indices),
                        _ => 0,
                    };
                    [first, end] = [inner[0], inner[0] + done];
                }
                for column in (0..first).chain(end..columns) {
                    let (value, index) = search(shape, input, [row, column]);
                    output[column] = value;
                    indices[column] = index;
                }
            }
        }
    }
}

/// The windows that are within the input's rows or columns, from the first to after the last.
fn inner(shape: &Pool2dShape, axis: usize, windows: usize) -> [usize; 2] {
    let whole = |&window: &usize| shape.taps(axis, window) == [0, shape.kernel[axis]];
    match (0..windows).find(whole) {
        Some(first) => {
            let length = (first..windows).take_while(whole).count();
            [first, first + length]
        }
        None => [0, 0],
    }
}

/// Any window.
#[inline(always)]
fn search(shape: &Pool2dShape, input: &[f32], at: [usize; 2]) -> (f32, i32) {
    let mut best = (f32::NEG_INFINITY, -1);
    let [rows, columns] = [0, 1].map(|axis| shape.taps(axis, at[axis]));
    for ky in rows[0]..rows[1] {
        let y = at[0] * shape.stride[0] + ky * shape.dilation[0] - shape.padding[0];
        for kx in columns[0]..columns[1] {
            let x = at[1] * shape.stride[1] + kx * shape.dilation[1] - shape.padding[1];
            let index = y * shape.input[1] + x;
            let value = input[index];
            if best.1 < 0 || wins(value, best.0) {
                best = (value, index as i32);
            }
        }
    }
    best
}

/// Whether `value` takes the place of `best`. (Without `||`, which would be a jump.)
#[inline(always)]
fn wins(value: f32, best: f32) -> bool {
    (value > best) | value.is_nan()
}

/// Windows of one output row that are within the input.
struct Line<'a> {
    /// From the windows' first row on.
    input: &'a [f32],
    width: usize,
    /// Index in the plane of `input`'s first value.
    first_index: i32,
    /// The first window's first column.
    column: usize,
}

impl Line<'_> {
    /// Searches windows of `K * K`, `STRIDE` apart; known numbers let the compiler unroll and
    /// vectorise. Returns how many windows it did.
    #[inline(always)]
    fn search<const K: usize, const STRIDE: usize>(
        &self,
        output: &mut [f32],
        indices: &mut [i32],
    ) -> usize {
        let count = output.len().min(indices.len());
        if count == 0 {
            return 0;
        }
        let reach = (count - 1) * STRIDE + K;
        let mut rows: [&[f32]; K] = [&[]; K];
        for (ky, row) in rows.iter_mut().enumerate() {
            *row = &self.input[ky * self.width + self.column..][..reach];
        }
        for window in 0..count {
            let start = window * STRIDE;
            let mut best = rows[0][start];
            let mut tap = 0;
            for (ky, row) in rows.iter().enumerate() {
                for kx in 0..K {
                    let value = row[start + kx];
                    let better = wins(value, best);
                    best = if better { value } else { best };
                    let this = ky as i32 * self.width as i32 + kx as i32;
                    tap = if better { this } else { tap };
                }
            }
            output[window] = best;
            indices[window] = self.first_index + (self.column + start) as i32 + tap;
        }
        count
    }
}

/// Adds each value of `gradient` to where its maximum was; everything else becomes zero.
///
/// # Errors
/// A shape that is no pooling, slices of other lengths than it says, and indices that are outside
/// their plane.
pub fn max_pool2d_backward(
    shape: &Pool2dShape,
    gradient: &[f32],
    indices: &[i32],
    input_grad: &mut [f32],
) -> Result<(), KernelError> {
    check_length(MAX_POOL, "gradient", shape.output_len()?, gradient.len())?;
    check_length(MAX_POOL, "indices", gradient.len(), indices.len())?;
    check_length(MAX_POOL, "input_grad", shape.input_len()?, input_grad.len())?;
    let [rows, columns] = shape.output()?;
    let plane = shape.input[0] * shape.input[1];
    let outside = |index: &&i32| !(-1..plane as i64).contains(&i64::from(**index));
    if let Some(index) = indices.iter().find(outside) {
        return Err(KernelError::Index {
            operation: MAX_POOL,
            index: i64::from(*index),
            plane,
        });
    }
    if plane == 0 {
        return Ok(());
    }
    let windows = rows * columns;
    let per_task = (PIECE / (plane + windows)).max(1);
    let work = input_grad.len();
    crate::parallel::each_piece(input_grad, per_task * plane, work, |index, input_grad| {
        input_grad.fill(0.0);
        let first = index * per_task;
        for (plane, target) in input_grad.chunks_mut(plane).enumerate() {
            let at = (first + plane) * windows;
            let indices = &indices[at..at + windows];
            for (&slope, &index) in gradient[at..at + windows].iter().zip(indices) {
                if let Some(value) = target.get_mut(index as usize) {
                    *value += slope;
                }
            }
        }
    });
    Ok(())
}
