//! The backward passes of the mappings between whole and sharded activations: the operators f and g of Shoeybi et al. 2019,
//! section 3.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, DispatchKindConversion, DispatchTensor, TensorMetadata};
use burn::tensor::read_sync;

use super::all_reduce::ShardAllReduce;
use crate::all_reduce::{of_row, row_of, unread};
use crate::checked_all_reduce::Pass;
use crate::group::SyncError;

/// f: the gradient is summed over the ranks.
#[derive(Debug)]
pub(crate) struct SumGradient;

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

/// g: the gradient stays as it is.
#[derive(Debug)]
pub(crate) struct PassGradient;

impl<B: Backend> Backward<B, 1> for PassGradient {
    type State = ();

    fn backward(self, ops: Ops<(), 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        if let [Some(parent)] = ops.parents {
            grads.register::<B>(parent.id, gradient);
        }
    }
}
