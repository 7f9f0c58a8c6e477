//! What is added around an image, and whether a kernel fits into both.

use burn::nn::PaddingConfig2d;
use burn::prelude::*;

/// Before and after, of rows and of columns: as Burn, which keeps its own to itself, reads a
/// configuration.
pub(super) fn padding_of(
    input: &Tensor<4>,
    padding: &PaddingConfig2d,
    kernel: [usize; 2],
    stride: [usize; 2],
) -> [(usize, usize); 2] {
    let [_, _, height, width] = input.dims();
    match *padding {
        PaddingConfig2d::Valid => [(0, 0), (0, 0)],
        PaddingConfig2d::Same => [
            same(height, kernel[0], stride[0]),
            same(width, kernel[1], stride[1]),
        ],
        PaddingConfig2d::Explicit(top, left, bottom, right) => [(top, bottom), (left, right)],
    }
}

/// As much as makes `extent / stride` windows, rounded up; an odd one comes after.
fn same(extent: usize, kernel: usize, stride: usize) -> (usize, usize) {
    let windows = extent.div_ceil(stride);
    let total = match windows.checked_sub(1) {
        Some(steps) => (steps * stride + kernel).saturating_sub(extent),
        None => 0,
    };
    (total / 2, total - total / 2)
}

/// Refuses a kernel that is larger than the image and its padding, where backends compute an output without pixels;
/// `beyond` is by how many rows and columns it may be larger.
///
/// # Panics
/// Panics with the sizes.
pub(super) fn assert_fits(
    layer: &str,
    input: &Tensor<4>,
    kernel: [usize; 2],
    padding: [(usize, usize); 2],
    dilation: [usize; 2],
    beyond: [usize; 2],
) {
    let [_, _, height, width] = input.dims();
    let room = [height, width];
    let fits = |axis: usize| {
        let (before, after) = padding[axis];
        let window = dilation[axis] * kernel[axis].saturating_sub(1) + 1;
        room[axis] + before + after + beyond[axis] >= window
    };
    let [rows, columns] = kernel;
    assert!(
        fits(0) && fits(1),
        "{layer}: a kernel of {rows}x{columns} does not fit into an input of {height}x{width} (padding of rows and columns \
         {padding:?}, dilation {dilation:?}): take larger images, fewer strides and pools before it, or more padding"
    );
}
