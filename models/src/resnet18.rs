//! `resnet18`: the residual net of 18 layers, 11,689,512 parameters with 1000 classes.

use burn::module::Module;
use burn::prelude::*;
use everburn_nn::BatchNorm;
use everburn_nn::conv::Conv2d;
use everburn_nn::tensor::activation::relu;

use crate::resnet::{ResNet, ResidualBlock, batch_norm, convolution, resnet_config};
use crate::resnet50::Stem;

/// Configuration of [`ResNet18`].
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use burn::prelude::*;
/// use everburn::models::resnet18::ResNet18Config;
///
/// let device = Device::flex();
/// let model = ResNet18Config::new().with_width(4).with_classes(3).init(&device);
/// assert_eq!(model.forward(Tensor::zeros([2, 3, 32, 32], &device)).dims(), [2, 3]);
/// ```
#[derive(Config, Debug, PartialEq)]
pub struct ResNet18Config {
    /// The first convolution.
    #[config(default = "Stem::ImageNet")]
    pub stem: Stem,
    /// The channels of the images (`C`); those of the stem if absent.
    pub channels: Option<usize>,
    /// The number of blocks in each of the four stages, at least one.
    #[config(default = "[2, 2, 2, 2]")]
    pub blocks: [usize; 4],
    /// The channels of the stem and of the first stage; each further stage has twice as many.
    #[config(default = 64)]
    pub width: usize,
    /// The number of classes (`K`).
    #[config(default = 1000)]
    pub classes: usize,
}

/// ResNet-18 (He et al. 2015, "Deep residual learning for image recognition", table 1). With blocks `[3, 4, 6, 3]` it is
/// ResNet-34.
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use burn::prelude::*;
/// use everburn::models::resnet18::ResNet18Config;
/// use everburn::models::resnet50::Stem;
///
/// let device = Device::flex();
/// let config = ResNet18Config::new().with_stem(Stem::Cifar).with_channels(Some(1)).with_width(4);
/// let logits = config.init(&device).forward(Tensor::zeros([2, 1, 32, 24], &device));
/// assert_eq!(logits.dims(), [2, 1000]);
/// ```
pub type ResNet18 = ResNet<BasicBlock>;

impl ResNet18Config {
    /// Initialises the model on `device`.
    ///
    /// # Panics
    /// Panics if a stage has no block, or there are no channels or classes.
    pub fn init(&self, device: &Device) -> ResNet18 {
        self.shape().init(device, |block| {
            BasicBlockConfig::new(block.inputs, block.width)
                .with_stride(block.stride)
                .init(device)
        })
    }
}

resnet_config!(ResNet18Config, ResNet18, "resnet18", 1);

/// Configuration of [`BasicBlock`].
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use burn::prelude::*;
/// use everburn::models::resnet18::BasicBlockConfig;
///
/// let device = Device::flex();
/// let model = BasicBlockConfig::new(4, 8).with_stride(2).init(&device);
/// assert_eq!(model.forward(Tensor::zeros([2, 4, 8, 8], &device)).dims(), [2, 8, 4, 4]);
/// ```
#[derive(Config, Debug)]
pub struct BasicBlockConfig {
    /// The channels of the input.
    pub inputs: usize,
    /// The channels of the output.
    pub width: usize,
    /// The factor by which the block makes the image smaller.
    #[config(default = 1)]
    pub stride: usize,
}

/// A residual block of two 3 x 3 convolutions with batch norm (He et al. 2015, figure 5, left). Where the shape changes,
/// the shortcut is a strided 1 x 1 convolution with batch norm: `downsample.0` and `downsample.1`.
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use burn::prelude::*;
/// use everburn::models::resnet18::BasicBlockConfig;
///
/// let device = Device::flex();
/// let model = BasicBlockConfig::new(8, 8).init(&device);
/// assert_eq!(model.forward(Tensor::zeros([2, 8, 4, 4], &device)).dims(), [2, 8, 4, 4]);
/// ```
#[derive(Module, Debug)]
pub struct BasicBlock {
    conv1: Conv2d,
    bn1: BatchNorm,
    conv2: Conv2d,
    bn2: BatchNorm,
    downsample: Option<(Conv2d, BatchNorm)>,
}

impl BasicBlockConfig {
    /// Initialises the block on `device`.
    pub fn init(&self, device: &Device) -> BasicBlock {
        let (inputs, width, stride) = (self.inputs, self.width, self.stride);
        let reshapes = stride != 1 || inputs != width;
        BasicBlock {
            conv1: convolution([inputs, width], 3, stride).init(device),
            bn1: batch_norm(width, device),
            conv2: convolution([width, width], 3, 1).init(device),
            bn2: batch_norm(width, device),
            downsample: reshapes.then(|| {
                let shortcut = convolution([inputs, width], 1, stride);
                (shortcut.init(device), batch_norm(width, device))
            }),
        }
    }
}

impl BasicBlock {
    /// The block's output; the shortcut is added before the last relu.
    ///
    /// # Shapes
    /// - x: `[B, C, H, W]` with the configured channels
    /// - output: `[B, width, H / stride, W / stride]`, sizes rounded up
    ///
    /// # Panics
    /// Panics if `x` has another number of channels.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let shortcut = match &self.downsample {
            None => x.clone(),
            Some((convolution, norm)) => norm.forward(convolution.forward(x.clone())),
        };
        let x = relu(self.bn1.forward(self.conv1.forward(x)));
        let x = self.bn2.forward(self.conv2.forward(x));
        relu(x + shortcut)
    }
}

impl ResidualBlock for BasicBlock {
    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        self.forward(x)
    }
}
