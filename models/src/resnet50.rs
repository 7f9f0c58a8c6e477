//! `resnet50`: the residual net of 50 layers, 25,557,032 parameters with 1000 classes.

mod bottleneck;
mod stem;

use burn::module::Module;
use burn::prelude::*;
use everburn_nn::conv::Conv2d;
use everburn_nn::pool::MaxPool2d;
use everburn_nn::tensor::activation::relu;
use everburn_nn::{
    BatchNorm, Blocks, InBlocks, Linear, LinearConfig, TensorParallel, cast_for_matmul, in_f32,
};

pub use bottleneck::{Bottleneck, BottleneckConfig, EXPANSION};
pub(crate) use bottleneck::{batch_norm, convolution};
pub use stem::Stem;
pub(crate) use stem::max_pool;

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
#[derive(Config, Debug)]
pub struct ResNet50Config {
    /// How the image comes in.
    #[config(default = "Stem::ImageNet")]
    pub stem: Stem,
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

/// ResNet-50 (He et al. 2015, "Deep residual learning for image recognition", table 1), with
/// torchvision's stride ("v1.5": in the 3 x 3 convolutions) and torchvision's names: `conv1`, `bn1`,
/// `layer1.0.conv1`, `layer1.0.downsample.0`, `fc`. Its blocks, where it can be cut, are `stem`,
/// each bottleneck, and `head`.
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
#[derive(Module, Debug)]
pub struct ResNet50 {
    conv1: Conv2d,
    bn1: BatchNorm,
    maxpool: Option<MaxPool2d>,
    layer1: Vec<Bottleneck>,
    layer2: Vec<Bottleneck>,
    layer3: Vec<Bottleneck>,
    layer4: Vec<Bottleneck>,
    fc: Linear,
}

impl ResNet50Config {
    /// Initialises the model on `device`.
    ///
    /// # Panics
    /// Panics if a stage has no block, or there are no channels or classes.
    pub fn init(&self, device: &Device) -> ResNet50 {
        assert!(
            self.blocks.iter().all(|blocks| *blocks > 0),
            "each stage of a ResNet needs a block, and they are {:?}",
            self.blocks
        );
        ResNet50 {
            conv1: self
                .stem
                .convolution(self.stem.channels(), self.width)
                .init(device),
            bn1: batch_norm(self.width, device),
            maxpool: self.stem.pool(),
            layer1: self.stage(0, device),
            layer2: self.stage(1, device),
            layer3: self.stage(2, device),
            layer4: self.stage(3, device),
            fc: LinearConfig::new(EXPANSION * (self.width << 3), self.classes).init(device),
        }
    }

    /// The bottlenecks of a stage. The first of each but the first stage halves the image.
    fn stage(&self, stage: usize, device: &Device) -> Vec<Bottleneck> {
        let width = self.width << stage;
        let (mut inputs, mut stride) = match stage {
            0 => (self.width, 1),
            _ => (EXPANSION * width / 2, 2),
        };
        let mut blocks = Vec::with_capacity(self.blocks[stage]);
        for _ in 0..self.blocks[stage] {
            let block = BottleneckConfig::new(inputs, width)
                .with_stride(stride)
                .with_zero_last_gamma(self.zero_last_gamma);
            blocks.push(block.init(device));
            (inputs, stride) = (EXPANSION * width, 1);
        }
        blocks
    }
}

impl ResNet50 {
    /// Class scores of a batch of images.
    ///
    /// # Shapes
    /// - images: `[B, C, H, W]` with the channels of the stem: see [`Stem`]
    /// - output: logits `[B, K]`
    ///
    /// # Panics
    /// Panics if the images have another number of channels.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        self.blocks().forward(self, images)
    }

    fn stem(&self, images: Tensor<4>) -> Tensor<4> {
        let x = relu(
            self.bn1
                .forward(self.conv1.forward(cast_for_matmul(images))),
        );
        match &self.maxpool {
            None => x,
            Some(pool) => pool.forward(x),
        }
    }
}

impl InBlocks for ResNet50 {
    type Input = Tensor<4>;
    type Output = Tensor<2>;

    fn blocks(&self) -> Blocks<Self, Tensor<4>, Tensor<2>> {
        Blocks::first("stem", ["conv1", "bn1"], Self::stem)
            .each("layer1", self.layer1.len(), |model, i, x| {
                model.layer1[i].forward(x)
            })
            .each("layer2", self.layer2.len(), |model, i, x| {
                model.layer2[i].forward(x)
            })
            .each("layer3", self.layer3.len(), |model, i, x| {
                model.layer3[i].forward(x)
            })
            .each("layer4", self.layer4.len(), |model, i, x| {
                model.layer4[i].forward(x)
            })
            .then("head", ["fc"], |model, x| {
                model.fc.forward(mean_over_pixels(x))
            })
    }
}

/// Global average pooling: `[B, C, H, W]` to `[B, C]`.
pub(crate) fn mean_over_pixels(x: Tensor<4>) -> Tensor<2> {
    in_f32(x.flatten::<3>(2, 3), |pixels| pixels.mean_dim(2)).squeeze_dim(2)
}

/// Nothing is cut: all but its last layer are convolutions.
impl TensorParallel for ResNet50 {}
