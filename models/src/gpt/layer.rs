//! A layer of a decoder.

use burn::module::Module;
use burn::prelude::*;
use burn::tensor::activation::gelu_approximate;
use everburn_nn::tensor::activation::gelu;
use everburn_nn::{Dropout, LayerNorm};
pub(super) use everburn_nn::{Linear, LinearConfig};

use super::attention::Attention;
use crate::decoder::LayerCache;

/// Attention, then a feed-forward net, each on normalised inputs and added to what came in.
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use burn::module::Module;
/// use everburn::models::gpt::Layer;
///
/// fn parameters(layer: &Layer) -> usize {
///     layer.num_params()
/// }
/// ```
#[derive(Module, Debug)]
pub struct Layer {
    pub(super) norm1: LayerNorm,
    pub(super) attention: Attention,
    pub(super) norm2: LayerNorm,
    pub(super) feed_forward: FeedForward,
    pub(super) dropout: Dropout,
}

impl Layer {
    /// Vectors of tokens that know of those before them.
    ///
    /// # Shapes
    /// - x, output: `[B, T, E]`
    pub(super) fn forward(&self, x: Tensor<3>, cache: Option<&mut LayerCache>) -> Tensor<3> {
        let attended = self.attention.forward(self.norm1.forward(x.clone()), cache);
        let x = x + self.dropout.forward(attended);
        let fed = self.feed_forward.forward(self.norm2.forward(x.clone()));
        x + self.dropout.forward(fed)
    }
}

/// Two linear layers with a wide space between them.
#[derive(Module, Debug)]
pub(super) struct FeedForward {
    pub(super) up: Linear,
    pub(super) down: Linear,
    pub(super) approximate: bool,
}

impl FeedForward {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let x = self.up.forward(x);
        self.down.forward(match self.approximate {
            true => gelu_approximate(x),
            false => gelu(x),
        })
    }
}
