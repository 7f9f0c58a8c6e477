//! What decoders of text have in common: causal attention, its cache, rotary positions.

mod attention;
mod rotary;

use std::fmt::Display;

use burn::module::Module;
use burn::prelude::*;
use burn::tensor::Int;
use everburn_nn::TensorParallel;

pub(crate) use attention::{attend, heads};
pub use rotary::RotaryScaling;
pub(crate) use rotary::Rotation;

use crate::error::ModelError;

/// A model that scores the next token of a text (a causal language model).
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use burn::prelude::*;
/// use burn::tensor::Int;
/// use everburn::models::decoder::{Decoder, KeyValueCache};
/// use everburn::models::gpt::GptConfig;
///
/// let device = Device::flex();
/// let model = GptConfig::new(65).with_layers(2).init(&device);
/// let mut cache = KeyValueCache::new();
/// let prompt = Tensor::<2, Int>::from_data([[1, 2, 3]], &device);
/// assert_eq!(model.forward_cached(prompt, &mut cache).dims(), [1, 3, 65]);
/// let next = Tensor::<2, Int>::from_data([[4]], &device);
/// assert_eq!(model.forward_cached(next, &mut cache).dims(), [1, 1, 65]);
/// assert_eq!(cache.tokens(), 4);
/// ```
pub trait Decoder:
    Module + Display + Sync + TensorParallel<Input = Tensor<2, Int>, Output = Tensor<3>>
{
    /// Scores of the token that follows each of `tokens`, which are after those of `cache`. Their keys and values
    /// are added to the cache, so that no token of a text is computed twice.
    ///
    /// # Shapes
    /// - tokens: `[B, T]`; all calls with one cache have the same `B`
    /// - output: logits `[B, T, V]`
    ///
    /// # Panics
    /// Panics if the text with the tokens of the cache is longer than the model's context.
    fn forward_cached(&self, tokens: Tensor<2, Int>, cache: &mut KeyValueCache) -> Tensor<3>;
}

/// The numbers of a [`Decoder`].
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use burn::prelude::*;
/// use everburn::models::decoder::DecoderConfig;
/// use everburn::models::gpt::GptConfig;
///
/// let config = GptConfig::new(65).with_layers(2).with_context(32);
/// config.check().unwrap();
/// assert_eq!((config.context(), config.dropout()), (32, 0.0));
/// let _model = config.build(&Device::flex());
/// ```
pub trait DecoderConfig: Config + Clone + PartialEq + Send + Sync + 'static {
    /// The model of these numbers.
    type Model: Decoder;

    /// The section of a configuration file that has them.
    const SECTION: &'static str;

    /// Checks that the model can be built.
    ///
    /// # Errors
    /// [`ModelError`] naming the first number that does not fit.
    fn check(&self) -> Result<(), ModelError>;

    /// The model with its first weights on `device`.
    ///
    /// # Panics
    /// Panics if [`check`](Self::check) refuses the numbers.
    fn build(&self, device: &Device) -> Self::Model;

    /// The longest text that the model sees at once, in tokens.
    fn context(&self) -> usize;

    /// The share of activations that dropout sets to zero while training.
    fn dropout(&self) -> f64 {
        0.0
    }
}

/// The keys and values of the tokens that a [`Decoder`] has seen of a text, for each of its layers.
///
/// It holds `2 * layers * B * tokens * kv_heads * head_width` numbers.
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use everburn::models::decoder::KeyValueCache;
///
/// assert_eq!(KeyValueCache::new().tokens(), 0);
/// ```
#[derive(Debug, Clone, Default)]
pub struct KeyValueCache {
    layers: Vec<LayerCache>,
}

impl KeyValueCache {
    /// A cache of no tokens.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many tokens it has.
    pub fn tokens(&self) -> usize {
        self.layers.first().map_or(0, LayerCache::tokens)
    }

    /// The caches of `count` layers, in order.
    pub(crate) fn layers(&mut self, count: usize) -> impl Iterator<Item = &mut LayerCache> {
        self.layers.resize_with(count, LayerCache::default);
        self.layers.iter_mut()
    }
}

/// The keys and values of one layer, each `[B, kv_heads, T, head_width]`.
#[derive(Debug, Clone, Default)]
pub(crate) struct LayerCache(Option<[Tensor<4>; 2]>);

impl LayerCache {
    /// How many tokens it has.
    pub(crate) fn tokens(&self) -> usize {
        self.0.as_ref().map_or(0, |[keys, _]| keys.dims()[2])
    }

    /// All keys and values, with these as the newest.
    fn extend(&mut self, newest: [Tensor<4>; 2]) -> [Tensor<4>; 2] {
        let all = match self.0.take() {
            None => newest,
            Some([keys, values]) => {
                let [newest_keys, newest_values] = newest;
                [
                    Tensor::cat(vec![keys, newest_keys], 2),
                    Tensor::cat(vec![values, newest_values], 2),
                ]
            }
        };
        self.0.insert(all).clone()
    }
}
