//! Layer norm of rows by Burn's own operations (Ba et al. 2016).

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{Scalar, Shape};

pub(super) fn normalized<B: Backend>(
    input: FloatTensor<B>,
    gamma: FloatTensor<B>,
    beta: FloatTensor<B>,
    epsilon: f64,
) -> (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>) {
    let mean = B::float_mean_dim(input.clone(), 1);
    let centered = B::float_sub(input, mean.clone());
    let squares = B::float_mul(centered.clone(), centered.clone());
    let variance = B::float_add_scalar(B::float_mean_dim(squares, 1), Scalar::Float(epsilon));
    let inverse = B::float_recip(B::float_sqrt(variance));
    let scaled = B::float_mul(B::float_mul(centered, inverse.clone()), row::<B>(gamma));
    (B::float_add(scaled, row::<B>(beta)), mean, inverse)
}

/// With `x̂ = (x - mean) * inverse` and `g = dy * gamma`, the gradient of the input is
/// `inverse * (g - mean(g) - x̂ mean(g x̂))`.
pub(super) fn gradients<B: Backend>(
    input: FloatTensor<B>,
    gamma: &FloatTensor<B>,
    mean: FloatTensor<B>,
    inverse: FloatTensor<B>,
    gradient: FloatTensor<B>,
) -> (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>) {
    let normal = B::float_mul(B::float_sub(input, mean), inverse.clone());
    let of_normal = B::float_mul(gradient.clone(), row::<B>(gamma.clone()));
    let by_normal = B::float_mul(of_normal.clone(), normal.clone());
    let shift = B::float_mean_dim(of_normal.clone(), 1);
    let slope = B::float_mul(normal.clone(), B::float_mean_dim(by_normal, 1));
    let of_input = B::float_sub(B::float_sub(of_normal, shift), slope);
    let column_sums = |values| B::float_reshape(B::float_sum_dim(values, 0), gamma.shape());
    let of_gamma = column_sums(B::float_mul(gradient.clone(), normal));
    (
        B::float_mul(of_input, inverse),
        of_gamma,
        column_sums(gradient),
    )
}

fn row<B: Backend>(values: FloatTensor<B>) -> FloatTensor<B> {
    let columns = values.shape()[0];
    B::float_reshape(values, Shape::new([1, columns]))
}
