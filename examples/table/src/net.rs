//! The model.

// `everburn::burn` is Burn itself; its derives look for it under the name `burn`.
use everburn::burn;
use everburn::burn::prelude::*;
use everburn::nn::{Linear, LinearConfig, Relu};

/// The model, an ordinary Burn module: features `[B, width]` to prices `[B]`.
#[derive(Module, Debug)]
pub struct Regressor {
    input: Linear,
    hidden: Linear,
    output: Linear,
    relu: Relu,
}

impl Regressor {
    /// A model of `features` features, whose hidden layers have `width` numbers.
    pub fn new(features: usize, width: usize, device: &Device) -> Self {
        Self {
            input: LinearConfig::new(features, width).init(device),
            hidden: LinearConfig::new(width, width).init(device),
            output: LinearConfig::new(width, 1).init(device),
            relu: Relu::new(),
        }
    }

    /// Standardised prices `[B]` of features `[B, features]`.
    pub fn forward(&self, features: Tensor<2>) -> Tensor<1> {
        let hidden = self.relu.forward(self.input.forward(features));
        let hidden = self.relu.forward(self.hidden.forward(hidden));
        self.output.forward(hidden).squeeze_dim::<1>(1)
    }
}
