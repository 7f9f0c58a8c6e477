//! Convolution and pooling.

use burn::backend::ops::IntTensorOps;
use burn::backend::tensor::IntTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::ops::ConvOptions;
use burn::tensor::{DType, Shape, TensorData};
use everburn_kernels::{
    Conv2dShape, Divisor, KernelError, Pool2dShape, Rounding, conv2d, max_pool2d,
    max_pool2d_backward,
};

use super::tensors::{Tensor, attempt, contiguous, float, values};
use crate::layers::buffers::{lend, take};
use crate::layers::window::Window;

pub(super) fn convolution(
    input: &Shape,
    weight: &Shape,
    options: &ConvOptions<2>,
) -> Option<Conv2dShape> {
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

pub(super) fn pooling(input: &Shape, window: Window) -> Pool2dShape {
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

pub(super) fn divisor(padded: bool) -> Divisor {
    match padded {
        true => Divisor::IncludePadding,
        false => Divisor::ExcludePadding,
    }
}

pub(super) fn pooled(shape: &Pool2dShape) -> Result<[usize; 4], KernelError> {
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
