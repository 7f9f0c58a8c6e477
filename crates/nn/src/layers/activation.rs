//! Activations.

use burn::backend::Dispatch;
use burn::prelude::*;
use burn::tensor::assert_shape;

use super::operations::LayerOps;

/// Zeros in the place of negative numbers: [`burn::tensor::activation::relu`] to the bit, with the
/// kernels of `everburn-kernels` on CPUs. It keeps its output for the backward pass rather than its
/// input, which most layers that follow keep anyway.
///
/// ```
/// use burn::prelude::*;
///
/// let input = Tensor::<1>::from_floats([1.0, -2.0], &Device::flex());
/// assert_eq!(everburn_nn::relu(input).to_data(), TensorData::from([1.0_f32, 0.0]));
/// ```
pub fn relu<const D: usize>(input: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as LayerOps>::rectify(input.into_dispatch()))
}

/// The Gaussian error linear unit: [`burn::tensor::activation::gelu`] but for rounding, with the
/// kernels of `everburn-kernels` on CPUs.
///
/// ```
/// use burn::prelude::*;
///
/// let input = Tensor::<1>::from_floats([0.0, 100.0], &Device::flex());
/// assert_eq!(everburn_nn::gelu(input).to_data(), TensorData::from([0.0_f32, 100.0]));
/// ```
pub fn gelu<const D: usize>(input: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as LayerOps>::gaussian_unit(input.into_dispatch()))
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
///
/// ```
/// use burn::prelude::*;
///
/// let scores = Tensor::<4>::zeros([1, 1, 2, 2], &Device::flex());
/// let shares = everburn_nn::causal_softmax(scores, 0.5).to_data();
/// assert_eq!(shares, TensorData::from([[[[1.0_f32, 0.0], [0.5, 0.5]]]]));
/// ```
pub fn causal_softmax(scores: Tensor<4>, scale: f64) -> Tensor<4> {
    let [_, _, length, _] = scores.dims();
    assert_shape!(scores, [_, _, length, length]);
    let scores = scores.into_dispatch();
    Tensor::from_dispatch(<Dispatch as LayerOps>::look_back(scores, scale))
}

/// Vectors turned by their positions: each pair of numbers, one of the first half of a vector and one of
/// the second, by an angle (Su et al. 2021, section 3.4.2). No gradient flows to the angles.
///
/// # Shapes
/// - vectors, output: `[B, heads, T, width]`
/// - cosines, sines: `[1, 1, T, width / 2]`
///
/// # Panics
/// Panics if the tables have another shape.
///
/// ```
/// use burn::prelude::*;
///
/// let device = Device::flex();
/// let vectors = Tensor::<4>::from_floats([[[[3.0, 4.0]]]], &device);
/// let [cosines, sines] = [0.0, 1.0].map(|x| Tensor::<4>::full([1, 1, 1, 1], x, &device));
/// let turned = everburn_nn::rotary(vectors, cosines, sines).to_data();
/// assert_eq!(turned, TensorData::from([[[[-4.0_f32, 3.0]]]]));
/// ```
pub fn rotary(vectors: Tensor<4>, cosines: Tensor<4>, sines: Tensor<4>) -> Tensor<4> {
    let [_, _, tokens, width] = vectors.dims();
    let half = width / 2;
    assert!(width == 2 * half, "{width} numbers are no pairs");
    assert_shape!(cosines, [1, 1, tokens, half]);
    assert_shape!(sines, [1, 1, tokens, half]);
    Tensor::from_dispatch(<Dispatch as LayerOps>::turn(
        vectors.into_dispatch(),
        cosines.into_dispatch(),
        sines.into_dispatch(),
        false,
    ))
}
