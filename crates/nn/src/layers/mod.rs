//! Layers of images with fast kernels on CPUs.

mod activation;
mod backward;
#[cfg(feature = "flex")]
mod buffers;
mod conv2d;
mod counted;
mod differentiable;
mod drop_in;
mod dropout;
mod half;
mod layer_norm;
mod loss;
mod norm;
#[cfg(feature = "flex")]
mod on_flex;
mod operations;
mod padding;
mod pool;
mod product;
mod rows;
mod window;

pub use activation::{causal_softmax, gelu, relu, rotary};
pub use conv2d::{Conv2d, Conv2dConfig, conv2d};
pub use dropout::{Dropout, DropoutConfig};
pub use layer_norm::{LayerNorm, LayerNormConfig};
pub use loss::cross_entropy;
pub(crate) use norm::{normalize, normalize_by};
pub(crate) use operations::LayerOps;
pub use pool::{
    AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, AvgPool2d, AvgPool2dConfig, MaxPool2d,
    MaxPool2dConfig,
};
pub use product::matmul;
pub(crate) use product::product;
