//! Tensors of flex as slices, and slices as tensors.

use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{DType, Shape, TensorData};
use everburn_kernels::KernelError;

use crate::layers::buffers::{lend, take};

pub(super) type Tensor = FloatTensor<Flex>;

/// Contiguous tensors of `f32`, or nothing if one is of another type.
pub(super) fn contiguous<const N: usize>(tensors: [&Tensor; N]) -> Option<[Tensor; N]> {
    let fit = tensors.iter().all(|tensor| tensor.dtype() == DType::F32);
    fit.then(|| tensors.map(Tensor::to_contiguous))
}

pub(super) fn values(tensor: &Tensor) -> &[f32] {
    tensor.storage()
}

/// A tensor of `values`, whose memory serves another one after it.
pub(super) fn float(values: Vec<f32>, shape: impl Into<Shape>, beside: &Tensor) -> Tensor {
    let data = TensorData::from_bytes(lend(values), shape, DType::F32);
    Flex::float_from_data(data, &beside.device())
}

/// The output of a kernel where it takes the shapes; else Burn's own operation computes.
pub(super) fn attempt<R>(kernel: impl FnOnce() -> Result<R, KernelError>) -> Option<R> {
    kernel().ok()
}

/// What `kernel` writes for tensors of one shape, in that shape.
pub(super) fn of_same_shape<const N: usize>(
    given: [&Tensor; N],
    kernel: impl FnOnce([&[f32]; N], &mut [f32]) -> Result<(), KernelError>,
) -> Option<Tensor> {
    let given = contiguous(given)?;
    attempt(|| {
        let mut output = take(values(&given[0]).len());
        kernel(given.each_ref().map(values), &mut output)?;
        Ok(float(output, given[0].shape(), &given[0]))
    })
}
