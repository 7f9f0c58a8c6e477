//! The layers' operations on tensors of autodiff.

use burn::backend::Autodiff;
use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::ops::{Backward, OpsKind};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::IntDType;
use burn::tensor::ops::ConvOptions;

use super::backward::{
    AdaptiveAvgPool, AddBias, AvgPool, BatchNorm, CausalAttention, CausalSoftmax, Convolution,
    Convolved, CrossEntropy, Dropout, Gelu, LayerNorm, MaxPool, Product, Relu, Rope,
};
use super::formulas::rotated;
use super::operations::LayerOps;
use super::window::Window;
use crate::backward_step::{looking_back, with_backward_step};

// Compute-bound, as Burn's own: they must not run again when activations are computed anew.
impl<B: LayerOps, C: CheckpointStrategy> LayerOps for Autodiff<B, C> {
    fn convolve(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        options: ConvOptions<2>,
    ) -> FloatTensor<Self> {
        let forward = |[input, weight]: [FloatTensor<B>; 2]| {
            (B::convolve(input, weight, options.clone()), ())
        };
        let state = |[input, weight]: [NodeId; 2], _: &_, (): &()| Convolved {
            input,
            weight,
            bias: None,
            options: options.clone(),
        };
        looking_back::<B, C, _, _, 2, 2>(Convolution, [input, weight], forward, state).0
    }

    fn convolve_with_bias(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        options: ConvOptions<2>,
    ) -> FloatTensor<Self> {
        let forward = |[input, weight, bias]: [FloatTensor<B>; 3]| {
            let output = B::convolve_with_bias(input, weight, bias.clone(), options.clone());
            (output, bias)
        };
        let state = |[input, weight]: [NodeId; 2], _: &_, bias: &FloatTensor<B>| Convolved {
            input,
            weight,
            bias: Some(bias.clone()),
            options: options.clone(),
        };
        looking_back::<B, C, _, _, 3, 2>(Convolution, [input, weight, bias], forward, state).0
    }

    fn max_pool(input: FloatTensor<Self>, window: Window) -> FloatTensor<Self> {
        let prepared = Backward::<B, 1>::prepare::<C>(MaxPool, [input.node()]);
        match prepared.compute_bound().stateful() {
            OpsKind::Tracked(mut operation) => {
                let saved = operation.checkpoint(&input);
                let (output, indices) = B::max_pool_with_indices(input.into_primitive(), window);
                operation.finish((saved, indices, window), output)
            }
            OpsKind::UnTracked(operation) => {
                operation.finish(B::max_pool(input.into_primitive(), window))
            }
        }
    }

    fn avg_pool(input: FloatTensor<Self>, window: Window, padded: bool) -> FloatTensor<Self> {
        let forward = |[input]: [FloatTensor<B>; 1]| (B::avg_pool(input, window, padded), ());
        let state = |[input]: [NodeId; 1], _: &_, (): &()| (input, window, padded);
        looking_back::<B, C, _, _, 1, 1>(AvgPool, [input], forward, state).0
    }

    fn adaptive_avg_pool2d(input: FloatTensor<Self>, output: [usize; 2]) -> FloatTensor<Self> {
        let forward = |[input]: [FloatTensor<B>; 1]| {
            (<B as LayerOps>::adaptive_avg_pool2d(input, output), ())
        };
        let state = |[input]: [NodeId; 1], _: &_, (): &()| input;
        looking_back::<B, C, _, _, 1, 1>(AdaptiveAvgPool, [input], forward, state).0
    }

    fn cross_entropy(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let forward = |[logits]: [FloatTensor<B>; 1]| B::cross_entropy(logits, targets.clone());
        let state = |[logits]: [NodeId; 1], _: &_, saved: &FloatTensor<B>| {
            (logits, targets.clone(), saved.clone())
        };
        let (loss, saved) =
            looking_back::<B, C, _, _, 1, 1>(CrossEntropy, [logits], forward, state);
        (loss, FloatTensor::<Self>::new(saved))
    }

    fn argmax(logits: FloatTensor<Self>, dtype: IntDType) -> IntTensor<Self> {
        B::argmax(logits.into_primitive(), dtype)
    }

    fn multiply(left: FloatTensor<Self>, right: FloatTensor<Self>) -> FloatTensor<Self> {
        let forward = |[left, right]: [FloatTensor<B>; 2]| (B::multiply(left, right), ());
        let state = |nodes: [NodeId; 2], _: &_, (): &()| nodes;
        looking_back::<B, C, _, _, 2, 2>(Product, [left, right], forward, state).0
    }

    fn multiply_with_bias(
        left: FloatTensor<Self>,
        right: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let forward = |[left, right, bias]: [FloatTensor<B>; 3]| {
            (B::multiply_with_bias(left, right, bias), ())
        };
        let state = |nodes: [NodeId; 2], _: &_, (): &()| nodes;
        looking_back::<B, C, _, _, 3, 2>(Product, [left, right, bias], forward, state).0
    }

    fn add_bias(rows: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self> {
        let parents = [rows.node(), bias.node()];
        let sum = B::add_bias(rows.into_primitive(), bias.into_primitive());
        with_backward_step::<B, C, _, _>(AddBias, parents, (), sum)
    }

    fn causal_attention(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        scale: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let forward = |[queries, keys, values]: [FloatTensor<B>; 3]| {
            B::causal_attention(queries, keys, values, scale)
        };
        let state = |nodes: [NodeId; 3], output: &FloatTensor<B>, saved: &FloatTensor<B>| {
            (nodes, output.clone(), saved.clone(), scale)
        };
        let inputs = [queries, keys, values];
        let (output, saved) =
            looking_back::<B, C, _, _, 3, 3>(CausalAttention, inputs, forward, state);
        (output, FloatTensor::<Self>::new(saved))
    }

    fn relu(input: FloatTensor<Self>) -> FloatTensor<Self> {
        let (input, node) = input.into_parts();
        let output = <B as LayerOps>::relu(input);
        with_backward_step::<B, C, _, _>(Relu, [node], output.clone(), output)
    }

    fn gelu(input: FloatTensor<Self>) -> FloatTensor<Self> {
        let forward = |[input]: [FloatTensor<B>; 1]| (<B as LayerOps>::gelu(input), ());
        let state = |[input]: [NodeId; 1], _: &_, (): &()| input;
        looking_back::<B, C, _, _, 1, 1>(Gelu, [input], forward, state).0
    }

    fn causal_softmax(scores: FloatTensor<Self>, scale: f64) -> FloatTensor<Self> {
        let (scores, node) = scores.into_parts();
        let shares = B::causal_softmax(scores, scale);
        let state = (shares.clone(), scale);
        with_backward_step::<B, C, _, _>(CausalSoftmax, [node], state, shares)
    }

    fn rope(
        input: FloatTensor<Self>,
        cosines: FloatTensor<Self>,
        sines: FloatTensor<Self>,
        back: bool,
    ) -> FloatTensor<Self> {
        if back {
            // Not asked for: the backward pass is below autodiff.
            return rotated::<Self>(&input, &cosines, sines, back);
        }
        let (input, node) = input.into_parts();
        let angles = [cosines.into_primitive(), sines.into_primitive()];
        let [cosines, sines] = angles.clone();
        let output = B::rope(input, cosines, sines, false);
        with_backward_step::<B, C, _, _>(Rope, [node], angles, output)
    }

    fn dropout(
        input: FloatTensor<Self>,
        probability: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (input, node) = input.into_parts();
        let (output, factors) = B::dropout(input, probability);
        let of_user = FloatTensor::<Self>::new(factors.clone());
        let state = (factors, probability);
        let output = with_backward_step::<B, C, _, _>(Dropout, [node], state, output);
        (output, of_user)
    }

    fn layer_norm(
        input: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let forward = |[input, gamma, beta]: [FloatTensor<B>; 3]| {
            let (output, mean, inverse) = <B as LayerOps>::layer_norm(input, gamma, beta, epsilon);
            (output, [mean, inverse])
        };
        let state = |nodes: [NodeId; 2], _: &_, rows: &[FloatTensor<B>; 2]| (nodes, rows.clone());
        let (output, rows) =
            looking_back::<B, C, _, _, 3, 2>(LayerNorm, [input, gamma, beta], forward, state);
        let [mean, inverse] = rows.map(FloatTensor::<Self>::new);
        (output, mean, inverse)
    }

    fn batch_norm_train(
        input: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let forward = |[input, gamma, beta]: [FloatTensor<B>; 3]| {
            let (output, mean, variance) =
                <B as LayerOps>::batch_norm_train(input, gamma, beta, epsilon);
            (output, [mean, variance])
        };
        let state = |nodes: [NodeId; 2], _: &_, statistics: &[FloatTensor<B>; 2]| {
            (nodes, statistics.clone(), epsilon)
        };
        let (output, statistics) =
            looking_back::<B, C, _, _, 3, 2>(BatchNorm, [input, gamma, beta], forward, state);
        let [mean, variance] = statistics.map(FloatTensor::<Self>::new);
        (output, mean, variance)
    }
}
