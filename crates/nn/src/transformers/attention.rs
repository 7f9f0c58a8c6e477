//! Attention in several heads (Vaswani et al. 2017, section 3.2).

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::nn::Initializer;
use burn::nn::attention::MhaOutput;
use burn::prelude::*;
use burn::tensor::activation::{quiet_softmax, softmax};
use burn::tensor::assert_shape;

use super::cache::TensorCache;
use crate::layers::{Dropout, DropoutConfig, Gelu, matmul};
use crate::linear::{Linear, LinearConfig};

/// Configuration of [`MultiHeadAttention`]: the same as [`burn::nn::attention::MultiHeadAttentionConfig`].
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// let config = everburn::nn::attention::MultiHeadAttentionConfig::new(8, 2).with_dropout(0.0);
/// let attention = config.init(&burn::prelude::Device::flex());
/// assert_eq!((attention.n_heads, attention.d_k), (2, 4));
/// ```
#[derive(Config, Debug)]
pub struct MultiHeadAttentionConfig {
    /// The size of a token's vector (`E`).
    pub d_model: usize,
    /// How many heads share it.
    pub n_heads: usize,
    /// The share of weights that become zero while training.
    #[config(default = 0.1)]
    pub dropout: f64,
    /// The score of a token that is masked.
    #[config(default = -1.0e4)]
    pub min_float: f64,
    /// Whether a head may look at nothing: the softmax has one more in its denominator.
    #[config(default = false)]
    pub quiet_softmax: bool,
    /// How the parameters are drawn.
    #[config(default = "Initializer::KaimingUniform{gain:1.0/f64::sqrt(3.0), fan_out_only:false}")]
    pub initializer: Initializer,
    /// Whether the layer of keys has a bias.
    #[config(default = true)]
    pub key_bias: bool,
    /// Whether the layer of values has a bias.
    #[config(default = true)]
    pub value_bias: bool,
    /// Whether the layer of queries has a bias.
    #[config(default = true)]
    pub query_bias: bool,
    /// Whether the last layer has a bias.
    #[config(default = true)]
    pub output_bias: bool,
}

impl MultiHeadAttentionConfig {
    /// Initialises the module on `device`.
    ///
    /// # Panics
    /// Panics if there are no heads.
    pub fn init(&self, device: &Device) -> MultiHeadAttention {
        let linear = |bias| {
            LinearConfig::new(self.d_model, self.d_model)
                .with_initializer(self.initializer.clone())
                .with_bias(bias)
                .init(device)
        };
        MultiHeadAttention {
            query: linear(self.query_bias),
            key: linear(self.key_bias),
            value: linear(self.value_bias),
            output: linear(self.output_bias),
            dropout: DropoutConfig::new(self.dropout).init(),
            activation: Gelu::new(),
            d_model: self.d_model,
            n_heads: self.n_heads,
            d_k: self.d_model / self.n_heads,
            min_float: self.min_float,
            quiet_softmax: self.quiet_softmax,
        }
    }
}

/// Burn's [`burn::nn::attention::MultiHeadAttention`], made of this crate's layers and products: the same parameters,
/// paths and records.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::attention::{MhaInput, MultiHeadAttentionConfig};
///
/// let device = Device::flex();
/// let attention = MultiHeadAttentionConfig::new(8, 2).init(&device);
/// let output = attention.forward(MhaInput::self_attn(Tensor::ones([3, 5, 8], &device)));
/// assert_eq!(output.context.dims(), [3, 5, 8]);
/// assert_eq!(output.weights.dims(), [3, 2, 5, 5]);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct MultiHeadAttention {
    /// The layer of queries.
    pub query: Linear,
    /// The layer of keys.
    pub key: Linear,
    /// The layer of values.
    pub value: Linear,
    /// The layer after the heads.
    pub output: Linear,
    /// Of the weights.
    pub dropout: Dropout,
    /// Not used, as in Burn.
    pub activation: Gelu,
    /// The size of a token's vector.
    pub d_model: usize,
    /// How many heads there are.
    pub n_heads: usize,
    /// The size of a head's part of it.
    pub d_k: usize,
    /// The score of a token that is masked.
    pub min_float: f64,
    /// Whether a head may look at nothing.
    pub quiet_softmax: bool,
}

impl ModuleDisplay for MultiHeadAttention {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new()
            .with_new_line_after_attribute(false)
            .optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("d_model", &self.d_model)
            .add("n_heads", &self.n_heads)
            .add("d_k", &self.d_k)
            .add("dropout", &self.dropout.prob)
            .add("min_float", &self.min_float)
            .add("quiet_softmax", &self.quiet_softmax)
            .optional()
    }
}

/// What goes into a [`MultiHeadAttention`].
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::attention::MhaInput;
///
/// let device = Device::flex();
/// let (query, memory) = (Tensor::ones([3, 5, 8], &device), Tensor::ones([3, 7, 8], &device));
/// let input = MhaInput::new(query, memory.clone(), memory);
/// // The last two of seven positions are padding.
/// let pad = Tensor::<1, Int>::arange(0..7, &device).greater_equal_elem(5).unsqueeze().repeat(&[3, 1]);
/// let _input = input.mask_pad(pad);
/// ```
#[derive(Debug, Clone)]
pub struct MhaInput {
    pub(super) query: Tensor<3>,
    pub(super) key: Tensor<3>,
    pub(super) value: Tensor<3>,
    pub(super) mask_pad: Option<Tensor<2, Bool>>,
    pub(super) mask_attn: Option<Tensor<3, Bool>>,
}

impl MhaInput {
    /// Each token looks at all of the same text.
    ///
    /// # Shapes
    /// - tensor: `[B, T, E]`
    pub fn self_attn(tensor: Tensor<3>) -> Self {
        Self::new(tensor.clone(), tensor.clone(), tensor)
    }

    /// Each token of `query` looks at all of another text.
    ///
    /// # Shapes
    /// - query: `[B, T, E]`
    /// - key, value: `[B, S, E]`
    pub fn new(query: Tensor<3>, key: Tensor<3>, value: Tensor<3>) -> Self {
        Self {
            query,
            key,
            value,
            mask_pad: None,
            mask_attn: None,
        }
    }

    /// Tokens that nobody looks at: true for padding.
    ///
    /// # Shapes
    /// - `mask_pad`: `[B, S]`
    #[must_use]
    pub fn mask_pad(mut self, mask_pad: Tensor<2, Bool>) -> Self {
        self.mask_pad = Some(mask_pad);
        self
    }

    /// Which token does not look at which: true for those.
    ///
    /// # Shapes
    /// - `mask_attn`: `[B, T, S]`
    #[must_use]
    pub fn mask_attn(mut self, mask_attn: Tensor<3, Bool>) -> Self {
        self.mask_attn = Some(mask_attn);
        self
    }
}

impl MultiHeadAttention {
    /// Lets tokens look at tokens.
    ///
    /// # Panics
    /// Panics if a tensor of the input does not have `d_model` features, or they do not fit together.
    pub fn forward(&self, input: MhaInput) -> MhaOutput {
        self.check(&input);
        let query = self.in_heads(input.query, &self.query);
        let key = self.in_heads(input.key, &self.key);
        let value = self.in_heads(input.value, &self.value);
        let weights = self.weights(query, key, input.mask_pad, input.mask_attn);
        let context = self.output.forward(self.looked_up(&weights, value));
        MhaOutput { weights, context }
    }

    /// The same for a text that is one token longer each time: only the last token is computed.
    ///
    /// # Panics
    /// As [`MultiHeadAttention::forward`].
    pub fn forward_cache(&self, input: MhaInput, cache: &mut MhaCache) -> MhaOutput {
        self.check(&input);
        let query = cache
            .query
            .append(input.query, 2, |x| self.in_heads(x, &self.query));
        let key = cache
            .key
            .forward(input.key, |x| self.in_heads(x, &self.key));
        let value = cache
            .value
            .forward(input.value, |x| self.in_heads(x, &self.value));
        let weights = self.weights(query, key, input.mask_pad, input.mask_attn);
        let context = self.looked_up(&weights, value);
        let context = cache.output.append(context, 1, |x| self.output.forward(x));
        MhaOutput { weights, context }
    }

    fn check(&self, input: &MhaInput) {
        let [batch, _, _] = input.query.dims();
        let [_, length, _] = input.key.dims();
        assert_shape!(input.query, [_, _, self.d_model]);
        assert_shape!(input.key, [batch, _, self.d_model]);
        assert_shape!(input.value, [batch, length, self.d_model]);
    }

    /// `[B, T, E]` as `[B, heads, T, E / heads]`.
    fn in_heads(&self, x: Tensor<3>, linear: &Linear) -> Tensor<4> {
        let [batch, length, _] = x.dims();
        linear
            .forward(x)
            .reshape([batch, length, self.n_heads, self.d_k])
            .swap_dims(1, 2)
    }

    fn weights(
        &self,
        query: Tensor<4>,
        key: Tensor<4>,
        mask_pad: Option<Tensor<2, Bool>>,
        mask_attn: Option<Tensor<3, Bool>>,
    ) -> Tensor<4> {
        let mut scores = matmul(query, key.swap_dims(2, 3)).div_scalar((self.d_k as f32).sqrt());
        if let Some(mask) = mask_pad {
            let [batch, length] = mask.dims();
            scores = scores.mask_fill(mask.reshape([batch, 1, 1, length]), self.min_float);
        }
        if let Some(mask) = mask_attn {
            let [batch, rows, columns] = mask.dims();
            scores = scores.mask_fill(mask.reshape([batch, 1, rows, columns]), self.min_float);
        }
        self.dropout.forward(match self.quiet_softmax {
            true => quiet_softmax(scores, 3),
            false => softmax(scores, 3),
        })
    }

    /// `[B, heads, T, S]` and `[B, heads, S, E / heads]` make `[B, T, E]`.
    fn looked_up(&self, weights: &Tensor<4>, value: Tensor<4>) -> Tensor<3> {
        let [batch, _, length, _] = weights.dims();
        matmul(weights.clone(), value)
            .swap_dims(1, 2)
            .reshape([batch, length, self.d_model])
    }
}

/// What a [`MultiHeadAttention`] keeps of a text while it is being written.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::attention::{MhaCache, MhaInput, MultiHeadAttentionConfig};
///
/// let device = Device::flex();
/// let attention = MultiHeadAttentionConfig::new(8, 2).init(&device);
/// let mut cache = MhaCache::autoregressive();
/// let input = MhaInput::self_attn(Tensor::ones([3, 5, 8], &device));
/// assert_eq!(attention.forward_cache(input, &mut cache).context.dims(), [3, 5, 8]);
/// ```
#[derive(Debug, Clone)]
pub struct MhaCache {
    query: TensorCache<4>,
    key: Source,
    value: Source,
    output: TensorCache<3>,
}

/// The text that is looked at.
#[derive(Debug, Clone)]
enum Source {
    /// It grows.
    Growing(TensorCache<4>),
    /// It is there from the beginning.
    Whole(TensorCache<4>),
}

impl Source {
    fn forward(&mut self, input: Tensor<3>, compute: impl Fn(Tensor<3>) -> Tensor<4>) -> Tensor<4> {
        match self {
            Self::Growing(cache) => cache.append(input, 2, compute),
            Self::Whole(cache) => cache.once(input, compute),
        }
    }
}

impl MhaCache {
    /// Of a text that looks at itself.
    pub fn autoregressive() -> Self {
        Self::with(Source::Growing)
    }

    /// Of a text that looks at another, which stays.
    pub fn autoregressive_cross_attention() -> Self {
        Self::with(Source::Whole)
    }

    fn with(source: fn(TensorCache<4>) -> Source) -> Self {
        Self {
            query: TensorCache::empty(),
            key: source(TensorCache::empty()),
            value: source(TensorCache::empty()),
            output: TensorCache::empty(),
        }
    }
}
