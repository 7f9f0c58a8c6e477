//! `gpt`: a decoder of text, as GPT-2 (Radford et al. 2019).
//!
//! Tokens become vectors (`wte`), to which learned positions (`wpe`) are added; a row of layers, each
//! attention and a feed-forward net on normalised inputs beside a residual path, works on them; and
//! the same `wte` turns the last layer's vectors into scores of the next token (Press and Wolf 2017).
//! With [`Positions::Rotary`] there is no `wpe`: queries and keys are turned by their positions
//! (Su et al. 2021).

mod attention;
mod layer;

use burn::module::{Module, Param};
use burn::prelude::*;
use burn::tensor::Int;
use everburn_nn::tensor::module::embedding;
use everburn_nn::{
    Blocks, Dropout, DropoutConfig, Embedding, EmbeddingConfig, InBlocks, Initializer, LayerNorm,
    LayerNormConfig, TensorParallel, TensorRule, cast_for_matmul, split_backward,
};
use serde::{Deserialize, Serialize};

use crate::decoder::{Decoder, DecoderConfig, KeyValueCache};
use crate::error::{ModelError, check_sizes};
use attention::Attention;
pub use layer::Layer;
use layer::{FeedForward, Linear, LinearConfig};

/// How a decoder encodes positions.
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use everburn::models::gpt::{GptConfig, Positions};
///
/// let config = GptConfig::new(65).with_positions(Positions::Rotary);
/// assert_ne!(config.positions, Positions::default());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Positions {
    /// A vector for each position, learned with the rest.
    #[default]
    Learned,
    /// Queries and keys are turned by an angle that grows with the position (Su et al. 2021).
    Rotary,
}

/// Between the two products of a feed-forward net: the Gaussian error linear unit.
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use everburn::models::gpt::{Activation, GptConfig};
///
/// // As in OpenAI's GPT-2.
/// let config = GptConfig::new(50_257).with_activation(Activation::GeluTanh);
/// assert_ne!(config.activation, Activation::default());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activation {
    /// The exact function.
    #[default]
    Gelu,
    /// Its approximation by the hyperbolic tangent, which GPT-2 was trained with.
    GeluTanh,
}

/// Configuration of [`Gpt`].
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use burn::prelude::*;
/// use everburn::models::gpt::GptConfig;
///
/// let config = GptConfig::new(65).with_width(32).with_heads(2).with_layers(2);
/// let model = config.init(&Device::flex());
/// let tokens = Tensor::<2, Int>::zeros([1, 3], &Device::flex());
/// assert_eq!(model.forward(tokens).dims(), [1, 3, 65]);
/// ```
#[derive(Config, Debug, PartialEq)]
pub struct GptConfig {
    /// How many different tokens there are (`V`).
    pub vocabulary: usize,
    /// The longest text that the model sees at once, in tokens.
    #[config(default = 64)]
    pub context: usize,
    /// The length of a token's vector (`E`).
    #[config(default = 128)]
    pub width: usize,
    /// How many layers there are.
    #[config(default = 4)]
    pub layers: usize,
    /// How many heads the attention of a layer has; they divide the width among them.
    #[config(default = 4)]
    pub heads: usize,
    /// The share of activations that dropout sets to zero while training.
    #[config(default = 0.0)]
    pub dropout: f64,
    /// How the model encodes positions.
    #[config(default = "Positions::Learned")]
    pub positions: Positions,
    /// The standard deviation of the initial weights. GPT-2's suits a width of 768; a narrow model
    /// learns faster from more, about the inverse root of its width.
    #[config(default = 0.02)]
    pub deviation: f64,
    /// What is between the two products of a feed-forward net.
    #[config(default = "Activation::Gelu")]
    pub activation: Activation,
}

/// A decoder.
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use burn::prelude::*;
/// use burn::tensor::Int;
/// use everburn::models::gpt::GptConfig;
///
/// let device = Device::flex();
/// let model = GptConfig::new(65).with_layers(2).init(&device);
/// let tokens = Tensor::<2, Int>::from_data([[1, 2, 3]], &device);
/// assert_eq!(model.forward(tokens).dims(), [1, 3, 65]);
/// ```
#[derive(Module, Debug)]
pub struct Gpt {
    wte: Embedding,
    /// Absent where positions are rotary.
    wpe: Option<Embedding>,
    dropout: Dropout,
    layers: Vec<Layer>,
    norm: LayerNorm,
    context: usize,
}

impl GptConfig {
    /// A decoder of 0.8 million parameters that learns to spell in minutes on a processor.
    pub fn nano(vocabulary: usize) -> Self {
        Self::new(vocabulary)
            .with_context(64)
            .with_width(128)
            .with_layers(4)
            .with_heads(4)
            .with_positions(Positions::Rotary)
            .with_deviation(0.08)
    }

    /// The 124 million parameters of the smallest GPT-2.
    pub fn gpt2_124m() -> Self {
        Self::new(50_257)
            .with_context(1024)
            .with_width(768)
            .with_layers(12)
            .with_heads(12)
    }

    /// Checks that the model can be built.
    ///
    /// # Errors
    /// [`ModelError`] naming the first number that does not fit.
    pub fn check(&self) -> Result<(), ModelError> {
        let refuse = |message: String| Err(ModelError(message));
        check_sizes(
            self.layers,
            &[
                ("vocabulary", self.vocabulary),
                ("context", self.context),
                ("width", self.width),
                ("number of heads", self.heads),
            ],
        )?;
        if !self.width.is_multiple_of(self.heads) {
            return refuse(format!(
                "{} heads cannot share a width of {}: it must be a multiple",
                self.heads, self.width
            ));
        }
        if self.positions == Positions::Rotary && !(self.width / self.heads).is_multiple_of(2) {
            return refuse(format!(
                "rotary positions turn pairs of numbers: the width of a head, {}, must be even",
                self.width / self.heads
            ));
        }
        if !(self.deviation.is_finite() && self.deviation >= 0.0) {
            return refuse("the deviation of the weights must be a number from 0 on".to_string());
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return refuse("the dropout must be at least 0 and below 1".to_string());
        }
        Ok(())
    }

    /// Initialises the model on `device` as GPT-2 was: all weights from a normal distribution with
    /// the configured deviation, those that end in the residual path smaller by the root of how many
    /// of them there are, so that their sum does not grow with the depth.
    ///
    /// # Panics
    /// Panics if [`check`](Self::check) refuses the configuration.
    pub fn init(&self, device: &Device) -> Gpt {
        if let Err(error) = self.check() {
            panic!("{error}");
        }
        let embedding = |rows: usize| {
            EmbeddingConfig::new(rows, self.width)
                .with_initializer(normal(self.deviation))
                .init(device)
        };
        let learned = self.positions == Positions::Learned;
        Gpt {
            wte: embedding(self.vocabulary),
            wpe: learned.then(|| embedding(self.context)),
            dropout: DropoutConfig::new(self.dropout).init(),
            layers: (0..self.layers).map(|_| self.layer(device)).collect(),
            norm: LayerNormConfig::new(self.width).init(device),
            context: self.context,
        }
    }

    fn layer(&self, device: &Device) -> Layer {
        let (width, wide) = (self.width, 4 * self.width);
        let deviation = self.deviation;
        let into_residual = deviation / (2.0 * self.layers as f64).sqrt();
        let norm = || LayerNormConfig::new(width).init(device);
        let dropout = || DropoutConfig::new(self.dropout).init();
        let attention = Attention {
            q: linear(width, width, deviation, device),
            k: linear(width, width, deviation, device),
            v: linear(width, width, deviation, device),
            out: linear(width, width, into_residual, device),
            dropout: dropout(),
            head_width: width / self.heads,
            rotary: self.positions == Positions::Rotary,
        };
        let feed_forward = FeedForward {
            up: linear(width, wide, deviation, device),
            down: linear(wide, width, into_residual, device),
            approximate: self.activation == Activation::GeluTanh,
        };
        Layer {
            norm1: norm(),
            attention,
            norm2: norm(),
            feed_forward,
            dropout: dropout(),
        }
    }
}

fn normal(std: f64) -> Initializer {
    Initializer::Normal { mean: 0.0, std }
}

/// A linear layer with weights of this standard deviation and biases of zero.
fn linear(inputs: usize, outputs: usize, std: f64, device: &Device) -> Linear {
    let config = LinearConfig::new(inputs, outputs).with_initializer(normal(std));
    let mut linear = config.init(device);
    linear.bias = Some(Initializer::Zeros.init([outputs], device));
    linear
}

impl Gpt {
    /// Scores of the token that follows each token of a text.
    ///
    /// # Shapes
    /// - tokens: `[B, T]`, each below the vocabulary; `T` at most the context
    /// - output: logits `[B, T, V]`
    ///
    /// # Panics
    /// Panics if the text is longer than the context.
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        self.blocks().forward(self, tokens)
    }

    /// The weights that tokens and scores share, `[V, E]`.
    pub fn token_embedding(&self) -> &Param<Tensor<2>> {
        &self.wte.weight
    }

    /// Vectors of tokens where they stand, after `start` others.
    ///
    /// # Shapes
    /// - tokens: `[B, T]`
    /// - output: `[B, T, E]`
    fn embed(&self, tokens: Tensor<2, Int>, start: usize) -> Tensor<3> {
        let end = start + tokens.dims()[1];
        assert!(
            end <= self.context,
            "a text of {end} tokens is longer than the model's context of {}",
            self.context
        );
        // The head uses it too, and may defer its part of the gradient.
        let vectors = embedding(split_backward::parameter(self.wte.weight.val()), tokens);
        let vectors = match &self.wpe {
            None => vectors,
            Some(positions) => {
                let positions = positions.weight.val().slice(start..end); // [T, E]
                vectors + positions.unsqueeze()
            }
        };
        self.dropout.forward(cast_for_matmul(vectors))
    }

    /// Scores of all tokens: how alike a vector is to each token's.
    ///
    /// # Shapes
    /// - x: `[B, T, E]`
    /// - output: `[B, T, V]`
    fn score(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, length, width] = x.dims();
        let x = self.norm.forward(x).reshape([batch * length, width]);
        let tokens = self.wte.weight.val(); // [V, E]
        let vocabulary = tokens.dims()[0];
        everburn_nn::tensor::module::linear(x, tokens.transpose(), None)
            .reshape([batch, length, vocabulary])
    }
}

impl DecoderConfig for GptConfig {
    type Model = Gpt;

    const SECTION: &'static str = "gpt";

    fn check(&self) -> Result<(), ModelError> {
        self.check()
    }

    fn build(&self, device: &Device) -> Gpt {
        self.init(device)
    }

    fn context(&self) -> usize {
        self.context
    }

    fn dropout(&self) -> f64 {
        self.dropout
    }
}

impl Decoder for Gpt {
    fn forward_cached(&self, tokens: Tensor<2, Int>, cache: &mut KeyValueCache) -> Tensor<3> {
        let embedded = self.embed(tokens, cache.tokens());
        let layers = self.layers.iter().zip(cache.layers(self.layers.len()));
        let x = layers.fold(embedded, |x, (layer, cache)| layer.forward(x, Some(cache)));
        self.score(x)
    }
}

/// Each rank has some heads of each attention, and a part of each feed-forward net's width
/// (Shoeybi et al. 2019, section 3). What tokens and scores share is whole on all ranks.
impl TensorParallel for Gpt {
    fn tensor_rules(&self) -> Vec<TensorRule> {
        let head = self
            .layers
            .first()
            .map_or(1, |layer| layer.attention.head_width);
        let heads = ["q", "k", "v"]
            .map(|name| TensorRule::column(format!("layers.*.attention.{name}")).in_units_of(head));
        let others = [
            TensorRule::row("layers.*.attention.out").in_units_of(head),
            TensorRule::column("layers.*.feed_forward.up"),
            TensorRule::row("layers.*.feed_forward.down"),
        ];
        heads.into_iter().chain(others).collect()
    }
}

impl InBlocks for Gpt {
    type Input = Tensor<2, Int>;
    type Output = Tensor<3>;

    fn blocks(&self) -> Blocks<Self, Tensor<2, Int>, Tensor<3>> {
        let mut embedding = vec!["wte"];
        embedding.extend(self.wpe.as_ref().map(|_| "wpe"));
        Blocks::first("embedding", embedding, |gpt: &Self, tokens| {
            gpt.embed(tokens, 0)
        })
        .each("layers", self.layers.len(), |gpt, i, x| {
            gpt.layers[i].forward(x, None)
        })
        .then("head", ["norm", "wte"], Self::score)
    }
}

#[cfg(test)]
mod tests;
