//! Burn's own products and convolutions, counted as those of `everburn-kernels` count themselves.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::Shape;
use burn::tensor::ops::ConvOptions;

use crate::operations::add_operations;

/// A convolution by a weight of this shape, or one of its gradients, whose output has this many values.
fn count_convolution(weight: &Shape, output: &Shape) {
    let terms = weight.iter().skip(1).product();
    add_operations(output.num_elements(), terms);
}

/// `left * right`.
pub(super) fn matmul<B: Backend>(left: FloatTensor<B>, right: FloatTensor<B>) -> FloatTensor<B> {
    // Each value of `left` meets one of each column of `right`.
    let columns = right.shape().iter().last().copied();
    add_operations(left.shape().num_elements(), columns.unwrap_or(0));
    B::float_matmul(left, right)
}

/// The convolution.
pub(super) fn conv2d<B: Backend>(
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
    options: ConvOptions<2>,
) -> FloatTensor<B> {
    let shape = weight.shape();
    let output = B::conv2d(input, weight, bias, options);
    count_convolution(&shape, &output.shape());
    output
}

/// Its gradient with respect to its input.
pub(super) fn conv2d_input_gradient<B: Backend>(
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    gradient: FloatTensor<B>,
    options: ConvOptions<2>,
) -> FloatTensor<B> {
    count_convolution(&weight.shape(), &gradient.shape());
    B::conv2d_x_backward(input, weight, gradient, options)
}

/// Its gradient with respect to its weight.
pub(super) fn conv2d_weight_gradient<B: Backend>(
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    gradient: FloatTensor<B>,
    options: ConvOptions<2>,
) -> FloatTensor<B> {
    count_convolution(&weight.shape(), &gradient.shape());
    B::conv2d_weight_backward(input, weight, gradient, options)
}
