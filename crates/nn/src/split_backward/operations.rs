//! The two parts of a layer's backward pass, as operations of Burn's backends.

use std::sync::Arc;

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, TensorMetadata, backend_extension};
use burn::tensor::{FloatDType, Shape};

use super::slot::Slot;
use crate::backward_step::{looking_back, with_backward_step};
use crate::layers::LayerOps;

/// Operations that defer gradients, and the one that delivers them. Without autodiff nothing is deferred.
#[backend_extension(
    Autodiff,
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "gpu")
)]
pub(crate) trait SplitBackwardOps: LayerOps {
    /// `input * weight`, both two-dimensional; the weight's gradient is left in `slot`.
    fn split_matmul(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        ticket: FloatTensor<Self>,
        slot: Arc<Slot>,
    ) -> FloatTensor<Self> {
        drop((ticket, slot));
        Self::multiply(input, weight)
    }

    /// `parameter` itself; its gradient is left in `slot`.
    fn late(
        parameter: FloatTensor<Self>,
        ticket: FloatTensor<Self>,
        slot: Arc<Slot>,
    ) -> FloatTensor<Self> {
        drop((ticket, slot));
        parameter
    }

    /// Zero; its backward step gives `parameter` the gradient in `slot`.
    fn deliver(parameter: FloatTensor<Self>, slot: Arc<Slot>) -> FloatTensor<Self> {
        drop(slot);
        zero::<Self>(&parameter)
    }
}

#[cfg(feature = "flex")]
impl SplitBackwardOps for burn::backend::Flex {}

// `Cube` is the fusing back end itself: the default bodies work for it too.
#[cfg(feature = "gpu")]
impl SplitBackwardOps for burn::backend::Cube {}

/// A zero of one dtype for all parameters, so that zeros can be summed.
fn zero<B: Backend>(beside: &FloatTensor<B>) -> FloatTensor<B> {
    B::float_zeros(Shape::new([1]), &beside.device(), FloatDType::F32)
}

/// The operands of a parameter's gradient.
enum Operands<B: Backend> {
    Product {
        input: FloatTensor<B>,
        output_gradient: FloatTensor<B>,
        weight: FloatTensor<B>,
    },
    Gradient(FloatTensor<B>),
}

/// The state that the first part needs from the forward pass.
#[derive(Debug, Clone)]
struct Saved<B: Backend> {
    input: NodeId,
    weight: FloatTensor<B>,
    slot: Arc<Slot>,
}

/// The first part of a layer's backward pass; its parents are the input and the ticket. It runs the same operations as
/// the backward step of an unsplit product, for the same bits.
#[derive(Debug)]
struct InputHalf;

impl<B: LayerOps> Backward<B, 2> for InputHalf {
    type State = Saved<B>;

    fn backward(
        self,
        ops: Ops<Saved<B>, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let output_gradient = grads.consume::<B>(&ops.node);
        let saved = ops.state;
        let input = checkpointer.retrieve_node_output::<FloatTensor<B>>(saved.input);
        if let [Some(node), _] = &ops.parents {
            let weight = B::float_transpose(saved.weight.clone());
            let gradient = B::multiply(output_gradient.clone(), weight);
            grads.register::<B>(node.id, gradient);
        }
        saved.slot.fill(Operands::<B>::Product {
            input,
            output_gradient,
            weight: saved.weight,
        });
    }
}

/// Keeps a parameter's gradient in the slot; the only parent is the ticket.
#[derive(Debug)]
struct KeepBack;

impl<B: Backend> Backward<B, 1> for KeepBack {
    type State = Arc<Slot>;

    fn backward(self, ops: Ops<Arc<Slot>, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        ops.state.fill(Operands::<B>::Gradient(gradient));
    }
}

/// The second part of a layer's backward pass.
#[derive(Debug)]
struct WeightHalf;

impl<B: LayerOps> Backward<B, 1> for WeightHalf {
    type State = Arc<Slot>;

    fn backward(self, ops: Ops<Arc<Slot>, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        // The gradient of the dummy zero.
        drop(grads.consume::<B>(&ops.node));
        let ([Some(node)], Some(operands)) = (ops.parents, ops.state.take::<Operands<B>>()) else {
            return;
        };
        let gradient = match operands {
            Operands::Gradient(gradient) => gradient,
            Operands::Product {
                input,
                output_gradient,
                weight,
            } => B::multiply_right_gradient(input, weight, output_gradient),
        };
        grads.register::<B>(node.id, gradient);
    }
}

// Compute-bound, as Burn's own product: it must not run again when activations are recomputed.
impl<B: SplitBackwardOps, C: CheckpointStrategy> SplitBackwardOps for Autodiff<B, C> {
    fn split_matmul(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        ticket: FloatTensor<Self>,
        slot: Arc<Slot>,
    ) -> FloatTensor<Self> {
        if !weight.is_tracked() {
            return <Self as LayerOps>::multiply(input, weight);
        }
        slot.expect();
        let weight = weight.into_primitive();
        let forward = |[input, _]: [FloatTensor<B>; 2]| (B::multiply(input, weight.clone()), ());
        let state = |[input]: [NodeId; 1], _: &_, (): &()| Saved {
            input,
            weight: weight.clone(),
            slot,
        };
        looking_back::<B, C, _, _, 2, 1>(InputHalf, [input, ticket], forward, state).0
    }

    fn late(
        parameter: FloatTensor<Self>,
        ticket: FloatTensor<Self>,
        slot: Arc<Slot>,
    ) -> FloatTensor<Self> {
        if !parameter.is_tracked() {
            return parameter;
        }
        slot.expect();
        let parameter = parameter.into_primitive();
        with_backward_step::<B, C, _, _>(KeepBack, [ticket.node()], slot, parameter)
    }

    fn deliver(parameter: FloatTensor<Self>, slot: Arc<Slot>) -> FloatTensor<Self> {
        let (primitive, node) = parameter.into_parts();
        let zero = zero::<B>(&primitive);
        with_backward_step::<B, C, _, _>(WeightHalf, [node], slot, zero)
    }
}
