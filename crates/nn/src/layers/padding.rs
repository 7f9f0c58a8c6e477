//! What is added around an image.

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
