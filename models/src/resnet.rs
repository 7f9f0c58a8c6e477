//! What residual nets have in common: the stem, four stages of blocks, and the head.

mod bottleneck;
mod stem;

use burn::module::{Module, ModuleDisplay};
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

use crate::error::{ModelError, check_sizes};

/// A block of a [`ResNet`]: convolutions around which the input goes, too.
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use burn::prelude::*;
/// use everburn::models::resnet::ResidualBlock;
///
/// fn twice<B: ResidualBlock>(block: &B, images: Tensor<4>) -> Tensor<4> {
///     ResidualBlock::forward(block, ResidualBlock::forward(block, images))
/// }
/// ```
pub trait ResidualBlock: Module + ModuleDisplay + Sync + 'static {
    /// The block's output; the shortcut is added before the last relu.
    ///
    /// # Shapes
    /// - x: `[B, C, H, W]`
    /// - output: `[B, C', H / stride, W / stride]`, sizes rounded up
    fn forward(&self, x: Tensor<4>) -> Tensor<4>;
}

/// A residual net (He et al. 2015, "Deep residual learning for image recognition") with torchvision's names, so that
/// torchvision's weights load: `conv1`, `bn1`, `layer1.0.conv1`, `layer2.0.downsample.0`, `fc`. Pipelines divide it
/// into `stem`, the blocks, and `head`. [`ResNet18`](crate::resnet18::ResNet18) and
/// [`ResNet50`](crate::resnet50::ResNet50) are the two kinds.
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use burn::prelude::*;
/// use everburn::models::resnet18::ResNet18Config;
/// use everburn::models::resnet50::Stem;
///
/// let device = Device::flex();
/// let config = ResNet18Config::new().with_stem(Stem::Cifar).with_width(4).with_classes(3);
/// let logits = config.init(&device).forward(Tensor::zeros([2, 3, 32, 32], &device));
/// assert_eq!(logits.dims(), [2, 3]);
/// ```
#[derive(Module, Debug)]
pub struct ResNet<B> {
    conv1: Conv2d,
    bn1: BatchNorm,
    maxpool: Option<MaxPool2d>,
    layer1: Vec<B>,
    layer2: Vec<B>,
    layer3: Vec<B>,
    layer4: Vec<B>,
    fc: Linear,
}

/// The numbers of a [`ResNet`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) stem: Stem,
    /// The channels of the images.
    pub(crate) channels: usize,
    /// The number of blocks in each stage.
    pub(crate) blocks: [usize; 4],
    /// The channels of the stem.
    pub(crate) width: usize,
    /// How many times its width a block yields.
    pub(crate) expansion: usize,
    pub(crate) classes: usize,
}

/// The place of a block in the net.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockShape {
    pub(crate) inputs: usize,
    pub(crate) width: usize,
    pub(crate) stride: usize,
}

impl Shape {
    /// Refuses numbers of which no model can be built.
    pub(crate) fn check(&self) -> Result<(), ModelError> {
        let blocks = self.blocks.iter().max().copied().unwrap_or(0);
        let fewest = self.blocks.iter().min().copied().unwrap_or(0);
        check_sizes(
            blocks,
            &[
                ("number of blocks in each stage", fewest),
                ("number of channels", self.channels),
                ("width", self.width),
                ("number of classes", self.classes),
            ],
        )
    }

    /// Initialises a model on `device`, of blocks that `block` makes.
    ///
    /// # Panics
    /// Panics if a stage has no block, or there are no channels or classes.
    pub(crate) fn init<B: ResidualBlock>(
        &self,
        device: &Device,
        block: impl Fn(BlockShape) -> B,
    ) -> ResNet<B> {
        assert!(
            self.blocks.iter().all(|blocks| *blocks > 0),
            "each stage of a ResNet needs a block, and they are {:?}",
            self.blocks
        );
        let stage = |stage| {
            let shapes = self.stage(stage).into_iter();
            shapes.map(&block).collect::<Vec<_>>()
        };
        ResNet {
            conv1: self
                .stem
                .convolution(self.channels, self.width)
                .init(device),
            bn1: batch_norm(self.width, device),
            maxpool: self.stem.pool(),
            layer1: stage(0),
            layer2: stage(1),
            layer3: stage(2),
            layer4: stage(3),
            fc: LinearConfig::new(self.expansion * (self.width << 3), self.classes).init(device),
        }
    }

    /// The blocks of a stage. The first of each but the first stage halves the image.
    fn stage(&self, stage: usize) -> Vec<BlockShape> {
        let width = self.width << stage;
        let first = match stage {
            0 => (self.width, 1),
            _ => (self.expansion * width / 2, 2),
        };
        let rest = (1..self.blocks[stage]).map(|_| (self.expansion * width, 1));
        let all = std::iter::once(first).chain(rest);
        let all = all.map(|(inputs, stride)| BlockShape {
            inputs,
            width,
            stride,
        });
        all.collect()
    }
}

/// [`ImageModelConfig`](crate::image_model::ImageModelConfig) of one of the two kinds; its blocks yield `$expansion` times their width.
macro_rules! resnet_config {
    ($config:ident, $model:ident, $section:literal, $expansion:expr) => {
        impl $config {
            fn shape(&self) -> crate::resnet::Shape {
                crate::resnet::Shape {
                    stem: self.stem,
                    channels: self.channels.unwrap_or(self.stem.channels()),
                    blocks: self.blocks,
                    width: self.width,
                    expansion: $expansion,
                    classes: self.classes,
                }
            }
        }

        crate::image_model::image_model_config!($config, $model, $section, {
            fn check(&self) -> Result<(), crate::error::ModelError> {
                self.shape().check()
            }

            fn channels(&self) -> Option<usize> {
                self.channels
            }

            fn of_channels(self, channels: usize) -> Self {
                self.with_channels(Some(channels))
            }

            fn stem(&self) -> Option<crate::resnet::Stem> {
                Some(self.stem)
            }

            fn of_stem(self, stem: crate::resnet::Stem) -> Self {
                self.with_stem(stem)
            }
        });
    };
}

pub(crate) use resnet_config;

impl<B: ResidualBlock> ResNet<B> {
    /// Class scores of a batch of images.
    ///
    /// # Shapes
    /// - images: `[B, C, H, W]` with the channels of the configuration
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

impl<B: ResidualBlock> InBlocks for ResNet<B> {
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

/// Tensor parallelism shards nothing: all but the last layer are convolutions.
impl<B: ResidualBlock> TensorParallel for ResNet<B> {}

/// Global average pooling: `[B, C, H, W]` to `[B, C]`.
pub(crate) fn mean_over_pixels(x: Tensor<4>) -> Tensor<2> {
    in_f32(x.flatten::<3>(2, 3), |pixels| pixels.mean_dim(2)).squeeze_dim(2)
}
