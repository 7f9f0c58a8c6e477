//! Convolution by its definition.

use super::Float;
use crate::conv::Conv2dShape;
use crate::error::{KernelError, check_length};

const CONV: &str = "conv2d";

/// Indices of one product: input, weight, output.
struct Product {
    input: usize,
    weight: usize,
    output: usize,
}

/// Calls `body` for every product of a convolution.
fn each_product(shape: &Conv2dShape, mut body: impl FnMut(Product)) -> Result<(), KernelError> {
    let [rows, columns] = shape.output()?;
    let [c_in, c_out] = shape.group_channels();
    for image in 0..shape.batch {
        for o in 0..shape.channels[1] {
            let group = o / c_out;
            for pixel in 0..rows * columns {
                let at = [pixel / columns, pixel % columns];
                for tap in 0..c_in * shape.taps() {
                    let (c, k) = (tap / shape.taps(), tap % shape.taps());
                    let k = [k / shape.kernel[1], k % shape.kernel[1]];
                    let place = [0, 1].map(|axis| {
                        let padded = at[axis] * shape.stride[axis] + k[axis] * shape.dilation[axis];
                        padded
                            .checked_sub(shape.padding[axis].0)
                            .filter(|&place| place < shape.input[axis])
                    });
                    let [Some(y), Some(x)] = place else { continue };
                    let plane = image * shape.channels[0] + group * c_in + c;
                    body(Product {
                        input: (plane * shape.input[0] + y) * shape.input[1] + x,
                        weight: o * c_in * shape.taps() + tap,
                        output: (image * shape.channels[1] + o) * rows * columns + pixel,
                    });
                }
            }
        }
    }
    Ok(())
}

/// [`crate::conv2d`] by definition.
///
/// # Errors
/// As there.
pub fn conv2d<T: Float>(
    shape: &Conv2dShape,
    input: &[T],
    weight: &[T],
    bias: Option<&[T]>,
    output: &mut [T],
) -> Result<(), KernelError> {
    check_length(CONV, "input", shape.input_len()?, input.len())?;
    check_length(CONV, "weight", shape.weight_len()?, weight.len())?;
    check_length(CONV, "output", shape.output_len()?, output.len())?;
    output.fill(T::ZERO);
    if let Some(bias) = bias {
        check_length(CONV, "bias", shape.channels[1], bias.len())?;
        let [rows, columns] = shape.output()?;
        for (plane, output) in output.chunks_mut((rows * columns).max(1)).enumerate() {
            output.fill(bias[plane % shape.channels[1]]);
        }
    }
    each_product(shape, |at| {
        output[at.output] += weight[at.weight] * input[at.input];
    })
}

/// [`crate::conv2d_input_grad`] by definition.
///
/// # Errors
/// As there.
pub fn conv2d_input_grad<T: Float>(
    shape: &Conv2dShape,
    gradient: &[T],
    weight: &[T],
    input_grad: &mut [T],
) -> Result<(), KernelError> {
    check_length(CONV, "gradient", shape.output_len()?, gradient.len())?;
    check_length(CONV, "weight", shape.weight_len()?, weight.len())?;
    check_length(CONV, "input_grad", shape.input_len()?, input_grad.len())?;
    input_grad.fill(T::ZERO);
    each_product(shape, |at| {
        input_grad[at.input] += weight[at.weight] * gradient[at.output];
    })
}

/// [`crate::conv2d_weight_grad`] by definition.
///
/// # Errors
/// As there.
pub fn conv2d_weight_grad<T: Float>(
    shape: &Conv2dShape,
    input: &[T],
    gradient: &[T],
    weight_grad: &mut [T],
) -> Result<(), KernelError> {
    check_length(CONV, "input", shape.input_len()?, input.len())?;
    check_length(CONV, "gradient", shape.output_len()?, gradient.len())?;
    check_length(CONV, "weight_grad", shape.weight_len()?, weight_grad.len())?;
    weight_grad.fill(T::ZERO);
    each_product(shape, |at| {
        weight_grad[at.weight] += gradient[at.output] * input[at.input];
    })
}

/// [`crate::conv2d_bias_grad`] by definition.
///
/// # Errors
/// As there.
pub fn conv2d_bias_grad<T: Float>(
    shape: &Conv2dShape,
    gradient: &[T],
    bias_grad: &mut [T],
) -> Result<(), KernelError> {
    check_length(CONV, "gradient", shape.output_len()?, gradient.len())?;
    check_length(CONV, "bias_grad", shape.channels[1], bias_grad.len())?;
    let [rows, columns] = shape.output()?;
    bias_grad.fill(T::ZERO);
    for (plane, gradient) in gradient.chunks((rows * columns).max(1)).enumerate() {
        for &value in gradient {
            bias_grad[plane % shape.channels[1]] += value;
        }
    }
    Ok(())
}
