//! A layer of a vision transformer.

use burn::module::Module;
use burn::prelude::*;
use burn::tensor::activation::softmax;
use everburn_nn::{Dropout, DropoutConfig, LayerNorm, Linear, in_f32, matmul};

use super::ViTConfig;
use crate::decoder::heads;
use crate::gpt::Activation;

/// Attention, then a feed-forward net, each on normalised inputs and added to what came in.
#[derive(Module, Debug)]
pub(super) struct Layer {
    attention: Attention,
    intermediate: Dense,
    output: Dense,
    layernorm_before: LayerNorm,
    layernorm_after: LayerNorm,
    dropout: Dropout,
    approximate: bool,
}

/// Attention, and the layer behind its heads.
#[derive(Module, Debug)]
struct Attention {
    attention: SelfAttention,
    output: Dense,
}

/// A linear layer, as Hugging Face nests it.
#[derive(Module, Debug)]
struct Dense {
    dense: Linear,
}

impl Layer {
    pub(super) fn new(config: &ViTConfig, device: &Device) -> Self {
        let (width, wide) = (config.width, config.feed_forward);
        let dense = |inputs, outputs| Dense {
            dense: config.linear(inputs, outputs, true, device),
        };
        Self {
            attention: Attention {
                attention: SelfAttention::new(config, device),
                output: dense(width, width),
            },
            intermediate: dense(width, wide),
            output: dense(wide, width),
            layernorm_before: config.norm(device),
            layernorm_after: config.norm(device),
            dropout: DropoutConfig::new(config.dropout).init(),
            approximate: config.activation == Activation::GeluTanh,
        }
    }

    /// # Shapes
    /// - x, output: `[B, T, E]`
    pub(super) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let normal = self.layernorm_before.forward(x.clone());
        let attended = self.attention.attention.forward(normal);
        let attended = self.attention.output.dense.forward(attended);
        let x = x + self.dropout.forward(attended);
        let normal = self.layernorm_after.forward(x.clone());
        let wide = self.intermediate.dense.forward(normal);
        let wide = match self.approximate {
            true => burn::tensor::activation::gelu_approximate(wide),
            false => everburn_nn::tensor::activation::gelu(wide),
        };
        x + self.dropout.forward(self.output.dense.forward(wide))
    }

    /// The features of one head.
    pub(super) fn head_width(&self) -> usize {
        self.attention.attention.head_width
    }
}

/// Each vector looks at all. The number of heads is read from the weights: a part of the layer computes its own.
#[derive(Module, Debug)]
struct SelfAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    dropout: Dropout,
    head_width: usize,
}

impl SelfAttention {
    fn new(config: &ViTConfig, device: &Device) -> Self {
        let linear = || config.linear(config.width, config.width, config.biases, device);
        Self {
            query: linear(),
            key: linear(),
            value: linear(),
            dropout: DropoutConfig::new(config.attention_dropout).init(),
            head_width: config.width / config.heads,
        }
    }

    /// # Shapes
    /// - x: `[B, T, E]`
    /// - output: `[B, T, heads * head_width]`
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let layers = [&self.query, &self.key, &self.value];
        let [q, k, v] = Linear::forward_each(layers, x).map(|x| heads(x, self.head_width));
        let [batch, heads, length, width] = q.dims();
        let scale = (width as f64).sqrt().recip();
        let scores = matmul(q, k.swap_dims(2, 3)) * scale; // [B, heads, T, T]
        let shares = self
            .dropout
            .forward(in_f32(scores, |scores| softmax(scores, 3)));
        matmul(shares, v)
            .swap_dims(1, 2) // [B, T, heads, head_width]
            .reshape([batch, length, heads * width])
    }
}
