//! Models of the cases that are not among Everburn's own: `tests/parity/twins.py` has their twins.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::prelude::*;
use burn::tensor::activation::{log_softmax, relu};

/// Two 3 x 3 convolutions, each with max pooling, and two linear layers.
#[derive(Module, Debug)]
pub struct SimpleCnn {
    conv1: Conv2d,
    conv2: Conv2d,
    pool: MaxPool2d,
    fc1: Linear,
    fc2: Linear,
}

impl SimpleCnn {
    pub fn init(device: &Device) -> Self {
        let convolution = |channels| {
            let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
            Conv2dConfig::new(channels, [3, 3])
                .with_padding(padding)
                .init(device)
        };
        Self {
            conv1: convolution([1, 8]),
            conv2: convolution([8, 16]),
            pool: halving(),
            fc1: LinearConfig::new(16 * 7 * 7, 64).init(device),
            fc2: LinearConfig::new(64, 10).init(device),
        }
    }

    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = self.pool.forward(relu(self.conv1.forward(images))); // [B, 8, 14, 14]
        let x = self.pool.forward(relu(self.conv2.forward(x))); // [B, 16, 7, 7]
        self.fc2.forward(relu(self.fc1.forward(x.flatten(1, 3))))
    }
}

/// 20 and 20 filters of 5 x 5, then 320-50-10 and log-softmax.
///
/// On 28 x 28 pixels: 24 x 24 after the first convolution and 12 x 12 after its pooling, then 8 x 8 and
/// 4 x 4. 20 filters of 4 x 4 are the 320 inputs of the first linear layer.
#[derive(Module, Debug)]
pub struct TwoConvolutions {
    conv1: Conv2d,
    conv2: Conv2d,
    pool: MaxPool2d,
    fc1: Linear,
    fc2: Linear,
}

impl TwoConvolutions {
    pub fn init(device: &Device) -> Self {
        Self {
            conv1: Conv2dConfig::new([1, 20], [5, 5]).init(device),
            conv2: Conv2dConfig::new([20, 20], [5, 5]).init(device),
            pool: halving(),
            fc1: LinearConfig::new(320, 50).init(device),
            fc2: LinearConfig::new(50, 10).init(device),
        }
    }

    /// Logarithms of probabilities. Cross entropy takes their log-softmax, which is they themselves: it is
    /// PyTorch's `nll_loss` of them.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = relu(self.pool.forward(self.conv1.forward(images))); // [B, 20, 12, 12]
        let x = relu(self.pool.forward(self.conv2.forward(x))); // [B, 20, 4, 4]
        let x = relu(self.fc1.forward(x.flatten::<2>(1, 3)));
        log_softmax(self.fc2.forward(x), 1)
    }
}

fn halving() -> MaxPool2d {
    MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init()
}
