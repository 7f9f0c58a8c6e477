//! Dropout.

use burn::backend::Dispatch;
use burn::config::Config;
use burn::nn as burns;
use burn::prelude::*;

use super::drop_in::drop_in;
use super::operations::LayerOps;

/// Configuration of [`Dropout`]: the same as [`burn::nn::DropoutConfig`].
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// let dropout = everburn::nn::DropoutConfig::new(0.1).init();
/// assert_eq!(dropout.prob, 0.1);
/// ```
#[derive(Config, Debug)]
pub struct DropoutConfig {
    /// The share of values that become zero while training, in `0..1`.
    pub prob: f64,
}

impl DropoutConfig {
    /// Initialises the module.
    ///
    /// # Panics
    /// Panics if the share is not in `0..1`.
    pub fn init(&self) -> Dropout {
        burns::DropoutConfig::new(self.prob).init().into()
    }
}

/// Burn's [`burn::nn::Dropout`], which on CPUs draws two numbers from the device's generator in place
/// of one for each value, and keeps no mask for the backward pass.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::DropoutConfig;
///
/// let dropout = DropoutConfig::new(0.5).init();
/// let ones = Tensor::<1>::ones([1000], &Device::flex().autodiff());
/// let mean: f32 = dropout.forward(ones).mean().into_scalar();
/// assert!((mean - 1.0).abs() < 0.3);
/// ```
#[derive(Debug, Clone)]
pub struct Dropout {
    dropout: burns::Dropout,
}

drop_in!(Dropout, dropout: burns::Dropout);

impl Dropout {
    /// Sets values to zero at random and multiplies the others, on a device with autodiff and if it is
    /// not frozen; else it yields its input.
    ///
    /// # Shapes
    /// - input, output: any
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let Self { dropout } = self;
        let trains = input.device().is_autodiff() && dropout.training.is_enabled();
        if !trains || dropout.prob == 0.0 {
            return input;
        }
        let input = input.into_dispatch();
        let (output, _) = <Dispatch as LayerOps>::dropout(input, dropout.prob);
        Tensor::from_dispatch(output)
    }
}
