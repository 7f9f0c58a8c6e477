//! The layers and functions that are measured, imported as models import them. A model that changes an
//! import changes it here too.

use everburn::burn::prelude::*;
pub(super) use everburn::nn::conv::Conv2dConfig;
pub(super) use everburn::nn::pool::MaxPool2dConfig;
pub(super) use everburn::nn::{
    BatchNormConfig, DropoutConfig, Embedding, EmbeddingConfig, LayerNormConfig, LinearConfig,
    PaddingConfig2d, causal_softmax, cross_entropy, matmul, rope,
};
pub(super) use everburn::tensor::activation::{gelu, relu, softmax};
pub(super) use everburn::tensor::module::linear;

/// Global average pooling, as `mnist-bn` and `resnet50` have it: `[B, C, H, W]` to `[B, C]`.
pub(super) fn mean_over_pixels(x: Tensor<4>) -> Tensor<2> {
    x.flatten::<3>(2, 3).mean_dim(2).squeeze_dim(2)
}
