//! Two-dimensional pooling and its gradients.

mod average;
mod max;
mod shape;
#[cfg(test)]
mod tests;

pub use average::{
    AdaptivePool2dShape, Divisor, adaptive_avg_pool2d, adaptive_avg_pool2d_backward, avg_pool2d,
    avg_pool2d_backward,
};
pub use max::{max_pool2d, max_pool2d_backward};
pub use shape::{Pool2dShape, Rounding};

/// About how many values one task reads and writes.
const PIECE: usize = 1 << 15;
