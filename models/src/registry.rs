//! Models by name.
//!
//! A model is a type, a name is not: [`visit`] turns the one into the other by calling a
//! [`ModelVisitor`] with the concrete module's constructor. Models of images and models of text take
//! and yield different tensors, so a visitor has a method for each.

use std::fmt::Display;

use burn::prelude::*;
use burn::tensor::Int;
use everburn_nn::TensorParallel;
use serde::{Deserialize, Serialize};

use crate::gpt::{GptConfig, GptError, Positions};
use crate::mlp::MlpConfig;
use crate::mnist::MnistConfig;
use crate::mnist_bn::MnistBnConfig;
use crate::resnet50::{ResNet50, ResNet50Config, Stem};
use crate::two_part_resnet::TwoPartResNetConfig;

/// The numbers in which a model takes its pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PixelRange {
    /// `0.0..=1.0`
    Unit,
    /// `0.0..=255.0`, as they lie in the file.
    Byte,
}

/// What a model reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelInput {
    /// Images `[B, 1, 28, 28]`; the model yields scores of classes `[B, K]`.
    Images(PixelRange),
    /// Tokens `[B, T]`; the model yields scores of each next token, `[B, T, V]`.
    Text,
}

/// A line of the registry: what is known of a model before it is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelInfo {
    /// The name by which users ask for the model.
    pub name: &'static str,
    /// What the model is, in one line.
    pub summary: &'static str,
    /// What the model reads.
    pub input: ModelInput,
}

/// The names and summaries of all models, in the order in which they are listed.
pub const MODELS: [ModelInfo; 7] = [
    ModelInfo {
        name: "mnist",
        summary: "two convolutions and two linear layers",
        input: ModelInput::Images(PixelRange::Unit),
    },
    ModelInfo {
        name: "mnist-bn",
        summary: "three convolutions with batch norm, dropout",
        input: ModelInput::Images(PixelRange::Byte),
    },
    ModelInfo {
        name: "mlp",
        summary: "a perceptron with hidden layers of 256 and 128",
        input: ModelInput::Images(PixelRange::Unit),
    },
    ModelInfo {
        name: "resnet50",
        summary: "the residual net of 50 layers, with a stem for 28 x 28 pixels",
        input: ModelInput::Images(PixelRange::Unit),
    },
    ModelInfo {
        name: "two-part-resnet",
        summary: "the stem of a ResNet and the next block, to be cut in two",
        input: ModelInput::Images(PixelRange::Unit),
    },
    ModelInfo {
        name: "gpt-nano",
        summary: "a decoder of text: 4 layers of width 128, context 64",
        input: ModelInput::Text,
    },
    ModelInfo {
        name: "gpt2-124m",
        summary: "the smallest GPT-2: 12 layers of width 768, context 1024",
        input: ModelInput::Text,
    },
];

/// The line of the model of this name.
pub fn info(name: &str) -> Option<ModelInfo> {
    MODELS.into_iter().find(|info| info.name == name)
}

/// What models are built with, where that is not their preset.
///
/// ```
/// use everburn_models::gpt::GptConfig;
/// use everburn_models::registry::{GptOptions, ModelOptions};
///
/// let options = ModelOptions { gpt: GptOptions { vocabulary: Some(256), ..Default::default() } };
/// let config = options.gpt.config("gpt2-124m").unwrap();
/// assert_eq!(config, GptConfig { vocabulary: 256, ..GptConfig::gpt2_124m() });
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModelOptions {
    /// Of the models of text.
    pub gpt: GptOptions,
}

/// The numbers of a [`GptConfig`] that are not the preset's.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GptOptions {
    /// How many different tokens there are; the data decide it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<usize>,
    /// The longest text that the model sees at once, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<usize>,
    /// The length of a token's vector.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<usize>,
    /// How many layers there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<usize>,
    /// How many heads the attention of a layer has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heads: Option<usize>,
    /// The share of activations that dropout sets to zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropout: Option<f64>,
    /// How the model knows positions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub positions: Option<Positions>,
    /// The standard deviation of the initial weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deviation: Option<f64>,
}

impl GptOptions {
    /// The configuration of the model of this name, or `None` if it is no model of text. It may be
    /// one that cannot be built: see [`GptConfig::check`].
    pub fn config(&self, name: &str) -> Option<GptConfig> {
        let preset = match name {
            "gpt-nano" => GptConfig::nano(TINYSHAKESPEARE_CHARACTERS),
            "gpt2-124m" => GptConfig::gpt2_124m(),
            _ => return None,
        };
        Some(GptConfig {
            vocabulary: self.vocabulary.unwrap_or(preset.vocabulary),
            context: self.context.unwrap_or(preset.context),
            width: self.width.unwrap_or(preset.width),
            layers: self.layers.unwrap_or(preset.layers),
            heads: self.heads.unwrap_or(preset.heads),
            dropout: self.dropout.unwrap_or(preset.dropout),
            positions: self.positions.unwrap_or(preset.positions),
            deviation: self.deviation.unwrap_or(preset.deviation),
        })
    }
}

/// How many different characters tinyshakespeare has: the vocabulary of `gpt-nano` before there are
/// data to decide it.
const TINYSHAKESPEARE_CHARACTERS: usize = 65;

/// How a model of type `M` is built.
pub type Init<M> = Box<dyn Fn(&Device) -> M + Send + Sync>;

/// A model that turns images `[B, 1, 28, 28]` into logits `[B, K]`.
pub trait ImageModel:
    TensorParallel<Input = Tensor<4>, Output = Tensor<2>> + Display + Sync + 'static
{
}

impl<M> ImageModel for M where
    M: TensorParallel<Input = Tensor<4>, Output = Tensor<2>> + Display + Sync + 'static
{
}

/// A model that turns tokens `[B, T]` into logits `[B, T, V]` of each next token.
pub trait TextModel:
    TensorParallel<Input = Tensor<2, Int>, Output = Tensor<3>> + Display + Sync + 'static
{
}

impl<M> TextModel for M where
    M: TensorParallel<Input = Tensor<2, Int>, Output = Tensor<3>> + Display + Sync + 'static
{
}

/// Something to be done with a model whose type is known by name only.
pub trait ModelVisitor {
    /// What the visit yields.
    type Output;

    /// Is called for a model of images with the numbers in which it takes pixels and its constructor.
    fn visit_images<M: ImageModel>(self, pixels: PixelRange, init: Init<M>) -> Self::Output;

    /// Is called for a model of text with its configuration and its constructor.
    fn visit_text<M: TextModel>(self, config: GptConfig, init: Init<M>) -> Self::Output;
}

/// Calls `visitor` with the model of this name, or returns `None` if there is none.
///
/// ```
/// use burn::prelude::*;
/// use everburn_models::gpt::GptConfig;
/// use everburn_models::registry::{
///     ImageModel, Init, ModelOptions, ModelVisitor, PixelRange, TextModel, visit,
/// };
///
/// struct CountParameters;
///
/// impl ModelVisitor for CountParameters {
///     type Output = usize;
///     fn visit_images<M: ImageModel>(self, _pixels: PixelRange, init: Init<M>) -> usize {
///         init(&Device::flex()).num_params()
///     }
///     fn visit_text<M: TextModel>(self, _config: GptConfig, init: Init<M>) -> usize {
///         init(&Device::flex()).num_params()
///     }
/// }
///
/// let options = ModelOptions::default();
/// assert_eq!(visit("mnist", &options, CountParameters), Ok(Some(21_840)));
/// assert_eq!(visit("no-such-model", &options, CountParameters), Ok(None));
/// ```
///
/// # Errors
/// [`GptError`] if a model of text cannot be built with these options.
pub fn visit<V: ModelVisitor>(
    name: &str,
    options: &ModelOptions,
    visitor: V,
) -> Result<Option<V::Output>, GptError> {
    let Some(info) = info(name) else {
        return Ok(None);
    };
    if let Some(config) = options.gpt.config(name) {
        config.check()?;
        let init = config.clone();
        return Ok(Some(
            visitor.visit_text(config, Box::new(move |device| init.init(device))),
        ));
    }
    let ModelInput::Images(pixels) = info.input else {
        return Ok(None);
    };
    Ok(match name {
        "mnist" => Some(visitor.visit_images(pixels, Box::new(|d| MnistConfig::new().init(d)))),
        "mnist-bn" => {
            Some(visitor.visit_images(pixels, Box::new(|d| MnistBnConfig::new().init(d))))
        }
        "mlp" => Some(visitor.visit_images(pixels, Box::new(|d| MlpConfig::new().init(d)))),
        "resnet50" => Some(visitor.visit_images(pixels, Box::new(mnist_resnet50))),
        "two-part-resnet" => {
            Some(visitor.visit_images(pixels, Box::new(|d| TwoPartResNetConfig::new().init(d))))
        }
        _ => None,
    })
}

fn mnist_resnet50(device: &Device) -> ResNet50 {
    let config = ResNet50Config::new().with_stem(Stem::Mnist);
    config.with_classes(10).init(device)
}

/// The number of trainable and fixed numbers of the model of this name; none of them is drawn.
pub fn num_params(name: &str, options: &ModelOptions) -> Option<usize> {
    struct Count;
    impl ModelVisitor for Count {
        type Output = usize;
        fn visit_images<M: ImageModel>(self, _pixels: PixelRange, init: Init<M>) -> usize {
            init(&Device::default()).num_params()
        }
        fn visit_text<M: TextModel>(self, _config: GptConfig, init: Init<M>) -> usize {
            init(&Device::default()).num_params()
        }
    }
    visit(name, options, Count).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(name: &str) -> Option<usize> {
        num_params(name, &ModelOptions::default())
    }

    #[test]
    fn every_listed_model_can_be_built() {
        for info in MODELS {
            assert!(count(info.name).is_some_and(|n| n > 0), "{}", info.name);
        }
    }

    #[test]
    fn parameter_counts_match_the_originals() {
        assert_eq!(count("mnist"), Some(21_840));
        assert_eq!(
            count("mlp"),
            Some(784 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10)
        );
        // Convolutions, batch norms (gamma, beta, two running statistics), linear layers.
        let expected = (9 * 12)
            + (36 * 12 * 24)
            + (36 * 24 * 32)
            + 4 * (12 + 24 + 32)
            + (32 * 256 + 256)
            + (256 * 10 + 10);
        assert_eq!(count("mnist-bn"), Some(expected));
        assert_eq!(count("gpt2-124m"), Some(124_439_808), "as published");
    }

    #[test]
    fn options_that_do_not_fit_together_are_refused() {
        let gpt = GptOptions {
            heads: Some(3),
            ..GptOptions::default()
        };
        let error = num_params("gpt-nano", &ModelOptions { gpt: gpt.clone() });
        assert_eq!(error, None);
        let error = gpt.config("gpt-nano").unwrap().check().unwrap_err();
        assert!(error.to_string().contains("3 heads"), "{error}");
    }
}
