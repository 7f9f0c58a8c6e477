//! A backward pass that starts from a gradient which is given, as PyTorch's `output.backward(gradient)`
//! does: Burn's starts from ones.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::tensor::Tensor;

/// What `output.backward()` gives, with `gradient` in the place of ones.
pub(super) fn backward_from<const D: usize>(
    output: Tensor<D>,
    gradient: Tensor<D>,
) -> burn::tensor::Gradients {
    let output = output.into_dispatch();
    let last = <Dispatch as GivenGradient>::hold(output, gradient.into_dispatch());
    Tensor::<1>::from_dispatch(last).backward()
}

#[backend_extension(Autodiff, Flex, Cube: cfg(feature = "gpu"))]
trait GivenGradient: Backend {
    /// A single number, of which `output` has this `gradient`.
    fn hold(output: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        drop(output);
        Self::float_zeros([1].into(), &gradient.device(), gradient.dtype().into())
    }
}

impl GivenGradient for Flex {}

#[cfg(feature = "gpu")]
impl GivenGradient for burn::backend::Cube {}

#[derive(Debug)]
struct Given;

impl<B: Backend> Backward<B, 1> for Given {
    type State = FloatTensor<B>;

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        gradients: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        // The gradient of the number itself is of no account.
        drop(gradients.consume::<B>(&ops.node));
        let [parent] = ops.parents;
        if let Some(node) = parent {
            gradients.register::<B>(node.id, ops.state);
        }
    }
}

impl<B: GivenGradient, C: CheckpointStrategy> GivenGradient for Autodiff<B, C> {
    fn hold(output: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        let prepared = Backward::<B, 1>::prepare::<C>(Given, [output.node()]);
        let gradient = gradient.into_primitive();
        let number = B::hold(output.into_primitive(), gradient.clone());
        match prepared.compute_bound().stateful() {
            OpsKind::Tracked(operation) => operation.finish(gradient, number),
            OpsKind::UnTracked(operation) => operation.finish(number),
        }
    }
}
