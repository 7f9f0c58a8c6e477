//! What classifiers of images have in common.

use std::fmt::Display;

use burn::prelude::*;
use everburn_nn::TensorParallel;

use crate::error::ModelError;
use crate::resnet50::Stem;

/// The numbers of a model that classifies images `[B, C, H, W]` by logits `[B, K]`.
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use burn::prelude::*;
/// use everburn::models::image_model::ImageModelConfig;
/// use everburn::models::vit::ViTConfig;
///
/// let config = ViTConfig::new().with_width(16).with_heads(2).with_layers(1);
/// let config = config.with_image_size(32).with_classes(3);
/// config.check().unwrap();
/// assert_eq!((config.classes(), config.image_size()), (3, Some(32)));
/// let _model = config.build(&Device::flex());
/// ```
pub trait ImageModelConfig: Config + Clone + PartialEq + Send + Sync + 'static {
    /// The model of these numbers.
    type Model: TensorParallel<Input = Tensor<4>, Output = Tensor<2>> + Display + Sync + 'static;

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

    /// The number of classes (`K`).
    fn classes(&self) -> usize;

    /// The same numbers for a model of this many classes.
    #[must_use]
    fn of_classes(self, classes: usize) -> Self;

    /// The number of channels of all images; any if absent.
    fn channels(&self) -> Option<usize> {
        Some(3)
    }

    /// The same numbers for images of this many channels, if [`channels`](Self::channels) allows any.
    #[must_use]
    fn of_channels(self, channels: usize) -> Self {
        let _ = channels;
        self
    }

    /// How the model begins, if it is a residual net.
    fn stem(&self) -> Option<Stem> {
        None
    }

    /// The same numbers for a residual net that begins so.
    #[must_use]
    fn of_stem(self, stem: Stem) -> Self {
        let _ = stem;
        self
    }

    /// The height and width of all images; any if absent.
    fn image_size(&self) -> Option<usize> {
        None
    }

    /// The share of activations that dropout sets to zero while training.
    fn dropout(&self) -> f64 {
        0.0
    }
}

/// [`ImageModelConfig`] of a configuration: what all of them have alike, and in braces what is its own.
macro_rules! image_model_config {
    ($config:ident, $model:ident, $section:literal, { $($own:tt)* }) => {
        impl crate::image_model::ImageModelConfig for $config {
            type Model = $model;

            const SECTION: &'static str = $section;

            fn build(&self, device: &Device) -> $model {
                self.init(device)
            }

            fn classes(&self) -> usize {
                self.classes
            }

            fn of_classes(self, classes: usize) -> Self {
                self.with_classes(classes)
            }

            $($own)*
        }
    };
}

pub(crate) use image_model_config;
