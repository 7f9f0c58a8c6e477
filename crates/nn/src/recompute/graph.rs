//! Tensors in and out of a graph.

use burn::backend::ops::FloatTensorOps;
use burn::backend::{Dispatch, DispatchTensor};
use burn::prelude::*;

/// The same numbers outside any graph, on the same device.
pub(crate) fn untracked(tensor: DispatchTensor) -> DispatchTensor {
    Dispatch::float_set_require_grad(tensor, false)
}

/// The same numbers as a leaf of a new graph.
pub(crate) fn leaf(tensor: DispatchTensor) -> DispatchTensor {
    Dispatch::float_set_require_grad(untracked(tensor), true)
}

/// The device of a tensor of any rank, with its autodiff context.
pub(crate) fn device_of(tensor: &DispatchTensor) -> Device {
    Tensor::<1>::from_dispatch(tensor.clone()).device()
}

/// A tensor of one element on `device` that only holds a place in a graph.
pub(crate) fn marker(device: &Device) -> DispatchTensor {
    Tensor::<1>::zeros([1], device).into_dispatch()
}
