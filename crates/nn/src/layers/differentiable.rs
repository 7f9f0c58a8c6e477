//! The layers' operations on tensors of autodiff.

use burn::backend::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::ops::{Backward, OpsKind};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::tensor::IntDType;
use burn::tensor::ops::ConvOptions;

use super::backward::{
    AdaptiveAvgPool, AddBias, Attended, AvgPool, BatchNorm, BatchNormState, CausalAttention,
    CausalSoftmax, Convolution, Convolved, CrossEntropy, Dropout, Gelu, LayerNorm, MaxPool,
    Product, Relu, Rope,
};
use super::operations::{LayerOps, rotated};
use super::window::Window;
use crate::backward_step::with_backward_step;

// Compute-bound, as Burn's own: they must not run again when activations are computed anew.
impl<B: LayerOps, C: CheckpointStrategy> LayerOps for Autodiff<B, C> {
    fn convolve(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        options: ConvOptions<2>,
    ) -> FloatTensor<Self> {
        let parents = [input.node(), weight.node()];
        let prepared = Backward::<B, 2>::prepare::<C>(Convolution, parents);
        match prepared.compute_bound().stateful() {
            OpsKind::Tracked(mut operation) => {
                let saved = Convolved {
                    input: operation.checkpoint(&input),
                    weight: operation.checkpoint(&weight),
                    bias: None,
                    options: options.clone(),
                };
                let (input, weight) = (input.into_primitive(), weight.into_primitive());
                operation.finish(saved, B::convolve(input, weight, options))
            }
            OpsKind::UnTracked(operation) => {
                let (input, weight) = (input.into_primitive(), weight.into_primitive());
                operation.finish(B::convolve(input, weight, options))
            }
        }
    }

    fn convolve_with_bias(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        options: ConvOptions<2>,
    ) -> FloatTensor<Self> {
        let parents = [input.node(), weight.node(), bias.node()];
        let prepared = Backward::<B, 3>::prepare::<C>(Convolution, parents);
        let bias = bias.into_primitive();
        match prepared.compute_bound().stateful() {
            OpsKind::Tracked(mut operation) => {
                let saved = Convolved {
                    input: operation.checkpoint(&input),
                    weight: operation.checkpoint(&weight),
                    bias: Some(bias.clone()),
                    options: options.clone(),
                };
                let (input, weight) = (input.into_primitive(), weight.into_primitive());
                let output = B::convolve_with_bias(input, weight, bias, options);
                operation.finish(saved, output)
            }
            OpsKind::UnTracked(operation) => {
                let (input, weight) = (input.into_primitive(), weight.into_primitive());
                operation.finish(B::convolve_with_bias(input, weight, bias, options))
            }
        }
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
        let prepared = Backward::<B, 1>::prepare::<C>(AvgPool, [input.node()]);
        match prepared.compute_bound().stateful() {
            OpsKind::Tracked(mut operation) => {
                let saved = (operation.checkpoint(&input), window, padded);
                let output = B::avg_pool(input.into_primitive(), window, padded);
                operation.finish(saved, output)
            }
            OpsKind::UnTracked(operation) => {
                operation.finish(B::avg_pool(input.into_primitive(), window, padded))
            }
        }
    }

    fn adaptive_avg_pool2d(input: FloatTensor<Self>, output: [usize; 2]) -> FloatTensor<Self> {
        let prepared = Backward::<B, 1>::prepare::<C>(AdaptiveAvgPool, [input.node()]);
        match prepared.compute_bound().stateful() {
            OpsKind::Tracked(mut operation) => {
                let saved = operation.checkpoint(&input);
                operation.finish(
                    saved,
                    <B as LayerOps>::adaptive_avg_pool2d(input.into_primitive(), output),
                )
            }
            OpsKind::UnTracked(operation) => operation.finish(
                <B as LayerOps>::adaptive_avg_pool2d(input.into_primitive(), output),
            ),
        }
    }

    fn cross_entropy(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let prepared = Backward::<B, 1>::prepare::<C>(CrossEntropy, [logits.node()]);
        match prepared.compute_bound().stateful() {
            OpsKind::Tracked(mut operation) => {
                let node = operation.checkpoint(&logits);
                let (loss, saved) = B::cross_entropy(logits.into_primitive(), targets.clone());
                let loss = operation.finish((node, targets, saved.clone()), loss);
                (loss, FloatTensor::<Self>::new(saved))
            }
            OpsKind::UnTracked(operation) => {
                let (loss, saved) = B::cross_entropy(logits.into_primitive(), targets);
                (operation.finish(loss), FloatTensor::<Self>::new(saved))
            }
        }
    }

    fn argmax(logits: FloatTensor<Self>, dtype: IntDType) -> IntTensor<Self> {
        B::argmax(logits.into_primitive(), dtype)
    }

    fn multiply(left: FloatTensor<Self>, right: FloatTensor<Self>) -> FloatTensor<Self> {
        let prepared = Backward::<B, 2>::prepare::<C>(Product, [left.node(), right.node()]);
        match prepared.compute_bound().stateful() {
            OpsKind::Tracked(mut operation) => {
                let saved = [&left, &right].map(|factor| operation.checkpoint(factor));
                let product = B::multiply(left.into_primitive(), right.into_primitive());
                operation.finish(saved, product)
            }
            OpsKind::UnTracked(operation) => {
                operation.finish(B::multiply(left.into_primitive(), right.into_primitive()))
            }
        }
    }

    fn multiply_with_bias(
        left: FloatTensor<Self>,
        right: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let parents = [left.node(), right.node(), bias.node()];
        let prepared = Backward::<B, 3>::prepare::<C>(Product, parents);
        let multiply = |left: FloatTensor<Self>, right: FloatTensor<Self>| {
            let bias = bias.into_primitive();
            B::multiply_with_bias(left.into_primitive(), right.into_primitive(), bias)
        };
        match prepared.compute_bound().stateful() {
            OpsKind::Tracked(mut operation) => {
                let saved = [&left, &right].map(|factor| operation.checkpoint(factor));
                operation.finish(saved, multiply(left, right))
            }
            OpsKind::UnTracked(operation) => operation.finish(multiply(left, right)),
        }
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
        let all = [queries, keys, values];
        let parents = all.each_ref().map(FloatTensor::<Self>::node);
        let prepared = Backward::<B, 3>::prepare::<C>(CausalAttention, parents);
        let (output, saved) = match prepared.compute_bound().stateful() {
            OpsKind::Tracked(mut operation) => {
                let given = all.each_ref().map(|tensor| operation.checkpoint(tensor));
                let [queries, keys, values] = all.map(FloatTensor::<Self>::into_primitive);
                let (output, saved) = B::causal_attention(queries, keys, values, scale);
                let state = Attended {
                    given,
                    output: output.clone(),
                    saved: saved.clone(),
                    scale,
                };
                (operation.finish(state, output), saved)
            }
            OpsKind::UnTracked(operation) => {
                let [queries, keys, values] = all.map(FloatTensor::<Self>::into_primitive);
                let (output, saved) = B::causal_attention(queries, keys, values, scale);
                (operation.finish(output), saved)
            }
        };
        (output, FloatTensor::<Self>::new(saved))
    }

    fn relu(input: FloatTensor<Self>) -> FloatTensor<Self> {
        let (input, node) = input.into_parts();
        let output = <B as LayerOps>::relu(input);
        with_backward_step::<B, C, _, _>(Relu, [node], output.clone(), output)
    }

    fn gelu(input: FloatTensor<Self>) -> FloatTensor<Self> {
        let prepared = Backward::<B, 1>::prepare::<C>(Gelu, [input.node()]);
        match prepared.compute_bound().stateful() {
            OpsKind::Tracked(mut operation) => {
                let saved = operation.checkpoint(&input);
                operation.finish(saved, <B as LayerOps>::gelu(input.into_primitive()))
            }
            OpsKind::UnTracked(operation) => {
                operation.finish(<B as LayerOps>::gelu(input.into_primitive()))
            }
        }
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
        let parents = [input.node(), gamma.node(), beta.node()];
        let prepared = Backward::<B, 3>::prepare::<C>(LayerNorm, parents);
        let normalize = |input: FloatTensor<Self>, gamma: FloatTensor<Self>| {
            let (input, gamma) = (input.into_primitive(), gamma.into_primitive());
            <B as LayerOps>::layer_norm(input, gamma, beta.into_primitive(), epsilon)
        };
        let (output, mean, inverse) = match prepared.compute_bound().stateful() {
            OpsKind::Tracked(mut operation) => {
                let nodes = [&input, &gamma].map(|tensor| operation.checkpoint(tensor));
                let (output, mean, inverse) = normalize(input, gamma);
                let saved = (nodes, [mean.clone(), inverse.clone()]);
                (operation.finish(saved, output), mean, inverse)
            }
            OpsKind::UnTracked(operation) => {
                let (output, mean, inverse) = normalize(input, gamma);
                (operation.finish(output), mean, inverse)
            }
        };
        let [mean, inverse] = [mean, inverse].map(FloatTensor::<Self>::new);
        (output, mean, inverse)
    }

    fn batch_norm_train(
        input: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let parents = [input.node(), gamma.node(), beta.node()];
        let prepared = Backward::<B, 3>::prepare::<C>(BatchNorm, parents);
        let beta = beta.into_primitive();
        let (output, mean, variance) = match prepared.compute_bound().stateful() {
            OpsKind::Tracked(mut operation) => {
                let [of_input, of_gamma] =
                    [&input, &gamma].map(|tensor| operation.checkpoint(tensor));
                let (input, gamma) = (input.into_primitive(), gamma.into_primitive());
                let (output, mean, variance) =
                    <B as LayerOps>::batch_norm_train(input, gamma, beta, epsilon);
                let saved = BatchNormState {
                    input: of_input,
                    gamma: of_gamma,
                    mean: mean.clone(),
                    variance: variance.clone(),
                    epsilon,
                };
                (operation.finish(saved, output), mean, variance)
            }
            OpsKind::UnTracked(operation) => {
                let (input, gamma) = (input.into_primitive(), gamma.into_primitive());
                let (output, mean, variance) =
                    <B as LayerOps>::batch_norm_train(input, gamma, beta, epsilon);
                (operation.finish(output), mean, variance)
            }
        };
        let [mean, variance] = [mean, variance].map(FloatTensor::<Self>::new);
        (output, mean, variance)
    }
}
