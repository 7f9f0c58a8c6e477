//! Convolution by its definition.

use super::Conv2dShape;

/// Indices of one product: input, weight, output.
struct Product {
    input: usize,
    weight: usize,
    output: usize,
}

/// Calls `body` for every product of a convolution.
fn each_product(shape: &Conv2dShape, mut body: impl FnMut(Product)) {
    let [rows, columns] = shape.output().unwrap();
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
}

pub(super) fn conv2d(shape: &Conv2dShape, input: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
    let [rows, columns] = shape.output().unwrap();
    let mut output = vec![0.0; shape.output_len().unwrap()];
    for (plane, output) in output.chunks_mut((rows * columns).max(1)).enumerate() {
        output.fill(bias[plane % shape.channels[1]]);
    }
    each_product(shape, |at| {
        output[at.output] += weight[at.weight] * input[at.input];
    });
    output
}

/// The gradients with respect to input, weight and bias.
pub(super) fn gradients(
    shape: &Conv2dShape,
    input: &[f64],
    weight: &[f64],
    gradient: &[f64],
) -> [Vec<f64>; 3] {
    let mut input_grad = vec![0.0; input.len()];
    let mut weight_grad = vec![0.0; weight.len()];
    let mut bias_grad = vec![0.0; shape.channels[1]];
    each_product(shape, |at| {
        input_grad[at.input] += weight[at.weight] * gradient[at.output];
        weight_grad[at.weight] += gradient[at.output] * input[at.input];
    });
    let [rows, columns] = shape.output().unwrap();
    for (plane, gradient) in gradient.chunks((rows * columns).max(1)).enumerate() {
        bias_grad[plane % shape.channels[1]] += gradient.iter().sum::<f64>();
    }
    [input_grad, weight_grad, bias_grad]
}
