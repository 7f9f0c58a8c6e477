//! The backward passes of the layers' operations.

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, unary};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::ops::ConvOptions;

use super::operations::LayerOps;
use super::window::Window;

/// Backward steps of operations with one differentiable input: a type, what it keeps of the forward pass, in brackets
/// the node whose value it looks up, and the input's gradient.
macro_rules! steps_of_one_input {
    ($(
        $(#[$doc:meta])*
        $name:ident($saved:pat in $State:ty) $([$node:ident])? => |$gradient:ident| $result:expr;
    )*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub(super) struct $name;

        impl<B: LayerOps> Backward<B, 1> for $name {
            type State = $State;

            fn backward(
                self,
                ops: Ops<Self::State, 1>,
                grads: &mut Gradients,
                _checkpointer: &mut Checkpointer,
            ) {
                let $saved = ops.state;
                $(let $node = _checkpointer.retrieve_node_output::<FloatTensor<B>>($node);)?
                unary::<B, _>(ops.parents, ops.node, grads, |$gradient| $result);
            }
        }
    )*};
}

steps_of_one_input! {
    MaxPool((input, indices, window) in (NodeId, IntTensor<B>, Window)) [input]
        => |gradient| B::max_pool_gradient(input, indices, gradient, window);
    CrossEntropy((logits, targets, saved) in (NodeId, IntTensor<B>, FloatTensor<B>)) [logits]
        => |gradient| B::cross_entropy_gradient(logits, targets, saved, gradient);
    AvgPool((input, window, padded) in (NodeId, Window, bool)) [input]
        => |gradient| B::avg_pool_gradient(input, gradient, window, padded);
    AdaptiveAvgPool(input in NodeId) [input]
        => |gradient| B::adaptive_avg_pool2d_gradient(input, gradient);
    /// It keeps the output.
    Relu(output in FloatTensor<B>) => |gradient| B::relu_gradient(output, gradient);
    Gelu(input in NodeId) [input] => |gradient| B::gelu_gradient(input, gradient);
    /// It keeps the output and the scale.
    CausalSoftmax((shares, scale) in (FloatTensor<B>, f64))
        => |gradient| B::causal_softmax_gradient(shares, gradient, scale);
    /// It keeps cosines and sines.
    Rope([cosines, sines] in [FloatTensor<B>; 2]) => |gradient| B::rope(gradient, cosines, sines, true);
    Dropout((factors, probability) in (FloatTensor<B>, f64))
        => |gradient| B::dropout_gradient(gradient, factors, probability);
}

/// Backward steps of operations with three differentiable inputs: a type, what it keeps of the forward pass, in brackets
/// the nodes whose values it looks up, and the inputs' gradients.
macro_rules! steps_of_three_inputs {
    ($(
        $name:ident($saved:pat in $State:ty) [$($node:ident),+] => |$gradient:ident| $result:expr;
    )*) => {$(
        #[derive(Debug)]
        pub(super) struct $name;

        impl<B: LayerOps> Backward<B, 3> for $name {
            type State = $State;

            fn backward(
                self,
                ops: Ops<Self::State, 3>,
                grads: &mut Gradients,
                checkpointer: &mut Checkpointer,
            ) {
                let $gradient = grads.consume::<B>(&ops.node);
                let $saved = ops.state;
                $(let $node = checkpointer.retrieve_node_output::<FloatTensor<B>>($node);)+
                let (first, second, third) = $result;
                for (parent, gradient) in ops.parents.into_iter().zip([first, second, third]) {
                    if let Some(node) = parent {
                        grads.register::<B>(node.id, gradient);
                    }
                }
            }
        }
    )*};
}

steps_of_three_inputs! {
    CausalAttention(
        ([queries, keys, values], output, saved, scale) in ([NodeId; 3], FloatTensor<B>, FloatTensor<B>, f64)
    ) [queries, keys, values]
        => |gradient| B::causal_attention_gradients(queries, keys, values, output, saved, gradient, scale);
    BatchNorm(([input, gamma], [mean, variance], epsilon) in ([NodeId; 2], [FloatTensor<B>; 2], f64)) [input, gamma]
        => |gradient| B::batch_norm_gradients(input, gamma, mean, variance, epsilon, gradient);
    LayerNorm(([input, gamma], [mean, inverse]) in ([NodeId; 2], [FloatTensor<B>; 2])) [input, gamma]
        => |gradient| B::layer_norm_gradients(input, gamma, mean, inverse, gradient);
}

/// With the bias as a third parent, or without.
#[derive(Debug)]
pub(super) struct Convolution;

/// What the backward pass of a convolution needs of the forward pass.
#[derive(Debug, Clone)]
pub(super) struct Convolved<B: Backend> {
    pub(super) input: NodeId,
    pub(super) weight: NodeId,
    pub(super) bias: Option<FloatTensor<B>>,
    pub(super) options: ConvOptions<2>,
}

impl<B: LayerOps, const N: usize> Backward<B, N> for Convolution {
    type State = Convolved<B>;

    fn backward(
        self,
        ops: Ops<Convolved<B>, N>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let gradient = grads.consume::<B>(&ops.node);
        let Convolved {
            input,
            weight,
            bias,
            options,
        } = ops.state;
        let input = checkpointer.retrieve_node_output::<FloatTensor<B>>(input);
        let weight = checkpointer.retrieve_node_output::<FloatTensor<B>>(weight);
        let mut parents = ops.parents.into_iter();
        if let Some(node) = parents.next().flatten() {
            let (input, weight) = (input.clone(), weight.clone());
            let (gradient, options) = (gradient.clone(), options.clone());
            let gradient = B::convolve_input_gradient(input, weight, gradient, options);
            grads.register::<B>(node.id, gradient);
        }
        if let Some(node) = parents.next().flatten() {
            let (input, gradient) = (input.clone(), gradient.clone());
            let gradient = B::convolve_weight_gradient(input, weight, gradient, options);
            grads.register::<B>(node.id, gradient);
        }
        if let (Some(node), Some(bias)) = (parents.next().flatten(), bias) {
            let gradient = B::convolve_bias_gradient(input, bias, gradient);
            grads.register::<B>(node.id, gradient);
        }
    }
}

/// With the bias as a third parent, or without.
#[derive(Debug)]
pub(super) struct Product;

impl<B: LayerOps, const N: usize> Backward<B, N> for Product {
    type State = [NodeId; 2];

    fn backward(
        self,
        ops: Ops<[NodeId; 2], N>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let gradient = grads.consume::<B>(&ops.node);
        let [left, right] = ops
            .state
            .map(|node| checkpointer.retrieve_node_output::<FloatTensor<B>>(node));
        let mut parents = ops.parents.into_iter();
        if let Some(node) = parents.next().flatten() {
            let of_left = B::multiply(gradient.clone(), B::float_transpose(right.clone()));
            grads.register::<B>(node.id, of_left);
        }
        if let Some(node) = parents.next().flatten() {
            let of_right = right_gradient::<B>(left, right, gradient.clone());
            grads.register::<B>(node.id, of_right);
        }
        if let Some(node) = parents.next().flatten() {
            grads.register::<B>(node.id, B::column_sums(gradient));
        }
    }
}

fn right_gradient<B: LayerOps>(
    left: FloatTensor<B>,
    right: FloatTensor<B>,
    gradient: FloatTensor<B>,
) -> FloatTensor<B> {
    match left.shape().num_dims() {
        2 => B::multiply_right_gradient(left, right, gradient),
        _ => B::multiply(B::float_transpose(left), gradient),
    }
}

/// The sum of rows and a bias.
#[derive(Debug)]
pub(super) struct AddBias;

impl<B: LayerOps> Backward<B, 2> for AddBias {
    type State = ();

    fn backward(self, ops: Ops<(), 2>, grads: &mut Gradients, _: &mut Checkpointer) {
        let gradient = grads.consume::<B>(&ops.node);
        let [rows, bias] = ops.parents;
        if let Some(node) = bias {
            grads.register::<B>(node.id, B::column_sums(gradient.clone()));
        }
        if let Some(node) = rows {
            grads.register::<B>(node.id, gradient);
        }
    }
}
