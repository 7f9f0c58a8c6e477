//! Activations.

use burn::backend::Dispatch;
use burn::module::Module;
use burn::nn::activation as burns;
use burn::prelude::*;
use burn::tensor::activation::gelu_approximate;
use burn::tensor::assert_shape;

use super::operations::LayerOps;

/// Zeros in the place of negative numbers: [`burn::tensor::activation::relu`] to the bit, with the
/// kernels of `everburn-kernels` on CPUs. It keeps its output for the backward pass rather than its
/// input, which most layers that follow keep anyway.
pub fn relu<const D: usize>(input: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as LayerOps>::relu(input.into_dispatch()))
}

/// The Gaussian error linear unit: [`burn::tensor::activation::gelu`] but for rounding, with the
/// kernels of `everburn-kernels` on CPUs.
pub fn gelu<const D: usize>(input: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as LayerOps>::gelu(input.into_dispatch()))
}

/// Burn's [`burn::nn::Relu`], with the kernels of `everburn-kernels` on CPUs: see
/// [`relu`](crate::tensor::activation::relu).
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::Relu;
///
/// let input = Tensor::<1>::from_floats([1.0, -2.0], &Device::flex());
/// assert_eq!(Relu::new().forward(input).to_data(), TensorData::from([1.0_f32, 0.0]));
/// ```
#[derive(Module, Debug, Default)]
pub struct Relu;

impl Relu {
    /// Creates the module.
    pub fn new() -> Self {
        Self
    }

    /// Zeros in the place of negative numbers.
    ///
    /// # Shapes
    /// - input, output: any
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        relu(input)
    }
}

impl From<Relu> for burns::Activation {
    fn from(_: Relu) -> Self {
        Self::Relu(burns::Relu::new())
    }
}

/// Burn's [`burn::nn::Gelu`], with the kernels of `everburn-kernels` on CPUs: see
/// [`gelu`](crate::tensor::activation::gelu). The approximation is Burn's.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::Gelu;
///
/// let input = Tensor::<1>::from_floats([0.0, 100.0], &Device::flex());
/// assert_eq!(Gelu::new().forward(input).to_data(), TensorData::from([0.0_f32, 100.0]));
/// ```
#[derive(Module, Debug, Default)]
pub struct Gelu {
    /// Whether the approximation by the hyperbolic tangent is computed.
    pub approximate: bool,
}

impl Gelu {
    /// Creates the module; it computes the exact function.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates the module; it computes the approximation by the hyperbolic tangent.
    pub fn new_approximate() -> Self {
        Self { approximate: true }
    }

    /// The Gaussian error linear unit of each value.
    ///
    /// # Shapes
    /// - input, output: any
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        match self.approximate {
            true => gelu_approximate(input),
            false => gelu(input),
        }
    }
}

impl From<Gelu> for burns::Activation {
    fn from(gelu: Gelu) -> Self {
        Self::Gelu(match gelu.approximate {
            true => burns::Gelu::new_approximate(),
            false => burns::Gelu::new(),
        })
    }
}

/// How much each token looks at itself and at those before it: the softmax of `scale * scores` over
/// the columns `0..=r` of each row `r`, zero for the others. One pass over the scores, where a mask, a
/// softmax and a scaling are three.
///
/// # Shapes
/// - scores, output: `[B, heads, T, T]`
///
/// # Panics
/// Panics if the last two extents differ.
pub fn causal_softmax(scores: Tensor<4>, scale: f64) -> Tensor<4> {
    let [_, _, length, _] = scores.dims();
    assert_shape!(scores, [_, _, length, length]);
    let scores = scores.into_dispatch();
    Tensor::from_dispatch(<Dispatch as LayerOps>::causal_softmax(scores, scale))
}

/// Rotary position embedding (RoPE): vectors rotated by their positions: each pair of numbers, one of the first half of a vector and one of
/// the second, by an angle (Su et al. 2021, section 3.4.2). No gradient flows to the angles.
///
/// # Shapes
/// - vectors, output: `[B, heads, T, width]`
/// - cosines, sines: `[1, 1, T, width / 2]`
///
/// # Panics
/// Panics if the tables have another shape.
pub fn rope(vectors: Tensor<4>, cosines: Tensor<4>, sines: Tensor<4>) -> Tensor<4> {
    let [_, _, tokens, width] = vectors.dims();
    let half = width / 2;
    assert!(width == 2 * half, "{width} numbers are no pairs");
    assert_shape!(cosines, [1, 1, tokens, half]);
    assert_shape!(sines, [1, 1, tokens, half]);
    Tensor::from_dispatch(<Dispatch as LayerOps>::rope(
        vectors.into_dispatch(),
        cosines.into_dispatch(),
        sines.into_dispatch(),
        false,
    ))
}
