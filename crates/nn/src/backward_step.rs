//! Operations in burn-autodiff's graph.

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
