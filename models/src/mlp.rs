//! `mlp`: a multi-layer perceptron on flattened images.

use burn::module::Module;
use burn::prelude::*;
use everburn_nn::tensor::activation::relu;
use everburn_nn::{
    Blocks, InBlocks, Linear, LinearConfig, TensorParallel, TensorRule, cast_for_matmul,
};

/// Configuration of [`Mlp`].
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use burn::prelude::*;
/// use everburn::models::mlp::MlpConfig;
///
/// let device = Device::flex();
/// let model = MlpConfig::new().with_hidden(vec![32]).init(&device);
/// assert_eq!(model.forward(Tensor::zeros([2, 1, 28, 28], &device)).dims(), [2, 10]);
/// ```
#[derive(Config, Debug)]
pub struct MlpConfig {
    /// How many numbers one sample has (`C * H * W`).
    #[config(default = 784)]
    pub inputs: usize,
    /// The width of each hidden layer; empty for a linear classifier.
    #[config(default = "vec![256, 128]")]
    pub hidden: Vec<usize>,
    /// How many classes there are (`K`).
    #[config(default = 10)]
    pub classes: usize,
}

/// A perceptron with relu between its layers.
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use burn::prelude::*;
/// use everburn::models::mlp::MlpConfig;
///
/// let device = Device::flex();
/// let model = MlpConfig::new().with_hidden(vec![32]).init(&device);
/// let logits = model.forward(Tensor::zeros([2, 1, 28, 28], &device));
/// assert_eq!(logits.dims(), [2, 10]);
/// ```
#[derive(Module, Debug)]
pub struct Mlp {
    layers: Vec<Linear>,
}

impl MlpConfig {
    /// Initialises the model on `device`.
    pub fn init(&self, device: &Device) -> Mlp {
        let widths = std::iter::once(self.inputs)
            .chain(self.hidden.iter().copied())
            .chain([self.classes])
            .collect::<Vec<_>>();
        Mlp {
            layers: widths
                .windows(2)
                .map(|pair| LinearConfig::new(pair[0], pair[1]).init(device))
                .collect(),
        }
    }
}

impl Mlp {
    /// Class scores of a batch of images.
    ///
    /// # Shapes
    /// - images: `[B, C, H, W]` with `C * H * W` equal to the configured inputs
    /// - output: logits `[B, K]`
    ///
    /// # Panics
    /// Panics if the images have another size.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        self.blocks().forward(self, images)
    }
}

impl InBlocks for Mlp {
    type Input = Tensor<4>;
    type Output = Tensor<2>;

    fn blocks(&self) -> Blocks<Self, Tensor<4>, Tensor<2>> {
        let path = |index| format!("layers.{index}");
        let first = Blocks::first(path(0), [path(0)], |mlp: &Self, images: Tensor<4>| {
            mlp.layers[0].forward(cast_for_matmul(images.flatten::<2>(1, 3)))
        });
        (1..self.layers.len()).fold(first, |blocks, index| {
            blocks.then(path(index), [path(index)], move |mlp, x| {
                mlp.layers[index].forward(relu(x))
            })
        })
    }
}

/// Layers in pairs; one that is left over stays whole.
impl TensorParallel for Mlp {
    fn tensor_rules(&self) -> Vec<TensorRule> {
        let pairs = (1..self.layers.len()).step_by(2);
        let rules = pairs.flat_map(|second| {
            let path = |index| format!("layers.{index}");
            [
                TensorRule::column(path(second - 1)),
                TensorRule::row(path(second)),
            ]
        });
        rules.collect()
    }
}
