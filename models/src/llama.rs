//! `llama`: a decoder of text, as Llama (Touvron et al. 2023), and with other numbers as Mistral and Qwen 2.
//!
//! It differs from [`gpt`](crate::gpt) in its norms, which only divide by the root mean square (Zhang and Sennrich
//! 2019), its gated feed-forward net (SwiGLU, Shazeer 2020), its rotary positions (Su et al. 2021), and heads of keys
//! and values that several queries share (Ainslie et al. 2023).

mod layer;

use burn::module::{Module, Param};
use burn::prelude::*;
use burn::tensor::Int;
use everburn_nn::tensor::module::embedding;
use everburn_nn::{
    Blocks, Embedding, EmbeddingConfig, InBlocks, Initializer, Linear, LinearConfig, RmsNorm,
    RmsNormConfig, TensorParallel, TensorRule, cast_for_matmul, in_f32, split_backward,
};

use crate::decoder::{Decoder, DecoderConfig, KeyValueCache, RotaryScaling};
use crate::error::{ModelError, check_sizes};
use layer::Layer;

/// The standard deviation of the first weights.
const DEVIATION: f64 = 0.02;

/// Configuration of [`Llama`].
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use burn::prelude::*;
/// use everburn::models::decoder::DecoderConfig;
/// use everburn::models::llama::LlamaConfig;
///
/// let config = LlamaConfig::new(65).with_width(32).with_heads(4).with_kv_heads(2);
/// let config = config.with_layers(2).with_feed_forward(64);
/// config.check().unwrap();
/// let model = config.init(&Device::flex());
/// let tokens = Tensor::<2, Int>::zeros([1, 3], &Device::flex());
/// assert_eq!(model.forward(tokens).dims(), [1, 3, 65]);
/// ```
#[derive(Config, Debug, PartialEq)]
pub struct LlamaConfig {
    /// How many different tokens there are (`V`).
    pub vocabulary: usize,
    /// The longest text that the model sees at once, in tokens.
    #[config(default = 2048)]
    pub context: usize,
    /// The length of a token's vector (`E`).
    #[config(default = 2048)]
    pub width: usize,
    /// How many layers there are.
    #[config(default = 16)]
    pub layers: usize,
    /// How many heads of queries a layer has.
    #[config(default = 32)]
    pub heads: usize,
    /// How many heads of keys and values a layer has; each serves `heads / kv_heads` queries.
    #[config(default = 8)]
    pub kv_heads: usize,
    /// The length of a head's vectors; the heads share the width where it is absent.
    pub head_width: Option<usize>,
    /// The width between the products of a feed-forward net.
    #[config(default = 8192)]
    pub feed_forward: usize,
    /// What norms add to the mean of squares, so that nothing is divided by zero.
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// How far the angles of rotary positions fall from the first pair of numbers of a head to the last.
    #[config(default = 500_000.0)]
    pub rotary_base: f64,
    /// How these angles change for long texts.
    #[config(default = "RotaryScaling::None")]
    pub rotary_scaling: RotaryScaling,
    /// Whether queries, keys and values have biases, as in Qwen 2.
    #[config(default = false)]
    pub biases: bool,
    /// Whether the vectors of tokens also score them, in place of weights of the head's own.
    #[config(default = true)]
    pub tied: bool,
}

/// A decoder with the parameter names of Hugging Face's `LlamaForCausalLM`, `MistralForCausalLM` and
/// `Qwen2ForCausalLM`, so that their weights load: `model.embed_tokens`, `model.layers.0.self_attn.q_proj`, `lm_head`.
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use burn::prelude::*;
/// use burn::tensor::Int;
/// use everburn::models::llama::LlamaConfig;
///
/// let device = Device::flex();
/// let config = LlamaConfig::new(65).with_width(32).with_layers(2).with_heads(4).with_kv_heads(2);
/// let model = config.with_feed_forward(64).init(&device);
/// let tokens = Tensor::<2, Int>::from_data([[1, 2, 3]], &device);
/// assert_eq!(model.forward(tokens).dims(), [1, 3, 65]);
/// ```
#[derive(Module, Debug)]
pub struct Llama {
    model: Trunk,
    /// Absent where the vectors of tokens score them.
    lm_head: Option<Linear>,
    context: usize,
}

/// All but the head.
#[derive(Module, Debug)]
struct Trunk {
    embed_tokens: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
}

impl LlamaConfig {
    /// The 1.24 billion parameters of Llama 3.2 1B.
    pub fn llama3_1b() -> Self {
        Self::new(128_256)
            .with_context(131_072)
            .with_head_width(Some(64))
            .with_rotary_scaling(RotaryScaling::Llama3 {
                factor: 32.0,
                low_frequency: 1.0,
                high_frequency: 4.0,
                original_context: 8192,
            })
    }

    /// The length of a head's vectors.
    pub fn width_of_head(&self) -> usize {
        self.head_width.unwrap_or(self.width / self.heads)
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
                ("number of heads of keys and values", self.kv_heads),
                ("width of a head", self.head_width.unwrap_or(1)),
                ("width of the feed-forward net", self.feed_forward),
            ],
        )?;
        if self.head_width.is_none() && !self.width.is_multiple_of(self.heads) {
            return refuse(format!(
                "{} heads cannot share a width of {}: it must be a multiple, or head_width be given",
                self.heads, self.width
            ));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return refuse(format!(
                "{} heads of keys and values cannot serve {} heads of queries: these must be a multiple",
                self.kv_heads, self.heads
            ));
        }
        if !self.width_of_head().is_multiple_of(2) {
            return refuse(format!(
                "rotary positions turn pairs of numbers: the width of a head, {}, must be even",
                self.width_of_head()
            ));
        }
        let positive = |x: f64| x.is_finite() && x > 0.0;
        if !(positive(self.epsilon) && positive(self.rotary_base)) {
            return refuse("epsilon and rotary_base must be numbers above 0".to_string());
        }
        match self.rotary_scaling {
            scaling if scaling.is_sound() => Ok(()),
            scaling => refuse(format!("rotary positions cannot be scaled by {scaling:?}")),
        }
    }

    /// Initialises the model on `device`: all weights from a normal distribution with a deviation of 0.02, biases of 0.
    ///
    /// # Panics
    /// Panics if [`check`](Self::check) refuses the configuration.
    pub fn init(&self, device: &Device) -> Llama {
        if let Err(error) = self.check() {
            panic!("{error}");
        }
        let head = || linear(self.width, self.vocabulary, device);
        Llama {
            model: Trunk {
                embed_tokens: EmbeddingConfig::new(self.vocabulary, self.width)
                    .with_initializer(normal())
                    .init(device),
                layers: (0..self.layers).map(|_| Layer::new(self, device)).collect(),
                norm: self.norm(device),
            },
            lm_head: (!self.tied).then(head),
            context: self.context,
        }
    }

    fn norm(&self, device: &Device) -> RmsNorm {
        RmsNormConfig::new(self.width)
            .with_epsilon(self.epsilon)
            .init(device)
    }
}

fn normal() -> Initializer {
    Initializer::Normal {
        mean: 0.0,
        std: DEVIATION,
    }
}

/// A linear layer without biases.
fn linear(inputs: usize, outputs: usize, device: &Device) -> Linear {
    LinearConfig::new(inputs, outputs)
        .with_bias(false)
        .with_initializer(normal())
        .init(device)
}

/// What `norm` makes of vectors, of half precision too.
///
/// # Shapes
/// - x, output: `[B, T, E]`
fn normalised(norm: &RmsNorm, x: Tensor<3>) -> Tensor<3> {
    in_f32(x, |x| norm.forward(x))
}

impl Llama {
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

    /// Vectors of tokens that are after `start` others.
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
        // A tied head uses it too, and may defer its part of the gradient.
        let weights = split_backward::parameter(self.model.embed_tokens.weight.val());
        cast_for_matmul(embedding(weights, tokens))
    }

    /// Scores of all tokens.
    ///
    /// # Shapes
    /// - x: `[B, T, E]`
    /// - output: `[B, T, V]`
    fn score(&self, x: Tensor<3>) -> Tensor<3> {
        let [batch, length, width] = x.dims();
        let x = normalised(&self.model.norm, x);
        if let Some(head) = &self.lm_head {
            return head.forward(x);
        }
        let tokens = self.token_embedding().val(); // [V, E]
        let vocabulary = tokens.dims()[0];
        let x = x.reshape([batch * length, width]);
        everburn_nn::tensor::module::linear(x, tokens.transpose(), None)
            .reshape([batch, length, vocabulary])
    }

    /// The vectors of tokens, `[V, E]`.
    pub fn token_embedding(&self) -> &Param<Tensor<2>> {
        &self.model.embed_tokens.weight
    }
}

impl DecoderConfig for LlamaConfig {
    type Model = Llama;

    const SECTION: &'static str = "llama";

    fn check(&self) -> Result<(), ModelError> {
        self.check()
    }

    fn build(&self, device: &Device) -> Llama {
        self.init(device)
    }

    fn context(&self) -> usize {
        self.context
    }
}

impl Decoder for Llama {
    fn forward_cached(&self, tokens: Tensor<2, Int>, cache: &mut KeyValueCache) -> Tensor<3> {
        let embedded = self.embed(tokens, cache.tokens());
        let own = &self.model.layers;
        let layers = own.iter().zip(cache.layers(own.len()));
        let x = layers.fold(embedded, |x, (layer, cache)| layer.forward(x, Some(cache)));
        self.score(x)
    }
}

/// Each rank has some heads of keys and values with all queries that they serve, and a part of each feed-forward net's
/// width (Shoeybi et al. 2019, section 3). Vectors of tokens and the head are whole on all ranks.
impl TensorParallel for Llama {
    fn tensor_rules(&self) -> Vec<TensorRule> {
        let first = self.model.layers.first();
        let [group, head] = first.map_or([1, 1], Layer::units);
        let path = |name: &str| format!("model.layers.*.{name}");
        vec![
            TensorRule::column(path("self_attn.q_proj")).in_units_of(group),
            TensorRule::column(path("self_attn.k_proj")).in_units_of(head),
            TensorRule::column(path("self_attn.v_proj")).in_units_of(head),
            TensorRule::row(path("self_attn.o_proj")).in_units_of(group),
            TensorRule::column(path("mlp.gate_proj")),
            TensorRule::column(path("mlp.up_proj")),
            TensorRule::row(path("mlp.down_proj")),
        ]
    }
}

impl InBlocks for Llama {
    type Input = Tensor<2, Int>;
    type Output = Tensor<3>;

    fn blocks(&self) -> Blocks<Self, Tensor<2, Int>, Tensor<3>> {
        let scores = match &self.lm_head {
            Some(_) => "lm_head",
            None => "model.embed_tokens",
        };
        Blocks::first(
            "embedding",
            ["model.embed_tokens"],
            |llama: &Self, tokens| llama.embed(tokens, 0),
        )
        .each("model.layers", self.model.layers.len(), |llama, i, x| {
            llama.model.layers[i].forward(x, None)
        })
        .then("head", ["model.norm", scores], Self::score)
    }
}
