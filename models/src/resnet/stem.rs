//! How images come into a ResNet.

use burn::prelude::*;
use everburn_nn::PaddingConfig2d;
use everburn_nn::conv::Conv2dConfig;
use everburn_nn::pool::{MaxPool2d, MaxPool2dConfig};

use super::bottleneck::convolution;

/// The first convolution, and whether it is followed by pooling: by the size of the images, for
/// the four stages make them eight times smaller still.
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use burn::prelude::*;
/// use everburn::models::resnet50::{ResNet50Config, Stem};
///
/// let device = Device::flex();
/// let config = ResNet50Config::new().with_blocks([1, 1, 1, 1]).with_width(4);
/// let model = config.with_stem(Stem::Mnist).with_classes(10).init(&device);
/// assert_eq!(model.forward(Tensor::zeros([1, 1, 28, 28], &device)).dims(), [1, 10]);
/// ```
#[derive(Config, Debug, Copy, PartialEq, Eq)]
pub enum Stem {
    /// For 3 channels and about 224 x 224 pixels, the paper's: 7 x 7 with stride 2, then max
    /// pooling of 3 x 3 with stride 2. The first stage sees a quarter of the width, 56.
    ImageNet,
    /// For 3 channels and 32 x 32 pixels: 3 x 3 with stride 1, no pooling (as in He et al. 2015,
    /// section 4.2). The first stage sees all 32.
    Cifar,
    /// For 1 channel and 28 x 28 pixels: 3 x 3 with stride 2, no pooling. The first stage sees 14,
    /// the others 7, 4 and 2: a quarter of the arithmetic of the CIFAR stem, which digits do not
    /// need.
    Mnist,
}

impl Stem {
    /// How many channels the images have (`C`).
    pub fn channels(self) -> usize {
        match self {
            Self::ImageNet | Self::Cifar => 3,
            Self::Mnist => 1,
        }
    }

    pub(crate) fn convolution(self, channels: usize, width: usize) -> Conv2dConfig {
        let (kernel, stride) = match self {
            Self::ImageNet => (7, 2),
            Self::Cifar => (3, 1),
            Self::Mnist => (3, 2),
        };
        convolution([channels, width], kernel, stride)
    }

    pub(crate) fn pool(self) -> Option<MaxPool2d> {
        match self {
            Self::ImageNet => Some(max_pool()),
            Self::Cifar | Self::Mnist => None,
        }
    }
}

/// Max pooling of 3 x 3 with stride 2.
pub(crate) fn max_pool() -> MaxPool2d {
    MaxPool2dConfig::new([3, 3])
        .with_strides([2, 2])
        .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
        .init()
}
