//! Layer norm.

use burn::backend::Dispatch;
use burn::config::Config;
use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::nn::Initializer;
use burn::prelude::*;
use burn::tensor::module::layer_norm;
use burn::tensor::{DType, FloatDType, assert_shape};

use super::operations::LayerOps;
use crate::precision::{in_f32, is_half};

/// Configuration of [`LayerNorm`]: the same as [`burn::nn::LayerNormConfig`].
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// let norm = everburn::nn::LayerNormConfig::new(8).init(&burn::prelude::Device::flex());
/// assert_eq!(norm.gamma.dims(), [8]);
/// ```
#[derive(Config, Debug)]
pub struct LayerNormConfig {
    /// The size of the input features.
    pub d_model: usize,
    /// What is added to the variance so that nothing is divided by zero.
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// Whether a bias is added.
    #[config(default = true)]
    pub bias: bool,
}

impl LayerNormConfig {
    /// Initialises the module on `device`.
    pub fn init(&self, device: &Device) -> LayerNorm {
        LayerNorm {
            gamma: Initializer::Ones.init([self.d_model], device),
            beta: (self.bias).then(|| Initializer::Zeros.init([self.d_model], device)),
            epsilon: self.epsilon,
        }
    }
}

/// [`burn::nn::LayerNorm`] with the kernels of `everburn-kernels` on CPUs, forward and backward in one
/// pass each. Parameters, their paths and records are the same, so a checkpoint loads either way.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use burn::tensor::Tolerance;
/// use everburn::nn::LayerNormConfig;
///
/// let device = Device::flex();
/// let norm = LayerNormConfig::new(2).init(&device);
/// let output = norm.forward(Tensor::<2>::from_floats([[1.0, 3.0]], &device)).to_data();
/// output.assert_approx_eq::<f32>(&TensorData::from([[-1.0, 1.0]]), Tolerance::default());
/// ```
// Not a wrapper of Burn's module, which keeps its epsilon to itself.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct LayerNorm {
    /// What normalised features are multiplied by, `[d_model]`.
    pub gamma: Param<Tensor<1>>,
    /// What is added to them, `[d_model]`.
    pub beta: Option<Param<Tensor<1>>>,
    epsilon: f64,
}

impl ModuleDisplay for LayerNorm {
    fn custom_settings(&self) -> Option<DisplaySettings> {
        DisplaySettings::new()
            .with_new_line_after_attribute(false)
            .optional()
    }

    fn custom_content(&self, content: Content) -> Option<Content> {
        let [d_model] = self.gamma.shape().dims();
        content
            .add("d_model", &d_model)
            .add("epsilon", &self.epsilon)
            .add("bias", &self.beta.is_some())
            .optional()
    }
}

impl LayerNorm {
    /// Normalises each vector of features.
    ///
    /// # Shapes
    /// - input, output: `[.., d_model]`
    ///
    /// # Panics
    /// Panics if the last dimension of the input is not `d_model`.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let [d_model] = self.gamma.shape().dims();
        assert_shape!(input, [.., d_model]);
        let (gamma, beta) = (self.gamma.val(), self.beta.as_ref().map(Param::val));
        if !is_half(input.dtype()) {
            return self.normalize(input, gamma, beta);
        }
        // The sum of squares of half-precision numbers is none of those.
        let gamma = gamma.cast(FloatDType::F32);
        let beta = beta.map(|beta| beta.cast(FloatDType::F32));
        in_f32(input, |input| self.normalize(input, gamma, beta))
    }

    fn normalize<const D: usize>(
        &self,
        input: Tensor<D>,
        gamma: Tensor<1>,
        beta: Option<Tensor<1>>,
    ) -> Tensor<D> {
        let [d_model] = gamma.dims();
        let beta = match (input.dtype(), beta) {
            (DType::F32, Some(beta)) => beta,
            (_, beta) => return layer_norm(input, gamma, beta, self.epsilon),
        };
        let shape = input.dims();
        let rows = shape[..D - 1].iter().product::<usize>();
        let (output, _, _) = <Dispatch as LayerOps>::layer_norm(
            input.reshape([rows, d_model]).into_dispatch(),
            gamma.into_dispatch(),
            beta.into_dispatch(),
            self.epsilon,
        );
        Tensor::<2>::from_dispatch(output).reshape(shape)
    }
}
