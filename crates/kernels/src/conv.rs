//! Two-dimensional convolution and its gradients.

mod apply;
mod columns;
#[cfg(test)]
mod definition;
mod plan;
mod pointwise;
mod shape;
#[cfg(test)]
mod tests;
mod tile;
mod weight;
mod weight_columns;

pub use shape::Conv2dShape;

use crate::error::{KernelError, check_length};
use crate::isa::InstructionSet;
use crate::operations::add_convolution;
use columns::Columns;
use plan::Plan;

const CONV: &str = "conv2d";

/// What the lanes of a vector hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lanes {
    /// The same pixel of many images.
    Images,
    /// Many pixels of one image.
    Pixels,
}

/// The most values of a lane block that stays in the second-level cache: 1.5 MiB.
const CACHED: usize = 3 << 17;

impl Lanes {
    /// The better choice for sums whose images have `values` that are read many times, and which
    /// share packed values between `sharing` channels.
    fn of(shape: &Conv2dShape, values: usize, sharing: usize, set: InstructionSet) -> Self {
        let lanes = set.lanes();
        let empty = shape.batch.next_multiple_of(lanes) * 3 > shape.batch * 4;
        let spilt = values.saturating_mul(lanes) > CACHED;
        if (empty && sharing >= 12) || (spilt && sharing >= 32) {
            Self::Pixels
        } else {
            Self::Images
        }
    }
}

/// Convolves `input` with `weight` into `output`, which it overwrites.
///
/// # Errors
/// A shape that is no convolution, and slices of other lengths than it says.
pub fn conv2d(
    shape: &Conv2dShape,
    input: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    output: &mut [f32],
) -> Result<(), KernelError> {
    let set = InstructionSet::best();
    check_length(CONV, "input", shape.input_len()?, input.len())?;
    check_length(CONV, "weight", shape.weight_len()?, weight.len())?;
    check_length(CONV, "output", shape.output_len()?, output.len())?;
    if let Some(bias) = bias {
        check_length(CONV, "bias", shape.channels[1], bias.len())?;
    }
    add_convolution(shape, output.len());
    if pointwise::fits(shape) {
        pointwise::apply(
            shape,
            pointwise::weights(shape, weight),
            input,
            bias,
            output,
        );
        return Ok(());
    }
    let [height, width] = shape.padded();
    let values = shape.channels[0] * height * width;
    match Lanes::of(shape, values, shape.group_channels()[1], set) {
        Lanes::Images => {
            let plan = Plan::forward(shape, weight, set);
            apply::apply(&plan, set, input, bias, output);
        }
        Lanes::Pixels => Columns::forward(shape, weight, set).apply(set, input, bias, output),
    }
    Ok(())
}

/// Computes the gradient with respect to the input of [`conv2d`] from the `gradient` of its output.
///
/// # Errors
/// A shape that is no convolution, and slices of other lengths than it says.
pub fn conv2d_input_grad(
    shape: &Conv2dShape,
    gradient: &[f32],
    weight: &[f32],
    input_grad: &mut [f32],
) -> Result<(), KernelError> {
    let set = InstructionSet::best();
    check_length(CONV, "gradient", shape.output_len()?, gradient.len())?;
    check_length(CONV, "weight", shape.weight_len()?, weight.len())?;
    check_length(CONV, "input_grad", shape.input_len()?, input_grad.len())?;
    add_convolution(shape, gradient.len());
    if pointwise::fits(shape) {
        let weight = pointwise::weights(shape, weight).transposed();
        pointwise::apply(shape, weight, gradient, None, input_grad);
        return Ok(());
    }
    let values = gradient.len() / shape.batch.max(1);
    match Lanes::of(shape, values, shape.group_channels()[0], set) {
        Lanes::Images => {
            let plan = Plan::input_grad(shape, weight, set);
            apply::apply(&plan, set, gradient, None, input_grad);
        }
        Lanes::Pixels => {
            let columns = Columns::input_grad(shape, weight, set);
            columns.apply(set, gradient, None, input_grad);
        }
    }
    Ok(())
}

/// Computes the gradient with respect to the weights of [`conv2d`] from the `gradient` of its
/// output.
///
/// # Errors
/// A shape that is no convolution, and slices of other lengths than it says.
pub fn conv2d_weight_grad(
    shape: &Conv2dShape,
    input: &[f32],
    gradient: &[f32],
    weight_grad: &mut [f32],
) -> Result<(), KernelError> {
    let set = InstructionSet::best();
    check_length(CONV, "input", shape.input_len()?, input.len())?;
    check_length(CONV, "gradient", shape.output_len()?, gradient.len())?;
    check_length(CONV, "weight_grad", shape.weight_len()?, weight_grad.len())?;
    add_convolution(shape, gradient.len());
    if pointwise::fits(shape) {
        pointwise::weight_grad(shape, input, gradient, weight_grad);
        return Ok(());
    }
    let values = (input.len() + gradient.len()) / shape.batch.max(1);
    match Lanes::of(shape, values, shape.group_channels()[1], set) {
        Lanes::Images => weight::weight_grad(shape, set, input, gradient, weight_grad),
        Lanes::Pixels => weight_columns::weight_grad(shape, set, input, gradient, weight_grad),
    }
    Ok(())
}

/// Computes the gradient with respect to the bias of [`conv2d`] from the `gradient` of its output.
///
/// # Errors
/// A shape that is no convolution, and slices of other lengths than it says.
pub fn conv2d_bias_grad(
    shape: &Conv2dShape,
    gradient: &[f32],
    bias_grad: &mut [f32],
) -> Result<(), KernelError> {
    let set = InstructionSet::best();
    check_length(CONV, "gradient", shape.output_len()?, gradient.len())?;
    check_length(CONV, "bias_grad", shape.channels[1], bias_grad.len())?;
    weight::bias_grad(shape, set, gradient, bias_grad);
    Ok(())
}
