//! The layers and functions that are measured, imported as models import them. A model that changes an
//! import changes it here too.

pub(super) use everburn::burn::nn::{Embedding, EmbeddingConfig, PaddingConfig2d};
pub(super) use everburn::burn::tensor::activation::softmax;
pub(super) use everburn::nn::{
    Conv2dConfig, DropoutConfig, LayerNormConfig, LinearConfig, MaxPool2dConfig,
    SyncBatchNormConfig, causal_softmax, cross_entropy, gelu, linear, matmul, relu, rotary,
};

use everburn::burn::prelude::*;

/// Global average pooling, as `mnist-bn` and `resnet50` have it: `[B, C, H, W]` to `[B, C]`.
pub(super) fn mean_over_pixels(x: Tensor<4>) -> Tensor<2> {
    x.flatten::<3>(2, 3).mean_dim(2).squeeze_dim(2)
}
