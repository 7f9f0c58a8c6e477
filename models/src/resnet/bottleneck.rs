//! The block that ResNet-50 is made of.

use burn::module::Module;
use burn::prelude::*;
use everburn_nn::conv::{Conv2d, Conv2dConfig};
use everburn_nn::tensor::activation::relu;
use everburn_nn::{BatchNorm, BatchNormConfig, Initializer, PaddingConfig2d};

/// How many times as many channels a bottleneck yields as its 3 x 3 convolution has.
pub const EXPANSION: usize = 4;

/// Configuration of [`Bottleneck`].
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use burn::prelude::*;
/// use everburn::models::resnet50::BottleneckConfig;
///
/// let device = Device::flex();
/// let model = BottleneckConfig::new(8, 4).init(&device);
/// assert_eq!(model.forward(Tensor::zeros([2, 8, 4, 4], &device)).dims(), [2, 16, 4, 4]);
/// ```
#[derive(Config, Debug)]
pub struct BottleneckConfig {
    /// How many channels come in.
    pub inputs: usize,
    /// How many channels the 3 x 3 convolution has; [`EXPANSION`] times as many go out.
    pub width: usize,
    /// By how much the block makes the image smaller.
    #[config(default = 1)]
    pub stride: usize,
    /// Start with a last gamma of zero, so that at first the block is its shortcut (Goyal et al.
    /// 2017, section 5.1).
    #[config(default = false)]
    pub zero_last_gamma: bool,
}

/// A residual block of three convolutions: 1 x 1 to fewer channels, 3 x 3, 1 x 1 to
/// [`EXPANSION`] times as many; each with batch norm (He et al. 2015, figure 5, right).
///
/// The stride is in the 3 x 3 convolution, as in torchvision ("ResNet v1.5"); in the paper it is in the
/// first 1 x 1. The shortcut is the input itself, or a strided 1 x 1 convolution with batch norm
/// where the shape changes. Names are torchvision's: `downsample.0` is that convolution, `downsample.1`
/// its batch norm.
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use burn::prelude::*;
/// use everburn::models::resnet50::BottleneckConfig;
///
/// let device = Device::flex();
/// let block = BottleneckConfig::new(8, 4).with_stride(2).init(&device);
/// let output = block.forward(Tensor::zeros([1, 8, 6, 6], &device));
/// assert_eq!(output.dims(), [1, 16, 3, 3]);
/// ```
#[derive(Module, Debug)]
pub struct Bottleneck {
    conv1: Conv2d,
    bn1: BatchNorm,
    conv2: Conv2d,
    bn2: BatchNorm,
    conv3: Conv2d,
    bn3: BatchNorm,
    downsample: Option<(Conv2d, BatchNorm)>,
}

impl BottleneckConfig {
    /// Initialises the block on `device`.
    pub fn init(&self, device: &Device) -> Bottleneck {
        let outputs = EXPANSION * self.width;
        let mut bn3 = batch_norm(outputs, device);
        if self.zero_last_gamma {
            bn3.gamma = Initializer::Zeros.init([outputs], device);
        }
        let reshapes = self.stride != 1 || self.inputs != outputs;
        let downsample = reshapes.then(|| {
            let shortcut = convolution([self.inputs, outputs], 1, self.stride);
            (shortcut.init(device), batch_norm(outputs, device))
        });
        Bottleneck {
            conv1: convolution([self.inputs, self.width], 1, 1).init(device),
            bn1: batch_norm(self.width, device),
            conv2: convolution([self.width, self.width], 3, self.stride).init(device),
            bn2: batch_norm(self.width, device),
            conv3: convolution([self.width, outputs], 1, 1).init(device),
            bn3,
            downsample,
        }
    }
}

impl Bottleneck {
    /// The block's output; the shortcut is added before the last relu.
    ///
    /// # Shapes
    /// - x: `[B, C, H, W]` with the configured channels
    /// - output: `[B, 4 * width, H / stride, W / stride]`, sizes rounded up
    ///
    /// # Panics
    /// Panics if `x` has another number of channels.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let shortcut = match &self.downsample {
            None => x.clone(),
            Some((convolution, norm)) => norm.forward(convolution.forward(x.clone())),
        };
        let x = relu(self.bn1.forward(self.conv1.forward(x)));
        let x = relu(self.bn2.forward(self.conv2.forward(x)));
        let x = self.bn3.forward(self.conv3.forward(x));
        relu(x + shortcut)
    }
}

/// A convolution without bias, for the batch norm that follows has its own shift. The padding is
/// half the kernel: with stride 1 the image keeps its size. Weights are drawn as He et al. 2015
/// ("Delving deep into rectifiers") do for relu, by the number of outputs, as torchvision has it.
pub(crate) fn convolution(channels: [usize; 2], kernel: usize, stride: usize) -> Conv2dConfig {
    let half = kernel / 2;
    Conv2dConfig::new(channels, [kernel, kernel])
        .with_stride([stride, stride])
        .with_padding(PaddingConfig2d::Explicit(half, half, half, half))
        .with_bias(false)
        .with_initializer(Initializer::KaimingNormal {
            gain: std::f64::consts::SQRT_2,
            fan_out_only: true,
        })
}

pub(crate) fn batch_norm(features: usize, device: &Device) -> BatchNorm {
    BatchNormConfig::new(features).init(device)
}
