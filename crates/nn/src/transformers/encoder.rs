//! An encoder of text (Vaswani et al. 2017, section 3.1).

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::nn::Initializer;
use burn::nn::activation::ActivationConfig;
use burn::prelude::*;

use super::attention::{MhaCache, MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use super::cache::TensorCache;
use super::feed_forward::{PositionWiseFeedForward, PositionWiseFeedForwardConfig};
use crate::layers::{Dropout, DropoutConfig, LayerNorm, LayerNormConfig};

/// Configuration of [`TransformerEncoder`]: the same as [`burn::nn::transformer::TransformerEncoderConfig`].
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::transformer::{TransformerEncoderConfig, TransformerEncoderInput};
///
/// let device = Device::flex();
/// let encoder = TransformerEncoderConfig::new(8, 32, 2, 3).init(&device);
/// let input = TransformerEncoderInput::new(Tensor::ones([2, 5, 8], &device));
/// assert_eq!(encoder.forward(input).dims(), [2, 5, 8]);
/// ```
#[derive(Config, Debug)]
pub struct TransformerEncoderConfig {
    /// The size of a token's vector (`E`).
    pub d_model: usize,
    /// The size of the space within a feed-forward net.
    pub d_ff: usize,
    /// How many heads an attention has.
    pub n_heads: usize,
    /// How many layers there are.
    pub n_layers: usize,
    /// The share of values that become zero while training.
    #[config(default = 0.1)]
    pub dropout: f64,
    /// Whether norms come before attentions and nets; else after them.
    #[config(default = false)]
    pub norm_first: bool,
    /// Whether a head may look at nothing.
    #[config(default = false)]
    pub quiet_softmax: bool,
    /// How the parameters are drawn.
    #[config(default = "Initializer::KaimingUniform{gain:1.0/f64::sqrt(3.0), fan_out_only:false}")]
    pub initializer: Initializer,
    /// What is within a feed-forward net.
    #[config(default = "ActivationConfig::Gelu")]
    pub activation: ActivationConfig,
    /// What is added to the variance in a norm.
    #[config(default = 1e-5)]
    pub layer_norm_eps: f64,
}

impl TransformerEncoderConfig {
    /// Initialises the module on `device`.
    ///
    /// # Panics
    /// Panics if there are no heads.
    pub fn init(&self, device: &Device) -> TransformerEncoder {
        let layers = (0..self.n_layers).map(|_| TransformerEncoderLayer::new(self, device));
        TransformerEncoder {
            layers: layers.collect(),
            d_model: self.d_model,
            d_ff: self.d_ff,
            n_heads: self.n_heads,
            n_layers: self.n_layers,
            dropout: self.dropout,
            norm_first: self.norm_first,
            quiet_softmax: self.quiet_softmax,
        }
    }
}

/// Burn's [`burn::nn::transformer::TransformerEncoder`], made of this crate's layers: the same parameters, paths and
/// records.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::transformer::{TransformerEncoderConfig, TransformerEncoderInput};
///
/// let device = Device::flex();
/// let encoder = TransformerEncoderConfig::new(8, 32, 2, 3).init(&device);
/// let text = TransformerEncoderInput::new(Tensor::ones([2, 5, 8], &device));
/// assert_eq!(encoder.forward(text).dims(), [2, 5, 8]);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct TransformerEncoder {
    /// The layers, in order.
    pub layers: Vec<TransformerEncoderLayer>,
    /// The size of a token's vector.
    pub d_model: usize,
    /// The size of the space within a feed-forward net.
    pub d_ff: usize,
    /// How many heads an attention has.
    pub n_heads: usize,
    /// How many layers there are.
    pub n_layers: usize,
    /// The share of values that become zero while training.
    pub dropout: f64,
    /// Whether norms come before attentions and nets.
    pub norm_first: bool,
    /// Whether a head may look at nothing.
    pub quiet_softmax: bool,
}

impl ModuleDisplay for TransformerEncoder {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new()
            .with_new_line_after_attribute(false)
            .optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        content
            .add("d_model", &self.d_model)
            .add("d_ff", &self.d_ff)
            .add("n_heads", &self.n_heads)
            .add("n_layers", &self.n_layers)
            .add("dropout", &self.dropout)
            .add("norm_first", &self.norm_first)
            .add("quiet_softmax", &self.quiet_softmax)
            .optional()
    }
}

/// What goes into a [`TransformerEncoder`].
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::attention::generate_autoregressive_mask;
/// use everburn::nn::transformer::TransformerEncoderInput;
///
/// let device = Device::flex();
/// let mask = generate_autoregressive_mask(2, 5, &device);
/// let _input = TransformerEncoderInput::new(Tensor::ones([2, 5, 8], &device)).mask_attn(mask);
/// ```
#[derive(Debug)]
pub struct TransformerEncoderInput {
    tensor: Tensor<3>,
    mask_pad: Option<Tensor<2, Bool>>,
    mask_attn: Option<Tensor<3, Bool>>,
}

impl TransformerEncoderInput {
    /// Texts as vectors of tokens.
    ///
    /// # Shapes
    /// - tensor: `[B, T, E]`
    pub fn new(tensor: Tensor<3>) -> Self {
        Self {
            tensor,
            mask_pad: None,
            mask_attn: None,
        }
    }

    /// Tokens that nobody looks at: true for padding.
    ///
    /// # Shapes
    /// - `mask_pad`: `[B, T]`
    #[must_use]
    pub fn mask_pad(mut self, mask_pad: Tensor<2, Bool>) -> Self {
        self.mask_pad = Some(mask_pad);
        self
    }

    /// Which token does not look at which: true for those.
    ///
    /// # Shapes
    /// - `mask_attn`: `[B, T, T]`
    #[must_use]
    pub fn mask_attn(mut self, mask_attn: Tensor<3, Bool>) -> Self {
        self.mask_attn = Some(mask_attn);
        self
    }
}

impl TransformerEncoder {
    /// Vectors of tokens that know of each other.
    ///
    /// # Shapes
    /// - output: `[B, T, E]`
    pub fn forward(&self, input: TransformerEncoderInput) -> Tensor<3> {
        let (pad, attn) = (input.mask_pad, input.mask_attn);
        let layers = self.layers.iter();
        layers.fold(input.tensor, |x, layer| {
            layer.forward(x, pad.clone(), attn.clone())
        })
    }

    /// The same for a text that is one token longer each time: only the last token is computed.
    ///
    /// # Shapes
    /// - output: `[B, T, E]`
    pub fn forward_autoregressive_inference(
        &self,
        input: TransformerEncoderInput,
        cache: &mut TransformerEncoderAutoregressiveCache,
    ) -> Tensor<3> {
        let (pad, attn) = (input.mask_pad, input.mask_attn);
        let layers = self.layers.iter().zip(&mut cache.layers);
        layers.fold(input.tensor, |x, (layer, cache)| {
            layer.forward_autoregressive_inference(x, pad.clone(), attn.clone(), cache)
        })
    }

    /// A cache in which nothing is kept yet.
    pub fn new_autoregressive_cache(&self) -> TransformerEncoderAutoregressiveCache {
        let layers = self.layers.iter();
        TransformerEncoderAutoregressiveCache {
            layers: layers
                .map(|_| TransformerEncoderLayerAutoregressiveCache::empty())
                .collect(),
        }
    }
}

/// A layer of a [`TransformerEncoder`]: attention, then a feed-forward net, each added to what came in.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::transformer::TransformerEncoderConfig;
///
/// let device = Device::flex();
/// let encoder = TransformerEncoderConfig::new(8, 32, 2, 3).init(&device);
/// let layer = &encoder.layers[0];
/// let output = layer.forward(Tensor::ones([2, 5, 8], &device), None, None);
/// assert_eq!(output.dims(), [2, 5, 8]);
/// ```
#[derive(Module, Debug)]
pub struct TransformerEncoderLayer {
    /// The attention.
    pub mha: MultiHeadAttention,
    /// The feed-forward net.
    pub pwff: PositionWiseFeedForward,
    /// Before the feed-forward net; without `norm_first` after the attention.
    pub norm_1: LayerNorm,
    /// Before the attention; without `norm_first` after the feed-forward net.
    pub norm_2: LayerNorm,
    /// Of what is added.
    pub dropout: Dropout,
    /// Whether norms come first.
    pub norm_first: bool,
}

impl TransformerEncoderLayer {
    /// Initialises a layer on `device`.
    ///
    /// # Panics
    /// Panics if there are no heads.
    pub fn new(config: &TransformerEncoderConfig, device: &Device) -> Self {
        let norm = || {
            LayerNormConfig::new(config.d_model)
                .with_epsilon(config.layer_norm_eps)
                .init(device)
        };
        // Parameters are drawn in Burn's order.
        let mha = MultiHeadAttentionConfig::new(config.d_model, config.n_heads)
            .with_initializer(config.initializer.clone())
            .with_dropout(config.dropout)
            .with_quiet_softmax(config.quiet_softmax)
            .init(device);
        let pwff = PositionWiseFeedForwardConfig::new(config.d_model, config.d_ff)
            .with_initializer(config.initializer.clone())
            .with_dropout(config.dropout)
            .with_activation(config.activation.clone())
            .init(device);
        Self {
            mha,
            pwff,
            norm_1: norm(),
            norm_2: norm(),
            dropout: DropoutConfig::new(config.dropout).init(),
            norm_first: config.norm_first,
        }
    }

    /// Vectors of tokens that know of each other.
    ///
    /// # Shapes
    /// - input, output: `[B, T, E]`
    /// - `mask_pad`: `[B, T]`, true for padding
    /// - `mask_attn`: `[B, T, T]`, true where a token does not look
    pub fn forward(
        &self,
        input: Tensor<3>,
        mask_pad: Option<Tensor<2, Bool>>,
        mask_attn: Option<Tensor<3, Bool>>,
    ) -> Tensor<3> {
        self.run(input, mask_pad, mask_attn, None)
    }

    /// The same for a text that is one token longer each time: only the last token is computed.
    ///
    /// # Shapes
    /// As [`TransformerEncoderLayer::forward`].
    pub fn forward_autoregressive_inference(
        &self,
        input: Tensor<3>,
        mask_pad: Option<Tensor<2, Bool>>,
        mask_attn: Option<Tensor<3, Bool>>,
        cache: &mut TransformerEncoderLayerAutoregressiveCache,
    ) -> Tensor<3> {
        self.run(input, mask_pad, mask_attn, Some(cache))
    }

    fn run(
        &self,
        input: Tensor<3>,
        mask_pad: Option<Tensor<2, Bool>>,
        mask_attn: Option<Tensor<3, Bool>>,
        mut cache: Option<&mut TransformerEncoderLayerAutoregressiveCache>,
    ) -> Tensor<3> {
        let norm_1 = |x| self.norm_1.forward(x);
        let norm_2 = |x| self.norm_2.forward(x);
        let attended = match self.norm_first {
            true => appended(
                cache.as_mut().map(|it| &mut it.norm_2),
                input.clone(),
                norm_2,
            ),
            false => input.clone(),
        };
        let mut attended = MhaInput::self_attn(attended);
        if let Some(mask) = mask_pad {
            attended = attended.mask_pad(mask);
        }
        if let Some(mask) = mask_attn {
            attended = attended.mask_attn(mask);
        }
        let attended = match cache.as_mut() {
            Some(cache) => self.mha.forward_cache(attended, &mut cache.mha),
            None => self.mha.forward(attended),
        };
        let x = input + self.dropout.forward(attended.context);
        let normal = appended(cache.as_mut().map(|it| &mut it.norm_1), x.clone(), norm_1);
        let x = match self.norm_first {
            true => x,
            false => normal.clone(),
        };
        let fed = appended(cache.as_mut().map(|it| &mut it.pwff), normal, |x| {
            self.pwff.forward(x)
        });
        let x = x + self.dropout.forward(fed);
        match self.norm_first {
            true => x,
            false => appended(cache.as_mut().map(|it| &mut it.norm_2), x, norm_2),
        }
    }
}

/// `compute` of `input`, of which all but the last token is kept where there is a cache.
fn appended(
    cache: Option<&mut TensorCache<3>>,
    input: Tensor<3>,
    compute: impl Fn(Tensor<3>) -> Tensor<3>,
) -> Tensor<3> {
    match cache {
        Some(cache) => cache.append(input, 1, compute),
        None => compute(input),
    }
}

/// What a [`TransformerEncoderLayer`] keeps of a text while it is being written.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::transformer::{
///     TransformerEncoderConfig, TransformerEncoderLayerAutoregressiveCache,
/// };
///
/// let device = Device::flex();
/// let encoder = TransformerEncoderConfig::new(8, 32, 2, 3).init(&device);
/// let mut cache = TransformerEncoderLayerAutoregressiveCache::empty();
/// let input = Tensor::ones([2, 1, 8], &device);
/// let output = encoder.layers[0].forward_autoregressive_inference(input, None, None, &mut cache);
/// assert_eq!(output.dims(), [2, 1, 8]);
/// ```
#[derive(Debug, Clone)]
pub struct TransformerEncoderLayerAutoregressiveCache {
    /// Of the attention.
    pub mha: MhaCache,
    /// Of the feed-forward net.
    pub pwff: TensorCache<3>,
    /// Of the first norm.
    pub norm_1: TensorCache<3>,
    /// Of the second norm.
    pub norm_2: TensorCache<3>,
}

impl TransformerEncoderLayerAutoregressiveCache {
    /// Nothing is kept yet.
    pub fn empty() -> Self {
        Self {
            mha: MhaCache::autoregressive(),
            pwff: TensorCache::empty(),
            norm_1: TensorCache::empty(),
            norm_2: TensorCache::empty(),
        }
    }
}

/// What a [`TransformerEncoder`] keeps of a text while it is being written: see
/// [`TransformerEncoder::new_autoregressive_cache`].
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::transformer::{TransformerEncoderConfig, TransformerEncoderInput};
///
/// let device = Device::flex();
/// let encoder = TransformerEncoderConfig::new(8, 32, 2, 3).init(&device);
/// let mut cache = encoder.new_autoregressive_cache();
/// for tokens in 1..4 {
///     let input = TransformerEncoderInput::new(Tensor::ones([2, tokens, 8], &device));
///     let output = encoder.forward_autoregressive_inference(input, &mut cache);
///     assert_eq!(output.dims(), [2, tokens, 8]);
/// }
/// ```
#[derive(Debug, Clone)]
pub struct TransformerEncoderAutoregressiveCache {
    layers: Vec<TransformerEncoderLayerAutoregressiveCache>,
}
