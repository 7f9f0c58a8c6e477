//! `resnet50`: the residual net of 50 layers, 25,557,032 parameters with 1000 classes.

use burn::prelude::*;

pub use crate::resnet::{Bottleneck, BottleneckConfig, EXPANSION, Stem};

use crate::resnet::{ResNet, ResidualBlock, resnet_config};

/// Configuration of [`ResNet50`].
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use burn::prelude::*;
/// use everburn::models::resnet50::ResNet50Config;
///
/// let device = Device::flex();
/// let model = ResNet50Config::new().with_width(4).with_classes(3).init(&device);
/// assert_eq!(model.forward(Tensor::zeros([2, 3, 32, 32], &device)).dims(), [2, 3]);
/// ```
#[derive(Config, Debug, PartialEq)]
pub struct ResNet50Config {
    /// How the image comes in.
    #[config(default = "Stem::ImageNet")]
    pub stem: Stem,
    /// The channels of the images (`C`); those of the stem if absent.
    pub channels: Option<usize>,
    /// How many bottlenecks each of the four stages has; at least one.
    #[config(default = "[3, 4, 6, 3]")]
    pub blocks: [usize; 4],
    /// The channels of the stem and of the first stage's 3 x 3 convolutions; each further stage
    /// has twice as many.
    #[config(default = 64)]
    pub width: usize,
    /// How many classes there are (`K`).
    #[config(default = 1000)]
    pub classes: usize,
    /// Start each bottleneck as its shortcut: [`BottleneckConfig::zero_last_gamma`].
    #[config(default = false)]
    pub zero_last_gamma: bool,
}

/// ResNet-50 (He et al. 2015, "Deep residual learning for image recognition", table 1), with torchvision's stride ("v1.5":
/// in the 3 x 3 convolutions).
///
/// ```
/// # mod everburn { pub use everburn_models as models; pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::models::resnet50::{ResNet50Config, Stem};
/// use everburn::nn::InBlocks;
///
/// let device = Device::flex();
/// let config = ResNet50Config::new().with_stem(Stem::Cifar).with_classes(10);
/// // A small sister: one bottleneck a stage, an eighth of the channels.
/// let model = config.with_blocks([1, 1, 1, 1]).with_width(8).init(&device);
/// let logits = model.forward(Tensor::zeros([2, 3, 32, 32], &device));
/// assert_eq!(logits.dims(), [2, 10]);
/// let blocks = model.blocks();
/// assert_eq!(blocks.names(), ["stem", "layer1.0", "layer2.0", "layer3.0", "layer4.0", "head"]);
/// ```
pub type ResNet50 = ResNet<Bottleneck>;

impl ResNet50Config {
    /// Initialises the model on `device`.
    ///
    /// # Panics
    /// Panics if a stage has no block, or there are no channels or classes.
    pub fn init(&self, device: &Device) -> ResNet50 {
        self.shape().init(device, |block| {
            BottleneckConfig::new(block.inputs, block.width)
                .with_stride(block.stride)
                .with_zero_last_gamma(self.zero_last_gamma)
                .init(device)
        })
    }
}

resnet_config!(ResNet50Config, ResNet50, "resnet50", EXPANSION);

impl ResidualBlock for Bottleneck {
    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        self.forward(x)
    }
}
