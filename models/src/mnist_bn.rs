//! `mnist-bn`: the Keras convolution net with batch norm and dropout.

use burn::module::Module;
use burn::prelude::*;
use everburn_nn::conv::{Conv2d, Conv2dConfig};
use everburn_nn::tensor::activation::relu;
use everburn_nn::{
    BatchNorm, BatchNormConfig, Blocks, Dropout, DropoutConfig, InBlocks, Linear, LinearConfig,
    PaddingConfig2d, TensorParallel, cast_for_matmul, in_f32,
};

/// Configuration of [`MnistBn`].
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use burn::prelude::*;
/// use everburn::models::mnist_bn::MnistBnConfig;
///
/// let device = Device::flex();
/// let model = MnistBnConfig::new().with_dropout(0.1).init(&device);
/// assert_eq!(model.forward(Tensor::zeros([2, 1, 28, 28], &device)).dims(), [2, 10]);
/// ```
#[derive(Config, Debug)]
pub struct MnistBnConfig {
    /// How many classes there are (`K`).
    #[config(default = 10)]
    pub classes: usize,
    /// The share of activations that dropout sets to zero while training.
    #[config(default = 0.5)]
    pub dropout: f64,
    /// The share of each batch's statistics that goes into batch norm's running ones; Keras keeps
    /// 0.99 of the old value.
    #[config(default = 0.01)]
    pub momentum: f64,
    /// What each pixel is multiplied by first: pixels come as `0..=255`.
    #[config(default = "1.0 / 255.0")]
    pub rescale: f64,
}

/// Three convolutions with batch norm, global average pooling and a hidden layer of 256.
///
/// Takes images of 28 x 28 pixels in `0..=255`, as they are in the file: the rescaling is the
/// model's first layer.
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use burn::prelude::*;
/// use everburn::models::mnist_bn::MnistBnConfig;
///
/// let device = Device::flex();
/// let model = MnistBnConfig::new().init(&device);
/// let logits = model.forward(Tensor::zeros([2, 1, 28, 28], &device));
/// assert_eq!(logits.dims(), [2, 10]);
/// ```
#[derive(Module, Debug)]
pub struct MnistBn {
    conv1: Conv2d,
    norm1: BatchNorm,
    conv2: Conv2d,
    norm2: BatchNorm,
    conv3: Conv2d,
    norm3: BatchNorm,
    fc1: Linear,
    dropout: Dropout,
    fc2: Linear,
    rescale: f64,
}

impl MnistBnConfig {
    /// Initialises the model on `device`.
    pub fn init(&self, device: &Device) -> MnistBn {
        MnistBn {
            conv1: convolution([1, 12], 3, 1, 1).init(device),
            norm1: self.norm(12, device),
            conv2: convolution([12, 24], 6, 2, 2).init(device),
            norm2: self.norm(24, device),
            conv3: convolution([24, 32], 6, 2, 2).init(device),
            norm3: self.norm(32, device),
            fc1: LinearConfig::new(32, 256).init(device),
            dropout: DropoutConfig::new(self.dropout).init(),
            fc2: LinearConfig::new(256, self.classes).init(device),
            rescale: self.rescale,
        }
    }

    /// A batch norm without scale: a relu follows and the next layer can scale, so gamma stays at
    /// one and is not trained.
    fn norm(&self, features: usize, device: &Device) -> BatchNorm {
        let mut norm = BatchNormConfig::new(features)
            .with_epsilon(1e-3)
            .with_momentum(self.momentum)
            .init(device);
        norm.gamma = norm.gamma.set_require_grad(false);
        norm
    }
}

/// A convolution without bias: the batch norm that follows has its own shift. `padding` is on all
/// four sides, which for these sizes is what Keras calls "same".
fn convolution(channels: [usize; 2], kernel: usize, stride: usize, padding: usize) -> Conv2dConfig {
    Conv2dConfig::new(channels, [kernel, kernel])
        .with_stride([stride, stride])
        .with_padding(PaddingConfig2d::Explicit(
            padding, padding, padding, padding,
        ))
        .with_bias(false)
}

impl MnistBn {
    /// Class scores of a batch of images.
    ///
    /// # Shapes
    /// - images: `[B, 1, 28, 28]`, pixels in `0..=255`
    /// - output: logits `[B, K]`
    ///
    /// # Panics
    /// Panics if the images have another shape.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        self.blocks().forward(self, images)
    }
}

impl InBlocks for MnistBn {
    type Input = Tensor<4>;
    type Output = Tensor<2>;

    fn blocks(&self) -> Blocks<Self, Tensor<4>, Tensor<2>> {
        Blocks::first(
            "conv1",
            ["conv1", "norm1"],
            |net: &Self, images: Tensor<4>| {
                let x = cast_for_matmul(images.mul_scalar(net.rescale));
                relu(net.norm1.forward(net.conv1.forward(x))) // [B, 12, 28, 28]
            },
        )
        .then("conv2", ["conv2", "norm2"], |net, x| {
            relu(net.norm2.forward(net.conv2.forward(x))) // [B, 24, 14, 14]
        })
        .then("conv3", ["conv3", "norm3"], |net, x| {
            relu(net.norm3.forward(net.conv3.forward(x))) // [B, 32, 7, 7]
        })
        .then("fc1", ["fc1"], |net, x| {
            let x = in_f32(x.flatten::<3>(2, 3), |pixels| pixels.mean_dim(2));
            let x: Tensor<2> = x.squeeze_dim(2); // [B, 32]
            net.dropout.forward(relu(net.fc1.forward(x))) // [B, 256]
        })
        .then("fc2", ["fc2"], |net, x| net.fc2.forward(x))
    }
}

/// Nothing is cut: what its one hidden layer yields goes through a dropout.
impl TensorParallel for MnistBn {}
