//! Convolution, pooling, norms and activations for CPUs, forward and backward, on plain slices.
//!
//! Tensors are contiguous `f32` slices with explicit shapes, images `[B, C, H, W]`. The crate does
//! not depend on Burn.
//!
//! - [`conv2d`] and its gradients: [`conv2d_input_grad`], [`conv2d_weight_grad`],
//!   [`conv2d_bias_grad`].
//! - [`max_pool2d`], [`avg_pool2d`] and [`adaptive_avg_pool2d`], each with its `_backward`.
//! - [`batch_norm_train`], [`batch_norm_train_backward`] and [`batch_norm`].
//! - [`layer_norm`] and [`layer_norm_backward`].
//! - [`matmul`] and [`matmul_each`], with the kernels of the `gemm` crate; [`column_sums`].
//! - [`causal_attention`] and its gradients, [`causal_attention_backward`], in tiles.
//! - [`fn@adam`]: a step of Adam or AdamW in one pass.
//! - [`fn@dropout`], without a mask in memory.
//! - [`rope`]: rotary positions.
//! - [`relu`] and [`gelu`], each with its `_backward`.
//! - [`causal_softmax`] and its gradient, [`causal_softmax_backward`].
//! - [`cross_entropy`] and its gradient, [`cross_entropy_backward`].
//! - [`count_operations`]: the number of floating-point operations that these functions have computed;
//!   [`peak_operations`]: the number per second that this machine can compute.
//!
//! A call uses the threads of the rayon pool in which it runs. The bits of a result do not depend on
//! their number.

mod adam;
mod attention;
mod column_sums;
mod conv;
mod cross_entropy;
mod dropout;
mod elementary;
mod error;
mod gelu;
mod isa;
mod lanes;
mod layer_norm;
mod matmul;
mod norm;
mod operations;
mod parallel;
mod pool;
mod relu;
mod rope;
#[cfg(test)]
mod sample;
mod scratch;
mod softmax;

pub use adam::{Adam, WeightDecay, adam};
pub use attention::{causal_attention, causal_attention_backward};
pub use column_sums::column_sums;
pub use conv::{Conv2dShape, conv2d, conv2d_bias_grad, conv2d_input_grad, conv2d_weight_grad};
pub use cross_entropy::{Normalizer, cross_entropy, cross_entropy_backward};
pub use dropout::{Dropout, dropout};
pub use error::KernelError;
pub use gelu::{gelu, gelu_backward};
pub use layer_norm::{LayerNormShape, layer_norm, layer_norm_backward};
pub use matmul::{Matrices, Matrix, matmul, matmul_each};
pub use norm::{
    BatchNormShape, BatchNormStatistics, batch_norm, batch_norm_train, batch_norm_train_backward,
};
pub use operations::{add_operations, count_operations, operations_counted, peak_operations};
pub use pool::{
    AdaptivePool2dShape, Divisor, Pool2dShape, Rounding, adaptive_avg_pool2d,
    adaptive_avg_pool2d_backward, avg_pool2d, avg_pool2d_backward, max_pool2d, max_pool2d_backward,
};
pub use relu::{relu, relu_backward};
pub use rope::{RopeDirection, RopeShape, rope};
pub use softmax::{causal_softmax, causal_softmax_backward};
