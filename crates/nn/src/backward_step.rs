//! Operations in burn-autodiff's graph.

use std::array;

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::ops::{Backward, NodeGuard, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend};

/// `output`, whose backward step is `operation` with `state`; without one where no parent has a gradient.
/// Compute-bound: it does not run again when Burn's own checkpointing computes activations anew.
pub(crate) fn with_backward_step<B, C, O, const N: usize>(
    operation: O,
    parents: [NodeGuard; N],
    state: O::State,
    output: FloatTensor<B>,
) -> FloatTensor<Autodiff<B, C>>
where
    B: Backend,
    C: CheckpointStrategy,
    O: Backward<B, N>,
{
    match operation.prepare::<C>(parents).compute_bound().stateful() {
        OpsKind::Tracked(operation) => operation.finish(state, output),
        OpsKind::UnTracked(operation) => operation.finish(output),
    }
}

/// [`with_backward_step`] of an operation whose state is made of the nodes of its first `K` inputs, whose values the
/// backward pass looks up again, and of what `forward` yields: the output, and whatever else is kept or returned.
pub(crate) fn looking_back<B, C, O, T, const N: usize, const K: usize>(
    operation: O,
    inputs: [FloatTensor<Autodiff<B, C>>; N],
    forward: impl FnOnce([FloatTensor<B>; N]) -> (FloatTensor<B>, T),
    state: impl FnOnce([NodeId; K], &FloatTensor<B>, &T) -> O::State,
) -> (FloatTensor<Autodiff<B, C>>, T)
where
    B: Backend,
    C: CheckpointStrategy,
    O: Backward<B, N>,
{
    let parents = inputs.each_ref().map(FloatTensor::<Autodiff<B, C>>::node);
    let forward = |inputs: [FloatTensor<Autodiff<B, C>>; N]| {
        forward(inputs.map(FloatTensor::<Autodiff<B, C>>::into_primitive))
    };
    match operation.prepare::<C>(parents).compute_bound().stateful() {
        OpsKind::Tracked(mut operation) => {
            let nodes = array::from_fn(|index| operation.checkpoint(&inputs[index]));
            let (output, others) = forward(inputs);
            let state = state(nodes, &output, &others);
            (operation.finish(state, output), others)
        }
        OpsKind::UnTracked(operation) => {
            let (output, others) = forward(inputs);
            (operation.finish(output), others)
        }
    }
}
