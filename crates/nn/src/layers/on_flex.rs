//! The layers' operations on flex: the kernels of `everburn-kernels` for `f32`, which half-precision
//! tensors pass through between two roundings; Burn's own operations for everything else.

mod attention;
mod classes;
mod images;
mod norms;
mod products;
mod tensors;
mod update;

use burn::backend::ops::{ActivationOps, FloatTensorOps, ModuleOps};
use burn::backend::tensor::IntTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Distribution, FloatDType, Shape};
use everburn_kernels::{
    Dropout, causal_softmax, causal_softmax_backward, dropout, gelu, gelu_backward, relu,
    relu_backward,
};

use self::attention::{causal_attention, causal_attention_gradients};
use self::classes::{cross_entropy, cross_entropy_gradient};
use self::images::{
    adaptive_avg_pool, adaptive_avg_pool_gradient, avg_pool, avg_pool_gradient, convolve,
    convolve_bias_gradient, convolve_input_gradient, convolve_weight_gradient, max_pool,
    max_pool_gradient,
};
use self::norms::{
    batch_norm, batch_norm_gradients, batch_norm_train, layer_norm, layer_norm_gradients,
};
use self::products::{column_sums, multiply, multiply_right_gradient, rope};
use self::tensors::{Tensor, attempt, contiguous, float, of_same_shape, values};
pub(super) use self::update::adam_step;
use super::attention::{attended, attended_gradients};
use super::buffers::take;
use super::formulas::{
    class_loss, class_loss_gradient, factors, masked_softmax, masked_softmax_gradient, rotated,
};
use super::half::{lowered, raised, raised_alone, through_f32};
use super::operations::LayerOps;
use super::window::Window;
use super::{counted, rows};

/// Two numbers of the device's generator, in one dimension more than `input` has.
fn seed(input: &Tensor) -> Tensor {
    let mut shape = vec![1; input.shape().num_dims()];
    shape.push(2);
    let all = Distribution::Uniform(0.0, 1.0);
    Flex::float_random(shape.into(), all, &input.device(), FloatDType::F32)
}

fn drawn_from(seed: &Tensor, probability: f64) -> Dropout {
    // A float of 0..1 has 24 bits.
    let number = |index: usize| (values(seed)[index] * (1 << 24) as f32) as u32;
    Dropout::new(probability, [number(0), number(1)])
}

impl LayerOps for Flex {
    fn convolve(input: Tensor, weight: Tensor, options: ConvOptions<2>) -> Tensor {
        through_f32!(convolve(input, weight; options));
        convolve(&input, &weight, None, &options)
            .unwrap_or_else(|| counted::conv2d::<Self>(input, weight, None, options))
    }

    fn convolve_with_bias(
        input: Tensor,
        weight: Tensor,
        bias: Tensor,
        options: ConvOptions<2>,
    ) -> Tensor {
        through_f32!(convolve_with_bias(input, weight, bias; options));
        convolve(&input, &weight, Some(&bias), &options)
            .unwrap_or_else(|| counted::conv2d::<Self>(input, weight, Some(bias), options))
    }

    fn convolve_input_gradient(
        input: Tensor,
        weight: Tensor,
        gradient: Tensor,
        options: ConvOptions<2>,
    ) -> Tensor {
        through_f32!(convolve_input_gradient(input, weight, gradient; options));
        convolve_input_gradient(&input, &weight, &gradient, &options).unwrap_or_else(|| {
            counted::conv2d_input_gradient::<Self>(input, weight, gradient, options)
        })
    }

    fn convolve_weight_gradient(
        input: Tensor,
        weight: Tensor,
        gradient: Tensor,
        options: ConvOptions<2>,
    ) -> Tensor {
        through_f32!(convolve_weight_gradient(input, weight, gradient; options));
        convolve_weight_gradient(&input, &weight, &gradient, &options).unwrap_or_else(|| {
            counted::conv2d_weight_gradient::<Self>(input, weight, gradient, options)
        })
    }

    fn convolve_bias_gradient(input: Tensor, bias: Tensor, gradient: Tensor) -> Tensor {
        through_f32!(convolve_bias_gradient(input, bias, gradient));
        convolve_bias_gradient(&gradient)
            .unwrap_or_else(|| Self::conv2d_bias_backward(input, bias, gradient))
    }

    fn max_pool(input: Tensor, window: Window) -> Tensor {
        Self::max_pool_with_indices(input, window).0
    }

    fn max_pool_with_indices(input: Tensor, window: Window) -> (Tensor, IntTensor<Self>) {
        if let Some((low, [input])) = raised::<Self, 1>([&input]) {
            let (output, indices) = Self::max_pool_with_indices(input, window);
            return (Self::float_cast(output, low), indices);
        }
        max_pool(&input, window).unwrap_or_else(|| window.maximum::<Self>(input))
    }

    fn max_pool_gradient(
        input: Tensor,
        indices: IntTensor<Self>,
        gradient: Tensor,
        window: Window,
    ) -> Tensor {
        if let Some((low, [input, gradient])) = raised::<Self, 2>([&input, &gradient]) {
            let gradient = Self::max_pool_gradient(input, indices, gradient, window);
            return Self::float_cast(gradient, low);
        }
        max_pool_gradient(&input, &indices, &gradient, window)
            .unwrap_or_else(|| window.maximum_gradient::<Self>(input, indices, gradient))
    }

    fn avg_pool(input: Tensor, window: Window, padded: bool) -> Tensor {
        through_f32!(avg_pool(input; window, padded));
        avg_pool(&input, window, padded).unwrap_or_else(|| window.mean::<Self>(input, padded))
    }

    fn avg_pool_gradient(input: Tensor, gradient: Tensor, window: Window, padded: bool) -> Tensor {
        through_f32!(avg_pool_gradient(input, gradient; window, padded));
        avg_pool_gradient(&input, &gradient, window, padded)
            .unwrap_or_else(|| window.mean_gradient::<Self>(input, gradient, padded))
    }

    fn adaptive_avg_pool2d(input: Tensor, output: [usize; 2]) -> Tensor {
        through_f32!(adaptive_avg_pool2d(input; output));
        adaptive_avg_pool(&input, output)
            .unwrap_or_else(|| <Self as ModuleOps<Self>>::adaptive_avg_pool2d(input, output))
    }

    fn adaptive_avg_pool2d_gradient(input: Tensor, gradient: Tensor) -> Tensor {
        through_f32!(adaptive_avg_pool2d_gradient(input, gradient));
        adaptive_avg_pool_gradient(&input, &gradient).unwrap_or_else(|| {
            <Self as ModuleOps<Self>>::adaptive_avg_pool2d_backward(input, gradient)
        })
    }

    fn multiply(left: Tensor, right: Tensor) -> Tensor {
        through_f32!(multiply(left, right));
        multiply(&left, &right, None).unwrap_or_else(|| counted::matmul::<Self>(left, right))
    }

    fn multiply_with_bias(left: Tensor, right: Tensor, bias: Tensor) -> Tensor {
        through_f32!(multiply_with_bias(left, right, bias));
        multiply(&left, &right, Some(&bias))
            .unwrap_or_else(|| Self::add_bias(counted::matmul::<Self>(left, right), bias))
    }

    fn multiply_right_gradient(left: Tensor, right: Tensor, gradient: Tensor) -> Tensor {
        multiply_right_gradient(&left, &right, &gradient)
            .unwrap_or_else(|| Self::multiply(Self::float_transpose(left), gradient))
    }

    fn column_sums(input: Tensor) -> Tensor {
        through_f32!(column_sums(input));
        column_sums(&input).unwrap_or_else(|| {
            let columns = input.shape()[1];
            Self::float_reshape(Self::float_sum_dim(input, 0), Shape::new([columns]))
        })
    }

    fn causal_attention(
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        scale: f64,
    ) -> (Tensor, Tensor) {
        causal_attention([&queries, &keys, &values], scale)
            .unwrap_or_else(|| attended::<Self>(queries, keys, values, scale))
    }

    fn causal_attention_gradients(
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        output: Tensor,
        saved: Tensor,
        gradient: Tensor,
        scale: f64,
    ) -> (Tensor, Tensor, Tensor) {
        let given = [&queries, &keys, &values];
        causal_attention_gradients(given, [&output, &saved, &gradient], scale).unwrap_or_else(
            || attended_gradients::<Self>([queries, keys, values], saved, gradient, scale),
        )
    }

    fn relu(input: Tensor) -> Tensor {
        through_f32!(relu(input));
        of_same_shape([&input], |[input], output| relu(input, output))
            .unwrap_or_else(|| <Self as ActivationOps<Self>>::relu(input))
    }

    fn relu_gradient(output: Tensor, gradient: Tensor) -> Tensor {
        through_f32!(relu_gradient(output, gradient));
        let fast = of_same_shape([&output, &gradient], |[output, gradient], input_grad| {
            relu_backward(output, gradient, input_grad)
        });
        fast.unwrap_or_else(|| <Self as ActivationOps<Self>>::relu_backward(output, gradient))
    }

    fn gelu(input: Tensor) -> Tensor {
        through_f32!(gelu(input));
        of_same_shape([&input], |[input], output| gelu(input, output))
            .unwrap_or_else(|| <Self as ActivationOps<Self>>::gelu(input))
    }

    fn gelu_gradient(input: Tensor, gradient: Tensor) -> Tensor {
        through_f32!(gelu_gradient(input, gradient));
        let fast = of_same_shape([&input, &gradient], |[input, gradient], input_grad| {
            gelu_backward(input, gradient, input_grad)
        });
        fast.unwrap_or_else(|| <Self as ActivationOps<Self>>::gelu_backward(input, gradient))
    }

    fn causal_softmax(scores: Tensor, scale: f64) -> Tensor {
        through_f32!(causal_softmax(scores; scale));
        let [batch, heads, length, _] = scores.shape().dims();
        let matrices = [batch * heads, length];
        let fast = of_same_shape([&scores], |[scores], shares| {
            causal_softmax(matrices, scale as f32, scores, shares)
        });
        fast.unwrap_or_else(|| masked_softmax::<Self>(scores, scale))
    }

    fn causal_softmax_gradient(shares: Tensor, gradient: Tensor, scale: f64) -> Tensor {
        through_f32!(causal_softmax_gradient(shares, gradient; scale));
        let [batch, heads, length, _] = shares.shape().dims();
        let matrices = [batch * heads, length];
        let fast = of_same_shape([&shares, &gradient], |[shares, gradient], scores_grad| {
            causal_softmax_backward(matrices, scale as f32, shares, gradient, scores_grad)
        });
        fast.unwrap_or_else(|| masked_softmax_gradient::<Self>(shares, gradient, scale))
    }

    fn cross_entropy(logits: Tensor, targets: IntTensor<Self>) -> (Tensor, Tensor) {
        let logits = raised_alone::<Self>(logits);
        cross_entropy(&logits, &targets).unwrap_or_else(|| class_loss::<Self>(logits, targets))
    }

    fn cross_entropy_gradient(
        logits: Tensor,
        targets: IntTensor<Self>,
        saved: Tensor,
        gradient: Tensor,
    ) -> Tensor {
        let dtype = logits.dtype();
        let logits = raised_alone::<Self>(logits);
        let found = cross_entropy_gradient(&logits, &targets, &saved, &gradient)
            .unwrap_or_else(|| class_loss_gradient::<Self>(saved, targets, gradient));
        lowered::<Self>(found, dtype)
    }

    fn rope(input: Tensor, cosines: Tensor, sines: Tensor, back: bool) -> Tensor {
        through_f32!(rope(input, cosines, sines; back));
        rope(&input, [&cosines, &sines], back)
            .unwrap_or_else(|| rotated::<Self>(&input, &cosines, sines, back))
    }

    fn dropout(input: Tensor, probability: f64) -> (Tensor, Tensor) {
        if let Some((low, [input])) = raised::<Self, 1>([&input]) {
            let (output, seed) = Self::dropout(input, probability);
            return (Self::float_cast(output, low), seed);
        }
        let fast = || {
            let [input] = contiguous([&input])?;
            let seed = seed(&input);
            attempt(|| {
                let mut output = take(values(&input).len());
                dropout(drawn_from(&seed, probability), values(&input), &mut output)?;
                Ok((float(output, input.shape(), &input), seed))
            })
        };
        fast().unwrap_or_else(|| {
            let factors = factors::<Self>(&input, probability);
            (Self::float_mul(input, factors.clone()), factors)
        })
    }

    fn dropout_gradient(gradient: Tensor, factors: Tensor, probability: f64) -> Tensor {
        // The seed, or the factors, are f32.
        if let Some((low, [gradient])) = raised::<Self, 1>([&gradient]) {
            let gradient = Self::dropout_gradient(gradient, factors, probability);
            return Self::float_cast(gradient, low);
        }
        let fast = || {
            // Else they are factors.
            let is_seed = factors.shape().num_dims() > gradient.shape().num_dims();
            let kernel = |[gradient]: [&[f32]; 1], input_grad: &mut [f32]| {
                dropout(drawn_from(&factors, probability), gradient, input_grad)
            };
            is_seed
                .then(|| of_same_shape([&gradient], kernel))
                .flatten()
        };
        fast().unwrap_or_else(|| Self::float_mul(gradient, factors))
    }

    fn layer_norm(
        input: Tensor,
        gamma: Tensor,
        beta: Tensor,
        epsilon: f64,
    ) -> (Tensor, Tensor, Tensor) {
        layer_norm(&input, &gamma, &beta, epsilon)
            .unwrap_or_else(|| rows::normalized::<Self>(input, gamma, beta, epsilon))
    }

    fn layer_norm_gradients(
        input: Tensor,
        gamma: Tensor,
        mean: Tensor,
        inverse: Tensor,
        gradient: Tensor,
    ) -> (Tensor, Tensor, Tensor) {
        layer_norm_gradients([&input, &gamma, &mean, &inverse, &gradient])
            .unwrap_or_else(|| rows::gradients::<Self>(input, &gamma, mean, inverse, gradient))
    }

    fn batch_norm(
        input: Tensor,
        gamma: Tensor,
        beta: Tensor,
        mean: Tensor,
        variance: Tensor,
        epsilon: f64,
    ) -> Tensor {
        batch_norm([&input, &gamma, &beta], [&mean, &variance], epsilon).unwrap_or_else(|| {
            <Self as ModuleOps<Self>>::batch_norm(input, gamma, beta, mean, variance, epsilon)
        })
    }

    fn batch_norm_train(
        input: Tensor,
        gamma: Tensor,
        beta: Tensor,
        epsilon: f64,
    ) -> (Tensor, Tensor, Tensor) {
        batch_norm_train(&input, &gamma, &beta, epsilon).unwrap_or_else(|| {
            let result = <Self as ModuleOps<Self>>::batch_norm_train(input, gamma, beta, epsilon);
            (result.output, result.mean, result.variance)
        })
    }

    fn batch_norm_gradients(
        input: Tensor,
        gamma: Tensor,
        mean: Tensor,
        variance: Tensor,
        epsilon: f64,
        gradient: Tensor,
    ) -> (Tensor, Tensor, Tensor) {
        let all = [&input, &gamma, &mean, &variance, &gradient];
        batch_norm_gradients(all, epsilon).unwrap_or_else(|| {
            let result = <Self as ModuleOps<Self>>::batch_norm_train_backward(
                input, gamma, mean, variance, epsilon, gradient,
            );
            (result.x_grad, result.gamma_grad, result.beta_grad)
        })
    }
}
