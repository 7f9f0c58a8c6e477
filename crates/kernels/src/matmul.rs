//! Products of matrices, by the kernels of the `gemm` crate.

#![expect(unsafe_code, reason = "tasks write blocks of one slice")]

mod blocks;
mod gemm;
#[cfg(test)]
mod tests;

use self::blocks::Blocks;
pub(crate) use self::gemm::{MatrixMut, Sum, multiply, multiply_to};
use crate::error::{KernelError, check_length, product};
use crate::isa::InstructionSet;
use crate::lanes::Interleave;
use crate::operations::add_operations;
use crate::parallel::{each_piece, each_task, multiply_adds};
use crate::scratch::with_scratch;

const MATMUL: &str = "matmul";

/// In how many tasks the products of a batch are cut at most.
const TASKS: usize = 16;

/// For how many rows a right factor whose columns lie one after the other is transposed first: `gemm`
/// transposes it for each block of its own, slowly.
const TRANSPOSED_FOR: usize = 48;

/// A matrix of contiguous values.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    values: &'a [f32],
    /// Rows and columns.
    extent: [usize; 2],
    /// How far the next row and the next column are.
    strides: [usize; 2],
}

impl<'a> Matrix<'a> {
    /// A matrix of `[rows, columns]` that is row after row.
    pub fn new(values: &'a [f32], extent: [usize; 2]) -> Self {
        Self {
            values,
            extent,
            strides: [extent[1], 1],
        }
    }

    /// The same values as columns and rows.
    #[must_use]
    pub fn transposed(self) -> Self {
        let Self {
            values,
            extent: [rows, columns],
            strides: [row, column],
        } = self;
        Self {
            values,
            extent: [columns, rows],
            strides: [column, row],
        }
    }

    /// Rows and columns.
    pub fn extent(&self) -> [usize; 2] {
        self.extent
    }

    /// Some rows, from `first` on.
    pub(crate) fn rows(self, first: usize, count: usize) -> Self {
        let start = (first * self.strides[0]).min(self.values.len());
        Self {
            values: &self.values[start..],
            extent: [count, self.extent[1]],
            ..self
        }
    }

    /// A row, whose columns lie side by side.
    ///
    /// # Panics
    /// Panics if they do not.
    pub(crate) fn row(&self, row: usize) -> &'a [f32] {
        assert!(self.strides[1] == 1);
        &self.values[row * self.strides[0]..][..self.extent[1]]
    }

    /// Some columns, from `first` on.
    pub(crate) fn columns(self, first: usize, count: usize) -> Self {
        self.transposed().rows(first, count).transposed()
    }

    /// Whether the columns lie one after the other, and not the rows.
    pub(crate) fn lies_transposed(&self) -> bool {
        self.strides[0] == 1 && self.strides[1] > 1
    }

    /// Calls `body` with the same matrix, row after row. Rows are as many lanes apart as fill vectors.
    pub(crate) fn with_rows_side_by_side<R>(self, body: impl FnOnce(Matrix<'_>) -> R) -> R {
        let [rows, columns] = self.extent;
        let set = InstructionSet::best();
        let vectors = columns.div_ceil(set.lanes());
        let stride = vectors * set.lanes();
        with_scratch(rows * stride, |target| {
            let last = self.last().map_or(0, |last| last + 1);
            set.run(Interleave {
                source: &self.values[..last],
                stride: self.strides[1],
                columns: rows,
                target,
                target_stride: vectors,
            });
            body(Matrix {
                values: target,
                extent: self.extent,
                strides: [stride, 1],
            })
        })
    }

    /// Whether every element is in `values`.
    fn is_whole(&self) -> bool {
        let Some(last) = self.last() else {
            return true;
        };
        last < self.values.len()
    }

    /// Where the last element is, if there is any.
    fn last(&self) -> Option<usize> {
        let [rows, columns] = self.extent;
        let row = rows.checked_sub(1)?.saturating_mul(self.strides[0]);
        let column = columns.checked_sub(1)?.saturating_mul(self.strides[1]);
        Some(row.saturating_add(column))
    }
}

/// Writes `left * right` to `output`, row after row, and adds `bias` to each row.
///
/// # Errors
/// Factors that do not fit together, and slices of other lengths than the extents say.
pub fn matmul(
    left: Matrix<'_>,
    right: Matrix<'_>,
    bias: Option<&[f32]>,
    output: &mut [f32],
) -> Result<(), KernelError> {
    let [rows, inner] = left.extent;
    let [right_rows, columns] = right.extent;
    check_length(
        MATMUL,
        "left",
        product(MATMUL, &left.extent)?,
        left.values.len(),
    )?;
    check_length(
        MATMUL,
        "right",
        product(MATMUL, &right.extent)?,
        right.values.len(),
    )?;
    check_length(MATMUL, "rows of right", inner, right_rows)?;
    check_length(
        MATMUL,
        "output",
        product(MATMUL, &[rows, columns])?,
        output.len(),
    )?;
    if let Some(bias) = bias {
        check_length(MATMUL, "bias", columns, bias.len())?;
    }
    if output.is_empty() {
        return Ok(());
    }
    add_operations(output.len(), inner);
    let blocks = Blocks::of([rows, inner, columns]);
    let work = multiply_adds(output.len().saturating_mul(inner));
    let whole = MatrixMut::of(output, columns);
    each_task(blocks.all(), work, |block| {
        let [first_row, first_column] = block.first;
        let [count, width] = block.extent;
        let left = left.rows(first_row, count);
        let right = right.columns(first_column, width);
        let place = whole.at(block.first, block.extent);
        let multiply = |right: Matrix<'_>| {
            // SAFETY: no other task has this block of the output, which is borrowed until all have ended.
            unsafe { multiply_to(left, right, Sum::New, place) };
        };
        match right.lies_transposed() && count >= TRANSPOSED_FOR {
            true => right.with_rows_side_by_side(multiply),
            false => multiply(right),
        }
        if let Some(bias) = bias {
            let bias = &bias[first_column..][..width];
            for row in 0..count {
                // SAFETY: as above.
                let row = unsafe { place.row(row) };
                for (value, bias) in row.iter_mut().zip(bias) {
                    *value += bias;
                }
            }
        }
    });
    Ok(())
}

/// As many matrices as `batch` says, that are anywhere in a slice.
#[derive(Clone, Copy, Debug)]
pub struct Matrices<'a> {
    values: &'a [f32],
    batch: [usize; 2],
    batch_strides: [usize; 2],
    extent: [usize; 2],
    strides: [usize; 2],
}

impl<'a> Matrices<'a> {
    /// Matrices of `extent`, of which the next along each axis of the batch is `batch_strides` further,
    /// the next row and the next column `strides`.
    ///
    /// # Errors
    /// Elements after the end of `values`.
    pub fn new(
        values: &'a [f32],
        batch: [usize; 2],
        batch_strides: [usize; 2],
        extent: [usize; 2],
        strides: [usize; 2],
    ) -> Result<Self, KernelError> {
        let matrices = Self {
            values,
            batch,
            batch_strides,
            extent,
            strides,
        };
        let last = (batch.into_iter().chain(extent))
            .zip(batch_strides.into_iter().chain(strides))
            .try_fold(0_usize, |last, (count, stride)| {
                last.checked_add(count.checked_sub(1)?.checked_mul(stride)?)
            });
        let empty = batch.contains(&0) || extent.contains(&0);
        match last {
            _ if empty => Ok(matrices),
            Some(last) if last < values.len() => Ok(matrices),
            _ => Err(KernelError::Length {
                operation: MATMUL,
                what: "matrices",
                expected: last.map_or(usize::MAX, |last| last.saturating_add(1)),
                actual: values.len(),
            }),
        }
    }

    /// Rows and columns of each.
    pub fn extent(&self) -> [usize; 2] {
        self.extent
    }

    /// How many there are along each axis of the batch.
    pub(crate) fn batch(&self) -> [usize; 2] {
        self.batch
    }

    pub(crate) fn at(&self, index: usize) -> Matrix<'a> {
        let [outer, inner] = [index / self.batch[1], index % self.batch[1]];
        let start = outer * self.batch_strides[0] + inner * self.batch_strides[1];
        Matrix {
            values: &self.values[start.min(self.values.len())..],
            extent: self.extent,
            strides: self.strides,
        }
    }
}

/// Writes the product of each pair of matrices to `output`, one after the other.
///
/// # Errors
/// Factors that do not fit together, and an output of another length.
pub fn matmul_each(
    left: Matrices<'_>,
    right: Matrices<'_>,
    output: &mut [f32],
) -> Result<(), KernelError> {
    let [rows, inner] = left.extent;
    let [right_rows, columns] = right.extent;
    check_length(MATMUL, "rows of right", inner, right_rows)?;
    for axis in 0..2 {
        check_length(
            MATMUL,
            "batch of right",
            left.batch[axis],
            right.batch[axis],
        )?;
    }
    let length = product(MATMUL, &[left.batch[0], left.batch[1], rows, columns])?;
    check_length(MATMUL, "output", length, output.len())?;
    if output.is_empty() {
        return Ok(());
    }
    add_operations(output.len(), inner);
    let count = left.batch[0] * left.batch[1];
    let per_task = count.div_ceil(TASKS);
    let work = multiply_adds(length.saturating_mul(inner));
    each_piece(output, per_task * rows * columns, work, |index, output| {
        for (matrix, output) in output.chunks_mut(rows * columns).enumerate() {
            let matrix = index * per_task + matrix;
            multiply(left.at(matrix), right.at(matrix), Sum::New, output);
        }
    });
    Ok(())
}
