//! An encoder of text (Vaswani et al. 2017, section 3.1).

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::nn::Initializer;
use burn::nn::activation::ActivationConfig;
use burn::prelude::*;

use super::encoder_layer::{TransformerEncoderLayer, TransformerEncoderLayerAutoregressiveCache};

/// Configuration of [`TransformerEncoder`]: the same as [`burn::nn::transformer::TransformerEncoderConfig`].
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// let config = everburn::nn::transformer::TransformerEncoderConfig::new(8, 32, 2, 3);
/// let encoder = config.with_norm_first(true).init(&burn::prelude::Device::flex());
/// assert_eq!(encoder.layers.len(), 3);
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
    /// Vectors of tokens, each computed from all.
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
