//! The feed-forward net after an attention.

use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay};
use burn::nn::Initializer;
use burn::nn::activation::{Activation, ActivationConfig};
use burn::prelude::*;

use crate::layers::{Dropout, DropoutConfig, gelu, relu};
use crate::linear::{Linear, LinearConfig};

/// Configuration of [`PositionWiseFeedForward`]: the same as
/// [`burn::nn::transformer::PositionWiseFeedForwardConfig`].
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// let config = everburn::nn::transformer::PositionWiseFeedForwardConfig::new(8, 32);
/// let net = config.with_dropout(0.0).init(&burn::prelude::Device::flex());
/// assert_eq!(net.linear_inner.weight.dims(), [8, 32]);
/// ```
#[derive(Config, Debug)]
pub struct PositionWiseFeedForwardConfig {
    /// The size of a token's vector (`E`).
    pub d_model: usize,
    /// The size of the space between the two layers.
    pub d_ff: usize,
    /// The share of values that become zero while training.
    #[config(default = 0.1)]
    pub dropout: f64,
    /// How the parameters are drawn.
    #[config(default = "Initializer::KaimingUniform{gain:1.0/f64::sqrt(3.0), fan_out_only:false}")]
    pub initializer: Initializer,
    /// What is between the two layers.
    #[config(default = "ActivationConfig::Gelu")]
    pub activation: ActivationConfig,
}

impl PositionWiseFeedForwardConfig {
    /// Initialises the module on `device`.
    pub fn init(&self, device: &Device) -> PositionWiseFeedForward {
        let linear = |inputs, outputs| {
            LinearConfig::new(inputs, outputs)
                .with_initializer(self.initializer.clone())
                .init(device)
        };
        PositionWiseFeedForward {
            linear_inner: linear(self.d_model, self.d_ff),
            linear_outer: linear(self.d_ff, self.d_model),
            dropout: DropoutConfig::new(self.dropout).init(),
            activation: self.activation.init(device),
        }
    }
}

/// Burn's [`burn::nn::transformer::PositionWiseFeedForward`], made of this crate's layers: the same parameters, paths
/// and records.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::transformer::PositionWiseFeedForwardConfig;
///
/// let device = Device::flex();
/// let net = PositionWiseFeedForwardConfig::new(8, 32).init(&device);
/// assert_eq!(net.forward(Tensor::<3>::ones([2, 5, 8], &device)).dims(), [2, 5, 8]);
/// ```
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct PositionWiseFeedForward {
    /// From `d_model` to `d_ff` features.
    pub linear_inner: Linear,
    /// From `d_ff` to `d_model` features.
    pub linear_outer: Linear,
    /// After the activation.
    pub dropout: Dropout,
    /// Between the layers; as in Burn, parameters of its own are in no record.
    #[module(skip)]
    pub activation: Activation,
}

impl ModuleDisplay for PositionWiseFeedForward {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new()
            .with_new_line_after_attribute(false)
            .optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [d_model, d_ff] = self.linear_inner.weight.shape().dims();
        content
            .add("d_model", &d_model)
            .add("d_ff", &d_ff)
            .add("prob", &self.dropout.prob)
            .optional()
    }
}

impl PositionWiseFeedForward {
    /// The second layer's output.
    ///
    /// # Shapes
    /// - input, output: `[.., d_model]`
    ///
    /// # Panics
    /// Panics if the last dimension of the input is not `d_model`.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let inner = self.linear_inner.forward(input);
        let active = match &self.activation {
            Activation::Gelu(exact) if !exact.approximate => gelu(inner),
            Activation::Relu(_) => relu(inner),
            other => other.forward(inner),
        };
        self.linear_outer.forward(self.dropout.forward(active))
    }
}
