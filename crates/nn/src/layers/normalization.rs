//! A norm of any kind.

use burn::config::Config;
use burn::module::Module;
use burn::nn::{
    GroupNorm, GroupNormConfig, Identity, InstanceNorm, InstanceNormConfig, RmsNorm, RmsNormConfig,
};
use burn::prelude::*;

use super::layer_norm::{LayerNorm, LayerNormConfig};
use crate::batch_norm::{BatchNorm, BatchNormConfig};

/// Configuration of [`Normalization`]: the same as [`burn::nn::norm::NormalizationConfig`].
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use everburn::nn::BatchNormConfig;
/// use everburn::nn::norm::NormalizationConfig;
///
/// let any_width: NormalizationConfig = BatchNormConfig::new(0).into();
/// assert_eq!(any_width.with_num_features(12).num_features(), 12);
/// ```
#[derive(Config, Debug)]
#[non_exhaustive]
pub enum NormalizationConfig {
    /// No norm.
    Identity,
    /// Over the samples of a channel.
    Batch(BatchNormConfig),
    /// Over groups of channels.
    Group(GroupNormConfig),
    /// Over the pixels of a channel.
    Instance(InstanceNormConfig),
    /// Over the features of a sample.
    Layer(LayerNormConfig),
    /// By the root of the mean square of a sample.
    Rms(RmsNormConfig),
}

impl NormalizationConfig {
    /// Initialises the norm on `device`.
    pub fn init(&self, device: &Device) -> Normalization {
        match self {
            Self::Identity => Identity::new().into(),
            Self::Batch(config) => config.init(device).into(),
            Self::Group(config) => config.init(device).into(),
            Self::Instance(config) => config.init(device).into(),
            Self::Layer(config) => config.init(device).into(),
            Self::Rms(config) => config.init(device).into(),
        }
    }

    /// The same for `num_features` features, or channels.
    #[must_use]
    pub fn with_num_features(mut self, num_features: usize) -> Self {
        match &mut self {
            Self::Identity => {}
            Self::Batch(config) => config.num_features = num_features,
            Self::Group(config) => config.num_channels = num_features,
            Self::Instance(config) => config.num_channels = num_features,
            Self::Layer(config) => config.d_model = num_features,
            Self::Rms(config) => config.d_model = num_features,
        }
        self
    }

    /// How many features, or channels, it is for; 0 for any.
    pub fn num_features(&self) -> usize {
        match self {
            Self::Identity => 0,
            Self::Batch(config) => config.num_features,
            Self::Group(config) => config.num_channels,
            Self::Instance(config) => config.num_channels,
            Self::Layer(config) => config.d_model,
            Self::Rms(config) => config.d_model,
        }
    }
}

/// Burn's [`burn::nn::norm::Normalization`], of which [`BatchNorm`] and [`LayerNorm`] are those of this crate.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::BatchNormConfig;
/// use everburn::nn::norm::NormalizationConfig;
///
/// let device = Device::flex();
/// let norm = NormalizationConfig::from(BatchNormConfig::new(3)).init(&device);
/// assert_eq!(norm.forward(Tensor::<4>::ones([2, 3, 4, 4], &device)).dims(), [2, 3, 4, 4]);
/// ```
#[derive(Module, Debug)]
#[non_exhaustive]
pub enum Normalization {
    /// No norm.
    Identity(Identity),
    /// Over the samples of a channel.
    Batch(BatchNorm),
    /// Over groups of channels.
    Group(GroupNorm),
    /// Over the pixels of a channel.
    Instance(InstanceNorm),
    /// Over the features of a sample.
    Layer(LayerNorm),
    /// By the root of the mean square of a sample.
    Rms(RmsNorm),
}

impl Normalization {
    /// Normalises `input`, as the norm does that it is.
    ///
    /// # Shapes
    /// - input, output: any with at least two dimensions
    ///
    /// # Panics
    /// As the norm that it is.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Identity(norm) => norm.forward(input),
            Self::Batch(norm) => norm.forward(input),
            Self::Group(norm) => norm.forward(input),
            Self::Instance(norm) => norm.forward(input),
            Self::Layer(norm) => norm.forward(input),
            Self::Rms(norm) => norm.forward(input),
        }
    }

    /// How many features, or channels, it is for; 0 for any.
    pub fn num_features(&self) -> usize {
        match self {
            Self::Identity(_) => 0,
            Self::Batch(norm) => norm.gamma.shape()[0],
            Self::Group(norm) => norm.num_channels,
            Self::Instance(norm) => norm.num_channels,
            Self::Layer(norm) => norm.gamma.shape()[0],
            Self::Rms(norm) => norm.gamma.shape()[0],
        }
    }
}

/// Makes a kind of norm one of any kind.
macro_rules! any_kind {
    ($($kind:ident($norm:ty) $(of $config:ty)?),+) => {$(
        impl From<$norm> for Normalization {
            fn from(norm: $norm) -> Self {
                Self::$kind(norm)
            }
        }

        $(impl From<$config> for NormalizationConfig {
            fn from(config: $config) -> Self {
                Self::$kind(config)
            }
        })?
    )+};
}

any_kind!(
    Identity(Identity),
    Batch(BatchNorm) of BatchNormConfig,
    Group(GroupNorm) of GroupNormConfig,
    Instance(InstanceNorm) of InstanceNormConfig,
    Layer(LayerNorm) of LayerNormConfig,
    Rms(RmsNorm) of RmsNormConfig
);
