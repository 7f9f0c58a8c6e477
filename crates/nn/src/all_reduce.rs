//! A sum over ranks that gradients pass through.

use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::backend::tensor::{Device, FloatTensor};
use burn::backend::{
    Backend, BackendTensor, Dispatch, DispatchKindConversion, DispatchTensor, TensorMetadata,
};
use burn::prelude::Tensor;
use burn::tensor::{DType, Shape, TensorData, read_sync};

use crate::group::{StatisticsGroup, SyncError};
use crate::rank_ops::RankOps;

/// The sum of `tensor` over all ranks, element by element; its gradients are summed over all ranks
/// too.
///
/// With `y = x_0 + x_1 + ..` held by every rank, and the loss the sum of the ranks' losses, the
/// gradient of each `x_r` is the sum of all ranks' gradients of `y`. So every rank must also run
/// the backward pass through the result. Where the loss is computed alike on all ranks and counts
/// once, as in tensor parallelism (Shoeybi et al. 2019, the operator g), divide the loss by the
/// number of ranks.
///
/// The tensor passes through the memory of the host, in `f64`. All ranks call it with equal shapes
/// and in the same order; see [`StatisticsGroup::all_reduce_sum`].
///
/// # Errors
/// [`SyncError::Collective`] if a collective fails, [`SyncError::Read`] if the tensor cannot be read
/// from its device. If the all-reduce of the *backward* pass fails, its gradients are those of this
/// rank alone, and the group makes the failure visible ([`StatisticsGroup::abort`]).
pub fn all_reduce_sum<const D: usize>(
    tensor: Tensor<D>,
    group: &Arc<dyn StatisticsGroup>,
) -> Result<Tensor<D>, SyncError> {
    let own = tensor.clone().without_autodiff();
    let (device, dtype) = (own.device(), own.dtype());
    let data = own.try_into_data();
    let data = data.map_err(|error| unread(&**group, &error))?;
    let sum = Tensor::<D>::from_data(sum_of_data(&data, dtype, group)?, (&device, dtype));
    Ok(Tensor::from_dispatch(
        <Dispatch as RankOps>::summed_over_ranks(
            tensor.into_dispatch(),
            sum.into_dispatch(),
            Arc::clone(group),
        ),
    ))
}

fn sum_of_data(
    data: &TensorData,
    dtype: DType,
    group: &Arc<dyn StatisticsGroup>,
) -> Result<TensorData, SyncError> {
    let mut values = data.iter::<f64>().collect::<Vec<_>>();
    group.all_reduce_sum(&mut values)?;
    Ok(TensorData::new(values, data.shape().clone()).convert_dtype(dtype))
}

/// A device's error, of which the other ranks are notified: they wait for this one.
pub(crate) fn unread(group: &dyn StatisticsGroup, error: &dyn std::fmt::Display) -> SyncError {
    let error = SyncError::Read {
        reason: error.to_string(),
    };
    group.abort(&error.to_string());
    error
}

/// The values of a backend's tensor, in host memory.
pub(crate) fn read<B: Backend>(
    tensor: FloatTensor<B>,
    group: &Arc<dyn StatisticsGroup>,
) -> Result<TensorData, SyncError> {
    read_sync(B::float_into_data(tensor)).map_err(|error| unread(&**group, &error))
}

/// Values in host memory, as a backend's tensor of the given shape.
pub(crate) fn upload<B: Backend>(
    values: Vec<f64>,
    shape: &[usize],
    dtype: DType,
    device: &Device<B>,
) -> FloatTensor<B> {
    B::float_from_data(TensorData::new(values, shape).convert_dtype(dtype), device)
}

/// The numbers of a backend's tensor in one row.
pub(crate) fn row_of<B: Backend>(tensor: FloatTensor<B>) -> Tensor<1>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let length = tensor.shape().num_elements();
    let row = BackendTensor::Float(B::float_reshape(tensor, Shape::new([length])));
    Tensor::from_dispatch(<DispatchTensor as DispatchKindConversion<B>>::from_backend(
        row,
    ))
}

/// A row as a backend's tensor of this shape.
///
/// # Panics
/// Panics if the row is on another backend.
pub(crate) fn of_row<B: Backend>(row: Tensor<1>, shape: Shape) -> FloatTensor<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let row = row.into_dispatch();
    let row = <DispatchTensor as DispatchKindConversion<B>>::try_into_backend(row);
    let row = row.expect("sums are on the device of their numbers");
    B::float_reshape(row.float(), shape)
}

/// The backward pass of [`all_reduce_sum`].
#[derive(Debug)]
pub(crate) struct SumOverRanks;

impl<B: Backend> Backward<B, 1> for SumOverRanks {
    type State = Arc<dyn StatisticsGroup>;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let gradient = grads.consume::<B>(&ops.node);
        let [Some(own)] = ops.parents else {
            return;
        };
        let (device, dtype) = (gradient.device(), gradient.dtype());
        let sum = read::<B>(gradient.clone(), &ops.state)
            .and_then(|data| sum_of_data(&data, dtype, &ops.state));
        let sum = match sum {
            Ok(data) => B::float_from_data(data, &device),
            // The group shows the failure; the step must only come to its end.
            Err(_) => gradient,
        };
        grads.register::<B>(own.id, sum);
    }
}
