//! Products into blocks of a slice, on one thread, by the kernels of the `gemm` crate.

#![expect(unsafe_code, reason = "gemm takes pointers and strides")]

use super::Matrix;

/// What becomes of the values that an output has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sum {
    /// They are overwritten.
    New,
    /// The product is added to them.
    Added,
}

/// A block of a slice that lies row after row: where a task writes.
#[derive(Clone, Copy)]
pub(crate) struct MatrixMut {
    start: *mut f32,
    extent: [usize; 2],
    /// How far the next row is.
    stride: usize,
}

// SAFETY: a pointer is no more than a number until somebody writes to it, and tasks have blocks of
// their own.
unsafe impl Send for MatrixMut {}
// SAFETY: as above.
unsafe impl Sync for MatrixMut {}

impl MatrixMut {
    /// All of `output`, whose rows have `columns` values.
    pub(crate) fn of(output: &mut [f32], columns: usize) -> Self {
        Self {
            extent: [output.len() / columns.max(1), columns],
            start: output.as_mut_ptr(),
            stride: columns,
        }
    }

    /// A block of it.
    ///
    /// # Panics
    /// Panics if it does not lie in this one.
    pub(crate) fn at(self, [row, column]: [usize; 2], extent: [usize; 2]) -> Self {
        assert!(row + extent[0] <= self.extent[0] && column + extent[1] <= self.extent[1]);
        Self {
            start: self.start.wrapping_add(row * self.stride + column),
            extent,
            stride: self.stride,
        }
    }

    /// A row of it.
    ///
    /// # Safety
    /// The slice that this is a block of is still borrowed, and nobody else uses the row.
    pub(crate) unsafe fn row<'a>(self, row: usize) -> &'a mut [f32] {
        assert!(row < self.extent[0]);
        let start = self.start.wrapping_add(row * self.stride);
        // SAFETY: the row lies in the slice, as `at` has made sure of; the rest is the caller's.
        unsafe { std::slice::from_raw_parts_mut(start, self.extent[1]) }
    }
}

/// On this thread.
///
/// # Panics
/// Factors that do not fit together, and an output of another length.
pub(crate) fn multiply(left: Matrix<'_>, right: Matrix<'_>, sum: Sum, output: &mut [f32]) {
    assert!(output.len() == left.extent[0] * right.extent[1]);
    let output = MatrixMut::of(output, right.extent[1]);
    // SAFETY: the output is borrowed here, and whole.
    unsafe { multiply_to(left, right, sum, output) };
}

/// On this thread.
///
/// # Safety
/// The slice that `output` is a block of is still borrowed, and nobody else uses the block.
///
/// # Panics
/// Factors that do not fit together, and an output of another extent.
pub(crate) unsafe fn multiply_to(left: Matrix<'_>, right: Matrix<'_>, sum: Sum, output: MatrixMut) {
    let [rows, inner] = left.extent;
    let columns = right.extent[1];
    let added = sum == Sum::Added;
    assert!(left.is_whole() && right.is_whole() && right.extent[0] == inner);
    assert!(rows == 0 || columns == 0 || output.extent == [rows, columns]);
    if inner == 0 {
        for row in 0..if added { 0 } else { rows } {
            // SAFETY: as the caller has it.
            unsafe { output.row(row) }.fill(0.0);
        }
        return;
    }
    let [left_row, left_column] = left.strides.map(usize::cast_signed);
    let [right_row, right_column] = right.strides.map(usize::cast_signed);
    // SAFETY: `gemm` reads `left` and `right` at the places that extents and strides name, which
    // lie in their slices, and writes the values of `output`, which nobody else uses. With `read_dst`
    // false it does not read those.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            inner,
            output.start,
            1,
            output.stride.cast_signed(),
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
