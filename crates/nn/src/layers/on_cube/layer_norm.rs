//! Layer norm, and its gradients (Ba et al. 2016).

use burn::tensor::Shape;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::columns;
use super::rows::{Rows, address, sum_of_cube};

/// `[rows, columns]`: each row less its mean, times the inverse of its deviation, times `gamma`, plus `beta`.
#[cube(launch, address_type = "dynamic")]
fn normalize(
    input: &Tensor<f32>,
    gamma: &Tensor<f32>,
    beta: &Tensor<f32>,
    output: &mut Tensor<f32>,
    means: &mut Tensor<f32>,
    inverses: &mut Tensor<f32>,
    epsilon: f32,
    #[comptime] threads: usize,
) {
    let row = CUBE_POS;
    if row >= input.shape(0) {
        terminate!();
    }
    let columns = input.shape(1);
    let (start, out) = (row * input.stride(0), row * output.stride(0));
    let first = UNIT_POS as usize;

    let mut sum = f32::new(0.0);
    let mut column = first;
    while column < columns {
        sum += input[start + column];
        column += threads;
    }
    let mean = sum_of_cube(sum, threads) / f32::cast_from(columns);

    let mut squares = f32::new(0.0);
    let mut column = first;
    while column < columns {
        let centered = input[start + column] - mean;
        squares += centered * centered;
        column += threads;
    }
    let variance = sum_of_cube(squares, threads) / f32::cast_from(columns);
    let inverse = 1.0 / (variance + epsilon).sqrt();

    let mut column = first;
    while column < columns {
        let normal = (input[start + column] - mean) * inverse;
        output[out + column] = normal * gamma[column] + beta[column];
        column += threads;
    }
    if UNIT_POS == 0 {
        means[row] = mean;
        inverses[row] = inverse;
    }
}

/// With `x̂ = (x - mean) * inverse` and `g = dy * gamma`, the gradient of the input is
/// `inverse * (g - mean(g) - x̂ mean(g x̂))`; `products` is `dy * x̂`, whose columns add up to gamma's gradient.
#[cube(launch, address_type = "dynamic")]
fn normalize_gradient(
    input: &Tensor<f32>,
    gamma: &Tensor<f32>,
    means: &Tensor<f32>,
    inverses: &Tensor<f32>,
    gradient: &Tensor<f32>,
    input_grad: &mut Tensor<f32>,
    products: &mut Tensor<f32>,
    #[comptime] threads: usize,
) {
    let row = CUBE_POS;
    if row >= input.shape(0) {
        terminate!();
    }
    let columns = input.shape(1);
    let (start, of_gradient) = (row * input.stride(0), row * gradient.stride(0));
    let (out, of_product) = (row * input_grad.stride(0), row * products.stride(0));
    let (mean, inverse) = (means[row], inverses[row]);
    let first = UNIT_POS as usize;

    let mut sum = f32::new(0.0);
    let mut by_normal = f32::new(0.0);
    let mut column = first;
    while column < columns {
        let normal = (input[start + column] - mean) * inverse;
        let given = gradient[of_gradient + column];
        let of_normal = given * gamma[column];
        products[of_product + column] = given * normal;
        sum += of_normal;
        by_normal += of_normal * normal;
        column += threads;
    }
    let shift = sum_of_cube(sum, threads) / f32::cast_from(columns);
    let slope = sum_of_cube(by_normal, threads) / f32::cast_from(columns);

    let mut column = first;
    while column < columns {
        let normal = (input[start + column] - mean) * inverse;
        let of_normal = gradient[of_gradient + column] * gamma[column];
        input_grad[out + column] = (of_normal - shift - normal * slope) * inverse;
        column += threads;
    }
}

/// The normalised rows; their means and inverse deviations, `[rows, 1]` each.
pub(super) fn normalized(
    input: CubeTensor,
    gamma: CubeTensor,
    beta: CubeTensor,
    epsilon: f32,
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let input = Rows::of(input);
    let [gamma, beta] = [gamma, beta].map(into_contiguous);
    let output = input.like();
    let [means, inverses] = [(); 2].map(|()| input.numbers(Shape::new([input.count, 1])));
    if input.is_empty() {
        return (output.tensor, means, inverses);
    }
    let (cubes, threads) = input.cubes();
    normalize::launch(
        &input.tensor.client,
        cubes,
        threads,
        address([&input.tensor, &output.tensor]),
        input.matrix(),
        gamma.into_tensor_arg(),
        beta.into_tensor_arg(),
        output.matrix(),
        means.clone().into_tensor_arg(),
        inverses.clone().into_tensor_arg(),
        epsilon,
        input.threads(),
    );
    (output.tensor, means, inverses)
}

/// The gradients of input, gamma and beta; from input, gamma, means, inverse deviations and the output's gradient.
pub(super) fn gradients(
    [input, gamma, means, inverses, gradient]: [CubeTensor; 5],
) -> (CubeTensor, CubeTensor, CubeTensor) {
    let [input, gradient] = [input, gradient].map(Rows::of);
    let [gamma, means, inverses] = [gamma, means, inverses].map(into_contiguous);
    let [input_grad, products] = [(); 2].map(|()| input.like());
    if !input.is_empty() {
        let (cubes, threads) = input.cubes();
        normalize_gradient::launch(
            &input.tensor.client,
            cubes,
            threads,
            address([&input.tensor, &gradient.tensor, &products.tensor]),
            input.matrix(),
            gamma.into_tensor_arg(),
            means.into_tensor_arg(),
            inverses.into_tensor_arg(),
            gradient.matrix(),
            input_grad.matrix(),
            products.matrix(),
            input.threads(),
        );
    }
    let gamma_grad = columns::sums(products.tensor);
    let beta_grad = columns::sums(gradient.tensor);
    (input_grad.tensor, gamma_grad, beta_grad)
}
