//! `mnist`: two convolutions and two linear layers, 21,840 parameters.

use burn::module::Module;
use burn::prelude::*;
use everburn_nn::conv::{Conv2d, Conv2dConfig};
use everburn_nn::pool::{MaxPool2d, MaxPool2dConfig};
use everburn_nn::tensor::activation::relu;
use everburn_nn::{
    Blocks, InBlocks, Linear, LinearConfig, TensorParallel, TensorRule, cast_for_matmul,
};

/// Configuration of [`Mnist`].
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use burn::prelude::*;
/// use everburn::models::mnist::MnistConfig;
///
/// let device = Device::flex();
/// let model = MnistConfig::new().with_classes(5).init(&device);
/// assert_eq!(model.forward(Tensor::zeros([2, 1, 28, 28], &device)).dims(), [2, 5]);
/// ```
#[derive(Config, Debug)]
pub struct MnistConfig {
    /// How many classes there are (`K`).
    #[config(default = 10)]
    pub classes: usize,
}

/// The two-convolution net of the PyTorch tutorials, for images of 28 x 28 pixels in `0..=1`.
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use burn::prelude::*;
/// use everburn::models::mnist::MnistConfig;
///
/// let device = Device::flex();
/// let model = MnistConfig::new().init(&device);
/// let logits = model.forward(Tensor::zeros([2, 1, 28, 28], &device));
/// assert_eq!(logits.dims(), [2, 10]);
/// ```
#[derive(Module, Debug)]
pub struct Mnist {
    conv1: Conv2d,
    conv2: Conv2d,
    pool: MaxPool2d,
    fc1: Linear,
    fc2: Linear,
}

impl MnistConfig {
    /// Initialises the model on `device`.
    pub fn init(&self, device: &Device) -> Mnist {
        Mnist {
            conv1: Conv2dConfig::new([1, 10], [5, 5]).init(device),
            conv2: Conv2dConfig::new([10, 20], [5, 5]).init(device),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            fc1: LinearConfig::new(320, 50).init(device),
            fc2: LinearConfig::new(50, self.classes).init(device),
        }
    }
}

impl Mnist {
    /// Class scores of a batch of images.
    ///
    /// # Shapes
    /// - images: `[B, 1, 28, 28]`
    /// - output: logits `[B, K]`
    ///
    /// # Panics
    /// Panics if the images have another shape.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        self.blocks().forward(self, images)
    }
}

impl InBlocks for Mnist {
    type Input = Tensor<4>;
    type Output = Tensor<2>;

    fn blocks(&self) -> Blocks<Self, Tensor<4>, Tensor<2>> {
        Blocks::first("conv1", ["conv1"], |mnist: &Self, images: Tensor<4>| {
            let images = cast_for_matmul(images);
            relu(mnist.pool.forward(mnist.conv1.forward(images))) // [B, 10, 12, 12]
        })
        .then("conv2", ["conv2"], |mnist, x| {
            relu(mnist.pool.forward(mnist.conv2.forward(x))) // [B, 20, 4, 4]
        })
        .then("fc1", ["fc1"], |mnist, x| {
            relu(mnist.fc1.forward(x.flatten::<2>(1, 3))) // [B, 50]
        })
        .then("fc2", ["fc2"], |mnist, x| mnist.fc2.forward(x))
    }
}

/// The two linear layers; convolutions stay whole.
impl TensorParallel for Mnist {
    fn tensor_rules(&self) -> Vec<TensorRule> {
        vec![TensorRule::column("fc1"), TensorRule::row("fc2")]
    }
}
