//! The model.

// `everburn::burn` is Burn itself; its derives look for it under the name `burn`.
use everburn::burn;
use everburn::burn::prelude::*;
use everburn::nn::{Linear, LinearConfig, Relu};

/// The model, an ordinary Burn module: columns `[B, 4]` to prices `[B, 1]`.
#[derive(Module, Debug)]
pub struct Regressor {
    input: Linear,
    hidden: Linear,
    output: Linear,
    relu: Relu,
}

impl Regressor {
    /// A model whose hidden layers have `width` numbers.
    pub fn new(width: usize, device: &Device) -> Self {
        Self {
            input: LinearConfig::new(4, width).init(device),
            hidden: LinearConfig::new(width, width).init(device),
            output: LinearConfig::new(width, 1).init(device),
            relu: Relu::new(),
        }
    }

    /// Prices `[B, 1]` of columns `[B, 4]`.
    pub fn forward(&self, columns: Tensor<2>) -> Tensor<2> {
        let hidden = self.relu.forward(self.input.forward(columns));
        let hidden = self.relu.forward(self.hidden.forward(hidden));
        self.output.forward(hidden)
    }
}
