//! The model that the tests cut into segments, and its gradients.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{
    Dropout, DropoutConfig, Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear,
    LinearConfig,
};
use burn::prelude::*;
use burn::tensor::activation::gelu;
use burn::tensor::{Gradients, Int};

use crate::numbers::{all_gradients, values};

pub const WIDTH: usize = 6;

/// A layer with a residual path.
#[derive(Module, Debug)]
pub struct Layer {
    pub norm: LayerNorm,
    pub up: Linear,
    pub down: Linear,
    pub dropout: Dropout,
}

impl Layer {
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let wide = gelu(self.up.forward(self.norm.forward(x.clone())));
        x + self.dropout.forward(self.down.forward(wide))
    }
}

#[derive(Module, Debug)]
pub struct Net {
    pub embedding: Embedding,
    pub layers: Vec<Layer>,
    pub frozen: Linear,
    pub unused: Linear,
}

impl Net {
    pub fn new(device: &Device, layers: usize, dropout: f64) -> Self {
        struct Draw;
        impl ModuleVisitor for Draw {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let _ = param.val();
            }
        }
        let net = Self::undrawn(device, layers, dropout);
        net.visit(&mut Draw);
        net
    }

    /// With initial weights that are drawn when they are first asked for.
    pub fn undrawn(device: &Device, layers: usize, dropout: f64) -> Self {
        let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
        let layer = |_| Layer {
            norm: LayerNormConfig::new(WIDTH).init(device),
            up: linear(WIDTH, 2 * WIDTH),
            down: linear(2 * WIDTH, WIDTH),
            dropout: DropoutConfig::new(dropout).init(),
        };
        let mut frozen = linear(WIDTH, WIDTH);
        frozen.weight = frozen.weight.set_require_grad(false);
        frozen.bias = frozen.bias.map(|bias| bias.set_require_grad(false));
        Self {
            embedding: EmbeddingConfig::new(5, WIDTH).init(device),
            layers: (0..layers).map(layer).collect(),
            frozen,
            unused: linear(WIDTH, WIDTH),
        }
    }

    pub fn embed(&self, tokens: Tensor<1, Int>) -> Tensor<2> {
        let rows: Tensor<3> = self.embedding.forward(tokens.unsqueeze());
        rows.squeeze_dim(0)
    }
}

pub fn autodiff() -> Device {
    Device::flex().autodiff()
}

pub fn rows(device: &Device) -> Tensor<2> {
    let numbers = (0..4 * WIDTH).map(|i| ((i * 37 % 19) as f32 - 9.0) / 7.0);
    Tensor::<1>::from_floats(numbers.collect::<Vec<_>>().as_slice(), device).reshape([4, WIDTH])
}

pub fn tokens(device: &Device) -> Tensor<1, Int> {
    Tensor::from_ints([3, 1, 3, 0], device)
}

/// The bits of each parameter's gradient, in the order of the module; `None` for those without.
pub fn gradients<M: Module>(model: &M, gradients: &Gradients) -> Vec<Option<Vec<u32>>> {
    let found = all_gradients(model, gradients).into_iter();
    found.map(|(_, gradient)| gradient.map(bits)).collect()
}

pub fn bits(values: Vec<f32>) -> Vec<u32> {
    values.into_iter().map(f32::to_bits).collect()
}

/// What a forward and a backward pass of one model yield, to the bit.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    pub output: Vec<u32>,
    pub input: Option<Vec<u32>>,
    pub parameters: Vec<Option<Vec<u32>>>,
}

/// Runs `forward` on [`rows`] and differentiates a sum in which each output counts differently.
pub fn outcome(model: &Net, forward: impl Fn(&Net, Tensor<2>) -> Tensor<2>) -> Outcome {
    let input = rows(&model.devices()[0]).require_grad();
    let output = forward(model, input.clone());
    let weights = rows(&output.device()).tanh();
    let all = (output.clone() * weights).sum().backward();
    Outcome {
        output: bits(values(output)),
        input: input.grad(&all).map(|gradient| bits(values(gradient))),
        parameters: gradients(model, &all),
    }
}

pub fn plain(net: &Net, x: Tensor<2>) -> Tensor<2> {
    net.layers.iter().fold(x, |x, layer| layer.forward(x))
}
