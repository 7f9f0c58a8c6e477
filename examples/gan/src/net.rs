//! The model.

// `everburn::burn` is Burn itself; its derives look for it under the name `burn`.
use everburn::burn;
use everburn::burn::prelude::*;
use everburn::nn::{Linear, LinearConfig, Relu};

/// Generator or discriminator, an ordinary Burn module: noise to points, or points to how real they look.
#[derive(Module, Debug)]
pub struct Net {
    input: Linear,
    hidden: Linear,
    output: Linear,
    relu: Relu,
}

impl Net {
    /// A model from rows of `inputs` numbers to rows of `outputs`.
    pub fn new(inputs: usize, outputs: usize, device: &Device) -> Self {
        let layer = |from, to| LinearConfig::new(from, to).init(device);
        Self { input: layer(inputs, 64), hidden: layer(64, 64), output: layer(64, outputs), relu: Relu::new() }
    }

    /// What the model makes of a batch of rows.
    pub fn forward(&self, rows: Tensor<2>) -> Tensor<2> {
        let hidden = self.relu.forward(self.input.forward(rows));
        self.output.forward(self.relu.forward(self.hidden.forward(hidden)))
    }
}
