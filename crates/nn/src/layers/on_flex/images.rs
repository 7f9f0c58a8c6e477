//! Convolution and pooling.

use burn::backend::ops::IntTensorOps;
use burn::backend::tensor::IntTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::ops::ConvOptions;
use burn::tensor::{DType, Shape, TensorData};
use everburn_kernels::{
    AdaptivePool2dShape, Conv2dShape, Divisor, KernelError, Pool2dShape, Rounding,
    adaptive_avg_pool2d, adaptive_avg_pool2d_backward, avg_pool2d, avg_pool2d_backward, conv2d,
    conv2d_bias_grad, conv2d_input_grad, conv2d_weight_grad, max_pool2d, max_pool2d_backward,
};

use super::tensors::{Tensor, attempt, contiguous, float, values};
use crate::layers::buffers::{lend, take};
use crate::layers::window::Window;

fn convolution(input: &Shape, weight: &Shape, options: &ConvOptions<2>) -> Option<Conv2dShape> {
    let [batch, channels, height, width] = input.dims();
    let [features, in_group, kernel_rows, kernel_columns] = weight.dims();
    // Burn's own operation says what is wrong with others.
    (in_group * options.groups == channels).then_some(Conv2dShape {
        stride: options.stride,
        padding: options.padding,
        dilation: options.dilation,
        groups: options.groups,
        ..Conv2dShape::new(
            batch,
            [channels, features],
            [height, width],
            [kernel_rows, kernel_columns],
        )
    })
}

fn pooling(input: &Shape, window: Window) -> Pool2dShape {
    let [batch, channels, height, width] = input.dims();
    Pool2dShape {
        stride: window.stride,
        padding: window.padding,
        dilation: window.dilation,
        rounding: match window.ceil {
            true => Rounding::Ceil,
            false => Rounding::Floor,
        },
        ..Pool2dShape::new([batch, channels], [height, width], window.kernel)
    }
}

fn divisor(padded: bool) -> Divisor {
    match padded {
        true => Divisor::IncludePadding,
        false => Divisor::ExcludePadding,
    }
}

fn pooled(shape: &Pool2dShape) -> Result<[usize; 4], KernelError> {
    let [rows, columns] = shape.output()?;
    Ok([shape.planes[0], shape.planes[1], rows, columns])
}

pub(super) fn convolve(
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: &ConvOptions<2>,
) -> Option<Tensor> {
    let shape = convolution(&input.shape(), &weight.shape(), options)?;
    let [input, weight] = contiguous([input, weight])?;
    let bias = match bias {
        Some(bias) => Some(contiguous([bias])?),
        None => None,
    };
    attempt(|| {
        let [rows, columns] = shape.output()?;
        let mut output = take(shape.output_len()?);
        let bias = bias.as_ref().map(|[bias]| values(bias));
        conv2d(&shape, values(&input), values(&weight), bias, &mut output)?;
        let dims = [shape.batch, shape.channels[1], rows, columns];
        Ok(float(output, dims, &input))
    })
}

pub(super) fn convolve_input_gradient(
    input: &Tensor,
    weight: &Tensor,
    gradient: &Tensor,
    options: &ConvOptions<2>,
) -> Option<Tensor> {
    let shape = convolution(&input.shape(), &weight.shape(), options)?;
    let [weight, gradient] = contiguous([weight, gradient])?;
    attempt(|| {
        let mut input_grad = take(shape.input_len()?);
        conv2d_input_grad(&shape, values(&gradient), values(&weight), &mut input_grad)?;
        Ok(float(input_grad, input.shape(), input))
    })
}

pub(super) fn convolve_weight_gradient(
    input: &Tensor,
    weight: &Tensor,
    gradient: &Tensor,
    options: &ConvOptions<2>,
) -> Option<Tensor> {
    let shape = convolution(&input.shape(), &weight.shape(), options)?;
    let [input, gradient] = contiguous([input, gradient])?;
    attempt(|| {
        let mut weight_grad = take(shape.weight_len()?);
        conv2d_weight_grad(&shape, values(&input), values(&gradient), &mut weight_grad)?;
        Ok(float(weight_grad, weight.shape(), weight))
    })
}

pub(super) fn convolve_bias_gradient(gradient: &Tensor) -> Option<Tensor> {
    let [gradient] = contiguous([gradient])?;
    let [batch, channels, rows, columns] = gradient.shape().dims();
    // The sums of a gradient are those of any convolution that yields as much.
    let shape = Conv2dShape::new(batch, [1, channels], [rows, columns], [1, 1]);
    attempt(|| {
        let mut bias_grad = vec![0.0; channels];
        conv2d_bias_grad(&shape, values(&gradient), &mut bias_grad)?;
        Ok(float(bias_grad, [channels], &gradient))
    })
}

pub(super) fn avg_pool(input: &Tensor, window: Window, padded: bool) -> Option<Tensor> {
    let [input] = contiguous([input])?;
    let shape = pooling(&input.shape(), window);
    attempt(|| {
        let mut output = take(shape.output_len()?);
        avg_pool2d(&shape, divisor(padded), values(&input), &mut output)?;
        Ok(float(output, pooled(&shape)?, &input))
    })
}

pub(super) fn avg_pool_gradient(
    input: &Tensor,
    gradient: &Tensor,
    window: Window,
    padded: bool,
) -> Option<Tensor> {
    let [gradient] = contiguous([gradient])?;
    let shape = pooling(&input.shape(), window);
    attempt(|| {
        let mut input_grad = take(shape.input_len()?);
        let gradient = values(&gradient);
        avg_pool2d_backward(&shape, divisor(padded), gradient, &mut input_grad)?;
        Ok(float(input_grad, input.shape(), input))
    })
}

pub(super) fn adaptive_avg_pool(input: &Tensor, output: [usize; 2]) -> Option<Tensor> {
    let [input] = contiguous([input])?;
    let [batch, channels, rows, columns] = input.shape().dims();
    let shape = AdaptivePool2dShape {
        planes: [batch, channels],
        input: [rows, columns],
        output,
    };
    let dims = [batch, channels, output[0], output[1]];
    attempt(|| {
        let mut means = take(dims.iter().product());
        adaptive_avg_pool2d(&shape, values(&input), &mut means)?;
        Ok(float(means, dims, &input))
    })
}

pub(super) fn adaptive_avg_pool_gradient(input: &Tensor, gradient: &Tensor) -> Option<Tensor> {
    let [gradient] = contiguous([gradient])?;
    let [batch, channels, rows, columns] = input.shape().dims();
    let [_, _, output_rows, output_columns] = gradient.shape().dims();
    let shape = AdaptivePool2dShape {
        planes: [batch, channels],
        input: [rows, columns],
        output: [output_rows, output_columns],
    };
    attempt(|| {
        let mut input_grad = take(input.shape().num_elements());
        adaptive_avg_pool2d_backward(&shape, values(&gradient), &mut input_grad)?;
        Ok(float(input_grad, input.shape(), input))
    })
}

pub(super) fn max_pool(input: &Tensor, window: Window) -> Option<(Tensor, IntTensor<Flex>)> {
    let [input] = contiguous([input])?;
    let shape = pooling(&input.shape(), window);
    attempt(|| {
        let dims = pooled(&shape)?;
        let mut output = take(shape.output_len()?);
        let mut indices = take(output.len());
        let places = bytemuck::cast_slice_mut::<f32, i32>(&mut indices);
        max_pool2d(&shape, values(&input), &mut output, places)?;
        let indices = TensorData::from_bytes(lend(indices), dims, DType::I32);
        let indices = Flex::int_from_data(indices, &input.device());
        Ok((float(output, dims, &input), indices))
    })
}

pub(super) fn max_pool_gradient(
    input: &Tensor,
    indices: &IntTensor<Flex>,
    gradient: &Tensor,
    window: Window,
) -> Option<Tensor> {
    // Burn's own forward pass has left indices of another type.
    if indices.dtype() != DType::I32 {
        return None;
    }
    let [gradient] = contiguous([gradient])?;
    let shape = pooling(&input.shape(), window);
    attempt(|| {
        let mut input_grad = take(shape.input_len()?);
        let indices = indices.storage::<i32>();
        max_pool2d_backward(&shape, values(&gradient), indices, &mut input_grad)?;
        Ok(float(input_grad, input.shape(), input))
    })
}
