//! Convolution, pooling and batch norm for CPUs, forward and backward, on plain slices.
//!
//! Tensors are contiguous `f32` slices with explicit shapes, images `[B, C, H, W]`. Nothing here
//! knows Burn.
//!
//! - [`conv2d`] and its gradients: [`conv2d_input_grad`], [`conv2d_weight_grad`],
//!   [`conv2d_bias_grad`].
//! - [`max_pool2d`], [`avg_pool2d`] and [`adaptive_avg_pool2d`], each with its `_backward`; for
//!   `f32` and `f64`.
//! - [`batch_norm_train`], [`batch_norm_train_backward`] and [`batch_norm`].
//! - [`mod@reference`]: the same by definition, generic over `f32` and `f64`; slow, for tests and for
//!   `f64` tensors.
//!
//! Threads are those of the rayon pool that a call runs in. The bits of a result do not depend on
//! how many there are.

mod conv;
mod error;
mod isa;
mod lanes;
mod norm;
mod parallel;
mod pool;
pub mod reference;
#[cfg(test)]
mod sample;
mod scratch;

pub use conv::{Conv2dShape, conv2d, conv2d_bias_grad, conv2d_input_grad, conv2d_weight_grad};
pub use error::KernelError;
pub use isa::InstructionSet;
pub use norm::{
    BatchNormShape, BatchNormStatistics, batch_norm, batch_norm_train, batch_norm_train_backward,
};
pub use pool::{
    AdaptivePool2dShape, Divisor, PlaneIndex, Pool2dShape, Rounding, adaptive_avg_pool2d,
    adaptive_avg_pool2d_backward, avg_pool2d, avg_pool2d_backward, max_pool2d, max_pool2d_backward,
};
