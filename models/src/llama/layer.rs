//! A layer of a Llama.

use burn::module::Module;
use burn::prelude::*;
use burn::tensor::activation::silu;
use everburn_nn::{Dropout, DropoutConfig, Initializer, Linear, RmsNorm};

use super::{LlamaConfig, linear, normalised};
use crate::decoder::{LayerCache, RotaryScaling, Rotation, attend, heads};

/// Attention, then a feed-forward net, each on normalised inputs and added to what came in.
#[derive(Module, Debug)]
pub(super) struct Layer {
    input_layernorm: RmsNorm,
    self_attn: Attention,
    post_attention_layernorm: RmsNorm,
    mlp: FeedForward,
}

impl Layer {
    pub(super) fn new(config: &LlamaConfig, device: &Device) -> Self {
        let (width, wide) = (config.width, config.feed_forward);
        Self {
            input_layernorm: config.norm(device),
            self_attn: Attention::new(config, device),
            post_attention_layernorm: config.norm(device),
            mlp: FeedForward {
                gate_proj: linear(width, wide, device),
                up_proj: linear(width, wide, device),
                down_proj: linear(wide, width, device),
            },
        }
    }

    /// Vectors of tokens that know of those before them.
    ///
    /// # Shapes
    /// - x, output: `[B, T, E]`
    pub(super) fn forward(&self, x: Tensor<3>, cache: Option<&mut LayerCache>) -> Tensor<3> {
        let attended = normalised(&self.input_layernorm, x.clone());
        let x = x + self.self_attn.forward(attended, cache);
        x.clone()
            + self
                .mlp
                .forward(normalised(&self.post_attention_layernorm, x))
    }

    /// How many features of queries one head of keys serves, and how many features that head has.
    pub(super) fn units(&self) -> [usize; 2] {
        [self.self_attn.group_width, self.self_attn.head_width]
    }
}

/// Grouped-query attention. How many heads there are is read from the weights: a part of the layer computes its own.
#[derive(Module, Debug)]
struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    dropout: Dropout,
    head_width: usize,
    /// The features of the queries that a head of keys and values serves.
    group_width: usize,
    rotary_base: f64,
    #[module(skip)]
    rotary_scaling: RotaryScaling,
}

impl Attention {
    fn new(config: &LlamaConfig, device: &Device) -> Self {
        let (width, head) = (config.width, config.width_of_head());
        let projection = |heads: usize| {
            let mut linear = linear(width, heads * head, device);
            let bias = || Initializer::Zeros.init([heads * head], device);
            linear.bias = config.biases.then(bias);
            linear
        };
        Self {
            q_proj: projection(config.heads),
            k_proj: projection(config.kv_heads),
            v_proj: projection(config.kv_heads),
            o_proj: linear(config.heads * head, width, device),
            dropout: DropoutConfig::new(0.0).init(),
            head_width: head,
            group_width: config.heads / config.kv_heads * head,
            rotary_base: config.rotary_base,
            rotary_scaling: config.rotary_scaling,
        }
    }

    /// # Shapes
    /// - x, output: `[B, T, E]`
    fn forward(&self, x: Tensor<3>, cache: Option<&mut LayerCache>) -> Tensor<3> {
        let (device, length) = (x.device(), x.dims()[1]);
        let layers = [&self.q_proj, &self.k_proj, &self.v_proj];
        let [q, k, v] = Linear::forward_each(layers, x).map(|x| heads(x, self.head_width));
        let place = (cache.as_ref().map_or(0, |cache| cache.tokens()), length);
        let (base, scaling) = (self.rotary_base, self.rotary_scaling);
        let angles = Rotation::new(place, self.head_width, base, scaling, &device);
        let (q, k) = (angles.turn(q), angles.turn(k));
        self.o_proj.forward(attend(q, [k, v], &self.dropout, cache))
    }
}

/// Two products, of which one gates the other (SwiGLU, Shazeer 2020), and a third.
#[derive(Module, Debug)]
struct FeedForward {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

impl FeedForward {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [gate, up] = Linear::forward_each([&self.gate_proj, &self.up_proj], x);
        self.down_proj.forward(silu(gate) * up)
    }
}
