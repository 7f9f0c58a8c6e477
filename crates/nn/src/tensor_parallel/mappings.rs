//! The mappings between whole and sharded activations (f and g of Megatron-LM), as operations of Burn's backends.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::backend::tensor::FloatTensor;
use burn::backend::{
    Autodiff, Backend, DispatchKindConversion, DispatchTensor, TensorMetadata, backend_extension,
};
use burn::tensor::read_sync;

use super::all_reduce::ShardAllReduce;
use crate::all_reduce::{of_row, row_of, unread};
use crate::backward_step::with_backward_step;
use crate::checked_all_reduce::Pass;
use crate::group::SyncError;

/// The operators f and g of Shoeybi et al. 2019, section 3.
#[backend_extension(
    Autodiff,
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "gpu")
)]
pub(crate) trait TensorParallelMappings: Backend {
    /// `tensor` itself, whose gradient is summed over the ranks: f.
    fn copy_to_ranks(tensor: FloatTensor<Self>, all_reduce: ShardAllReduce) -> FloatTensor<Self> {
        drop(all_reduce);
        tensor
    }

    /// `sum`, which is the sum of `own` over the ranks and whose gradient is that of `own`: g.
    fn reduce_from_ranks(own: FloatTensor<Self>, sum: FloatTensor<Self>) -> FloatTensor<Self> {
        drop(own);
        sum
    }
}

#[cfg(feature = "flex")]
impl TensorParallelMappings for burn::backend::Flex {}

// `Cube` is the fusing back end itself: the default bodies do for it too.
#[cfg(feature = "gpu")]
impl TensorParallelMappings for burn::backend::Cube {}

#[derive(Debug)]
struct SumGradient;

impl<B: Backend> Backward<B, 1> for SumGradient
where
    DispatchTensor: DispatchKindConversion<B>,
{
    type State = ShardAllReduce;

    fn backward(self, ops: Ops<ShardAllReduce, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        let [Some(parent)] = ops.parents else {
            return;
        };
        let sum = sum_over_ranks::<B>(gradient.clone(), &ops.state);
        // The group shows a failure; the step must only come to its end.
        grads.register::<B>(parent.id, sum.unwrap_or(gradient));
    }
}

fn sum_over_ranks<B: Backend>(
    gradient: FloatTensor<B>,
    all_reduce: &ShardAllReduce,
) -> Result<FloatTensor<B>, SyncError>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    if let Some(ranks) = all_reduce.group.on_device() {
        let shape = gradient.shape();
        let sum = all_reduce.sum_on_device(ranks, row_of::<B>(gradient), Pass::Backward)?;
        return Ok(of_row::<B>(sum, shape));
    }
    let device = gradient.device();
    let data = read_sync(B::float_into_data(gradient));
    let data = data.map_err(|error| unread(&*all_reduce.group, &error))?;
    let sum = all_reduce.sum(data, Pass::Backward)?;
    Ok(B::float_from_data(sum, &device))
}

#[derive(Debug)]
struct PassGradient;

impl<B: Backend> Backward<B, 1> for PassGradient {
    type State = ();

    fn backward(self, ops: Ops<(), 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        if let [Some(parent)] = ops.parents {
            grads.register::<B>(parent.id, gradient);
        }
    }
}

// Both are compute-bound: Burn's own gradient checkpointing must not run an all-reduce twice.
impl<B: TensorParallelMappings, C: CheckpointStrategy> TensorParallelMappings for Autodiff<B, C>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    fn copy_to_ranks(tensor: FloatTensor<Self>, all_reduce: ShardAllReduce) -> FloatTensor<Self> {
        let (primitive, node) = tensor.into_parts();
        with_backward_step::<B, C, _, _>(SumGradient, [node], all_reduce, primitive)
    }

    fn reduce_from_ranks(own: FloatTensor<Self>, sum: FloatTensor<Self>) -> FloatTensor<Self> {
        with_backward_step::<B, C, _, _>(PassGradient, [own.node()], (), sum.into_primitive())
    }
}
