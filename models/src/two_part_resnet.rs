//! `two-part-resnet`: the beginning of a ResNet, as an example of a model in two parts.

use burn::module::Module;
use burn::prelude::*;
use everburn_nn::conv::Conv2d;
use everburn_nn::pool::MaxPool2d;
use everburn_nn::tensor::activation::relu;
use everburn_nn::{
    BatchNorm, Blocks, InBlocks, Linear, LinearConfig, TensorParallel, cast_for_matmul,
};

use crate::resnet::{
    Bottleneck, BottleneckConfig, EXPANSION, batch_norm, convolution, max_pool, mean_over_pixels,
};

/// Configuration of [`TwoPartResNet`].
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use burn::prelude::*;
/// use everburn::models::two_part_resnet::TwoPartResNetConfig;
///
/// let device = Device::flex();
/// let model = TwoPartResNetConfig::new().with_width(4).init(&device);
/// assert_eq!(model.forward(Tensor::zeros([2, 1, 28, 28], &device)).dims(), [2, 10]);
/// ```
#[derive(Config, Debug)]
pub struct TwoPartResNetConfig {
    /// How many channels the images have (`C`).
    #[config(default = 1)]
    pub channels: usize,
    /// The channels of the first convolution.
    #[config(default = 64)]
    pub width: usize,
    /// How many classes there are (`K`).
    #[config(default = 10)]
    pub classes: usize,
}

/// The stem of a ResNet (7 x 7 convolution with stride 2, batch norm, relu, max pooling), and the next
/// block of convolutions with a linear layer: two blocks, of which a device each can be given one.
///
/// ```
/// # mod everburn { pub use everburn_models as models; pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::models::two_part_resnet::TwoPartResNetConfig;
/// use everburn::nn::Placement;
///
/// let (first, second) = (Device::flex().autodiff(), Device::flex().autodiff());
/// let model = TwoPartResNetConfig::new().with_width(4).init(&first);
/// let placement = Placement::new().put("stem", &first).put("layer1", &second);
/// let split = placement.split(&model).unwrap();
/// let model = split.place(model);
/// let logits = split.forward(&model, Tensor::zeros([2, 1, 28, 28], &first));
/// assert_eq!(logits.dims(), [2, 10]);
/// drop(logits.sum().backward()); // gradients cross the devices by themselves
/// ```
#[derive(Module, Debug)]
pub struct TwoPartResNet {
    conv1: Conv2d,
    bn1: BatchNorm,
    maxpool: MaxPool2d,
    layer1: Bottleneck,
    fc: Linear,
}

impl TwoPartResNetConfig {
    /// Initialises the model on `device`.
    pub fn init(&self, device: &Device) -> TwoPartResNet {
        TwoPartResNet {
            conv1: convolution([self.channels, self.width], 7, 2).init(device),
            bn1: batch_norm(self.width, device),
            maxpool: max_pool(),
            layer1: BottleneckConfig::new(self.width, self.width).init(device),
            fc: LinearConfig::new(EXPANSION * self.width, self.classes).init(device),
        }
    }
}

impl TwoPartResNet {
    /// Class scores of a batch of images.
    ///
    /// # Shapes
    /// - images: `[B, C, H, W]` with the configured channels
    /// - output: logits `[B, K]`
    ///
    /// # Panics
    /// Panics if the images have another number of channels.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        self.blocks().forward(self, images)
    }
}

impl InBlocks for TwoPartResNet {
    type Input = Tensor<4>;
    type Output = Tensor<2>;

    fn blocks(&self) -> Blocks<Self, Tensor<4>, Tensor<2>> {
        Blocks::first("stem", ["conv1", "bn1"], |model: &Self, images| {
            let x = relu(
                model
                    .bn1
                    .forward(model.conv1.forward(cast_for_matmul(images))),
            );
            model.maxpool.forward(x)
        })
        .then("layer1", ["layer1", "fc"], |model, x: Tensor<4>| {
            let x = model.layer1.forward(x);
            model.fc.forward(mean_over_pixels(x))
        })
    }
}

/// Nothing is cut: all but its last layer are convolutions.
impl TensorParallel for TwoPartResNet {}
