//! A layer of an encoder of text.

use burn::module::Module;
use burn::prelude::*;

use super::attention::{MhaCache, MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use super::cache::TensorCache;
use super::encoder::TransformerEncoderConfig;
use super::feed_forward::{PositionWiseFeedForward, PositionWiseFeedForwardConfig};
use crate::layers::{Dropout, DropoutConfig, LayerNorm, LayerNormConfig};

/// A layer of a [`TransformerEncoder`](super::TransformerEncoder): attention, then a feed-forward net, each added to
/// what came in.
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

    /// Vectors of tokens, each computed from all.
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
        let attended = MhaInput {
            mask_pad,
            mask_attn,
            ..MhaInput::self_attn(attended)
        };
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
