//! Layers in the place of Burn's: operations with gradients ([`LayerOps`]), computed by kernels of this project on CPUs
//! (`on_flex`) and GPUs (`on_cube`), and by Burn everywhere else.

mod activation;
#[cfg(feature = "flex")]
mod adam;
mod attention;
mod backward;
#[cfg(feature = "flex")]
mod buffers;
mod conv2d;
mod counted;
mod differentiable;
mod drop_in;
mod dropout;
mod embedding;
mod formulas;
mod half;
mod layer_norm;
mod loss;
mod norm;
mod normalization;
#[cfg(feature = "gpu")]
mod on_cube;
#[cfg(feature = "flex")]
mod on_flex;
mod operations;
mod padding;
mod pool;
mod product;
mod rows;
mod split_k;
mod window;

pub use activation::{Gelu, Relu, causal_softmax, gelu, relu, rope};
#[cfg(feature = "flex")]
pub use adam::adam;
pub use attention::causal_attention;
pub use conv2d::{Conv2d, Conv2dConfig, conv2d};
pub use dropout::{Dropout, DropoutConfig};
pub use embedding::{Embedding, EmbeddingConfig};
pub use layer_norm::{LayerNorm, LayerNormConfig};
pub use loss::{CrossEntropyLoss, CrossEntropyLossConfig, MseLoss, argmax, cross_entropy};
pub(crate) use norm::{batch_norm, batch_norm_train};
pub use normalization::{Normalization, NormalizationConfig};
pub(crate) use operations::LayerOps;
pub use pool::{
    AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, AvgPool2d, AvgPool2dConfig, MaxPool2d,
    MaxPool2dConfig,
};
pub use product::matmul;
pub(crate) use product::{add_bias, product};
