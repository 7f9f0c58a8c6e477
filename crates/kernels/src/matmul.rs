//! Products of matrices, by the kernels of the `gemm` crate.

#![expect(unsafe_code, reason = "gemm takes pointers and strides")]

use crate::error::{KernelError, check_length, product};
use crate::operations::add_operations;
use crate::parallel::{each_piece, multiply_adds};

const MATMUL: &str = "matmul";

/// How many rows of a product a task computes at least: with fewer, packing the right factor costs as
/// much as the product.
const ROWS: usize = 32;

/// In how many tasks a product is cut at most.
const TASKS: usize = 16;

/// A matrix of contiguous values.
///
/// ```
/// use everburn_kernels::Matrix;
///
/// let matrix = Matrix::new(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]);
/// assert_eq!(matrix.transposed().extent(), [3, 2]);
/// ```
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
/// ```
/// use everburn_kernels::{Matrix, matmul};
///
/// let left = Matrix::new(&[1.0, 2.0, 3.0, 4.0], [2, 2]);
/// let mut output = [0.0; 4];
/// matmul(left, left.transposed(), Some(&[0.5, 0.0]), &mut output)?;
/// assert_eq!(output, [5.5, 11.0, 11.5, 25.0]);
/// # Ok::<(), everburn_kernels::KernelError>(())
/// ```
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
    let per_task = rows.div_ceil(TASKS).next_multiple_of(16).max(ROWS);
    let work = multiply_adds(output.len().saturating_mul(inner));
    each_piece(output, per_task * columns, work, |index, output| {
        let count = output.len() / columns;
        multiply(left.rows(index * per_task, count), right, Sum::New, output);
        if let Some(bias) = bias {
            for row in output.chunks_mut(columns) {
                for (value, bias) in row.iter_mut().zip(bias) {
                    *value += bias;
                }
            }
        }
    });
    Ok(())
}

/// As many matrices as `batch` says, that are anywhere in a slice.
///
/// ```
/// use everburn_kernels::Matrices;
///
/// // Two by one, the one after the other.
/// let matrices = Matrices::new(&[0.0; 12], [2, 1], [6, 6], [3, 2], [2, 1])?;
/// assert_eq!(matrices.extent(), [3, 2]);
/// # Ok::<(), everburn_kernels::KernelError>(())
/// ```
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

    fn at(&self, index: usize) -> Matrix<'a> {
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
/// ```
/// use everburn_kernels::{Matrices, matmul_each};
///
/// let values = [1.0, 2.0, 3.0, 4.0];
/// let rows = Matrices::new(&values, [1, 2], [4, 2], [1, 2], [2, 1])?;
/// let columns = Matrices::new(&values, [1, 2], [4, 2], [2, 1], [1, 1])?;
/// let mut output = [0.0; 2];
/// matmul_each(rows, columns, &mut output)?;
/// assert_eq!(output, [5.0, 25.0]);
/// # Ok::<(), everburn_kernels::KernelError>(())
/// ```
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

/// What becomes of the values that an output has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sum {
    /// They are overwritten.
    New,
    /// The product is added to them.
    Added,
}

/// On this thread.
///
/// # Panics
/// Factors that do not fit together, and an output of another length.
pub(crate) fn multiply(left: Matrix<'_>, right: Matrix<'_>, sum: Sum, output: &mut [f32]) {
    let [rows, inner] = left.extent;
    let columns = right.extent[1];
    let added = sum == Sum::Added;
    if inner == 0 {
        if !added {
            output.fill(0.0);
        }
        return;
    }
    // Three pointers are all that keeps this from being a safe function.
    assert!(left.is_whole() && right.is_whole() && right.extent[0] == inner);
    assert!(output.len() == rows * columns);
    let [left_row, left_column] = left.strides.map(usize::cast_signed);
    let [right_row, right_column] = right.strides.map(usize::cast_signed);
    // SAFETY: `gemm` reads `left` and `right` at the places that extents and strides name, which
    // are in their slices, and writes `rows * columns` values of `output`, which has as many and is
    // borrowed by nobody else. With `read_dst` false it does not read them.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            inner,
            output.as_mut_ptr(),
            1,
            columns.cast_signed(),
            added,
            left.values.as_ptr(),
            left_column,
            left_row,
            right.values.as_ptr(),
            right_column,
            right_row,
            if added { 1.0 } else { 0.0_f32 },
            1.0_f32,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sample::values;

    fn at(matrix: &Matrix<'_>, row: usize, column: usize) -> f64 {
        f64::from(matrix.values[row * matrix.strides[0] + column * matrix.strides[1]])
    }

    proptest! {
        #[test]
        fn products_are_those_of_f64(
            extent in prop::array::uniform3(0_usize..70),
            transposed in any::<[bool; 2]>(),
            biased in any::<bool>(),
        ) {
            let [rows, inner, columns] = extent;
            let [left, right] = [values(rows * inner, 1), values(inner * columns, 2)];
            let matrix = |values, [rows, columns]: [usize; 2], transposed| match transposed {
                false => Matrix::new(values, [rows, columns]),
                true => Matrix::new(values, [columns, rows]).transposed(),
            };
            let left = matrix(&left, [rows, inner], transposed[0]);
            let right = matrix(&right, [inner, columns], transposed[1]);
            let bias = values(columns, 3);
            let bias = biased.then_some(&bias[..]);
            let mut output = vec![f32::NAN; rows * columns];
            matmul(left, right, bias, &mut output).unwrap();
            for (index, value) in output.iter().enumerate() {
                let (row, column) = (index / columns, index % columns);
                let products = (0..inner).map(|k| at(&left, row, k) * at(&right, k, column));
                let expected = products.sum::<f64>() + bias.map_or(0.0, |b| f64::from(b[column]));
                prop_assert!((f64::from(*value) - expected).abs() < 1e-5, "{value} {expected}");
            }
        }
    }

    #[test]
    fn products_of_matrices_that_lie_anywhere() {
        // Rows of three heads of two texts side by side, as an attention has them.
        let (texts, tokens, heads, width) = (2, 5, 3, 4);
        let [queries, keys] = [1, 2].map(|seed| values(texts * tokens * heads * width, seed));
        let of = |values, strides, extent| {
            let batch_strides = [tokens * heads * width, width];
            Matrices::new(values, [texts, heads], batch_strides, extent, strides).unwrap()
        };
        let left = of(&queries, [heads * width, 1], [tokens, width]);
        let right = of(&keys, [1, heads * width], [width, tokens]);
        let mut output = vec![f32::NAN; texts * heads * tokens * tokens];
        matmul_each(left, right, &mut output).unwrap();
        for (index, value) in output.iter().enumerate() {
            let (row, column) = (index / tokens % tokens, index % tokens);
            let matrix = index / (tokens * tokens);
            let at = |values: &[f32], token: usize, number: usize| {
                let text = matrix / heads * tokens + token;
                f64::from(values[text * heads * width + matrix % heads * width + number])
            };
            let products = (0..width).map(|k| at(&queries, row, k) * at(&keys, column, k));
            assert!((f64::from(*value) - products.sum::<f64>()).abs() < 1e-5);
        }
        assert!(
            Matrices::new(
                &queries,
                [texts, heads],
                [60, 4],
                [tokens + 1, width],
                [12, 1]
            )
            .is_err()
        );
        assert!(Matrices::new(&[], [usize::MAX, 2], [usize::MAX, 1], [1, 1], [1, 1]).is_err());
        assert!(matmul_each(left, left, &mut output).is_err());
        assert!(matmul_each(left, right, &mut output[1..]).is_err());
    }

    #[test]
    fn the_same_bits_for_any_number_of_threads() {
        for [rows, inner, columns] in [[300, 200, 100], [1, 3000, 70], [512, 64, 384]] {
            let [left, right] = [values(rows * inner, 1), values(inner * columns, 2)];
            let on = |threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
                pool.build().unwrap().install(|| {
                    let mut output = vec![0.0; rows * columns];
                    let left = Matrix::new(&left, [rows, inner]);
                    let right = Matrix::new(&right, [columns, inner]).transposed();
                    matmul(left, right, None, &mut output).unwrap();
                    output
                })
            };
            let alone = on(1);
            assert_eq!(alone, on(2));
            assert_eq!(alone, on(4));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let (six, eight) = ([0.0; 6], [0.0; 8]);
        let left = Matrix::new(&six, [2, 3]);
        let error = |right, bias: Option<&[f32]>, output: &mut [f32]| {
            matmul(left, right, bias, output).unwrap_err().to_string()
        };
        let fitting = Matrix::new(&six, [3, 2]);
        assert!(error(Matrix::new(&eight, [4, 2]), None, &mut [0.0; 4]).contains("right"));
        assert!(error(Matrix::new(&eight, [3, 2]), None, &mut [0.0; 4]).contains("right"));
        assert!(error(fitting, None, &mut [0.0; 5]).contains("output"));
        assert!(error(fitting, Some(&[0.0; 3]), &mut [0.0; 4]).contains("bias"));
        let endless = Matrix::new(&six, [usize::MAX, 2]);
        assert!(matmul(endless, fitting, None, &mut [0.0; 4]).is_err());
    }
}
