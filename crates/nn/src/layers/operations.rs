//! The layers' operations and their gradients, as operations of Burn's backends.

use burn::backend::ops::{ActivationOps, ModuleOps};
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata, backend_extension};
use burn::tensor::ops::ConvOptions;
use burn::tensor::{IntDType, Shape};

use super::attention::{attended, attended_gradients};
use super::formulas::{
    class_loss, class_loss_gradient, factors, masked_softmax, masked_softmax_gradient, rotated,
};
use super::half::{in_f32, lowered, raised_alone};
#[cfg(feature = "gpu")]
use super::on_cube;
use super::window::Window;
use super::{counted, rows, split_k};

/// What layers compute. The bodies are Burn's own operations; flex has this project's kernels in their place, and so
/// have GPUs for those that Burn's fuser is not to take apart.
#[backend_extension(
    Autodiff,
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "gpu"),
    Fusion: cfg(feature = "gpu")
)]
pub(crate) trait LayerOps: Backend {
    /// `[B, C_in, H, W]` and `[C_out, C_in / groups, K_h, K_w]` make `[B, C_out, H', W']`.
    #[fusion(default)]
    fn convolve(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        options: ConvOptions<2>,
    ) -> FloatTensor<Self> {
        counted::conv2d::<Self>(input, weight, None, options)
    }

    /// The same, and `bias`, `[C_out]`.
    #[fusion(default)]
    fn convolve_with_bias(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        options: ConvOptions<2>,
    ) -> FloatTensor<Self> {
        counted::conv2d::<Self>(input, weight, Some(bias), options)
    }

    /// The gradient of [`LayerOps::convolve`] with respect to its input.
    #[fusion(default)]
    fn convolve_input_gradient(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        options: ConvOptions<2>,
    ) -> FloatTensor<Self> {
        counted::conv2d_input_gradient::<Self>(input, weight, gradient, options)
    }

    /// The gradient of [`LayerOps::convolve`] with respect to its weight.
    #[fusion(default)]
    fn convolve_weight_gradient(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        options: ConvOptions<2>,
    ) -> FloatTensor<Self> {
        counted::conv2d_weight_gradient::<Self>(input, weight, gradient, options)
    }

    /// The gradient of [`LayerOps::convolve`] with respect to its bias.
    #[fusion(default)]
    fn convolve_bias_gradient(
        input: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        Self::conv2d_bias_backward(input, bias, gradient)
    }

    /// The largest value of each window.
    #[fusion(default)]
    fn max_pool(input: FloatTensor<Self>, window: Window) -> FloatTensor<Self> {
        window.maximum_alone::<Self>(input)
    }

    /// The largest value of each window, and where in its plane it is.
    #[fusion(default)]
    fn max_pool_with_indices(
        input: FloatTensor<Self>,
        window: Window,
    ) -> (FloatTensor<Self>, IntTensor<Self>) {
        window.maximum::<Self>(input)
    }

    /// The gradient of [`LayerOps::max_pool`].
    #[fusion(default)]
    fn max_pool_gradient(
        input: FloatTensor<Self>,
        indices: IntTensor<Self>,
        gradient: FloatTensor<Self>,
        window: Window,
    ) -> FloatTensor<Self> {
        window.maximum_gradient::<Self>(input, indices, gradient)
    }

    /// The mean of each window; of its taps in the padding too, if `padded`.
    #[fusion(default)]
    fn avg_pool(input: FloatTensor<Self>, window: Window, padded: bool) -> FloatTensor<Self> {
        window.mean::<Self>(input, padded)
    }

    /// The gradient of [`LayerOps::avg_pool`].
    #[fusion(default)]
    fn avg_pool_gradient(
        input: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        window: Window,
        padded: bool,
    ) -> FloatTensor<Self> {
        window.mean_gradient::<Self>(input, gradient, padded)
    }

    /// The means of `output` windows that share a plane evenly.
    #[fusion(default)]
    fn adaptive_avg_pool2d(input: FloatTensor<Self>, output: [usize; 2]) -> FloatTensor<Self> {
        <Self as ModuleOps<Self>>::adaptive_avg_pool2d(input, output)
    }

    /// The gradient of [`LayerOps::adaptive_avg_pool2d`].
    #[fusion(default)]
    fn adaptive_avg_pool2d_gradient(
        input: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        <Self as ModuleOps<Self>>::adaptive_avg_pool2d_backward(input, gradient)
    }

    /// The product of two matrices, or of each pair in `[B, heads, rows, columns]`.
    #[fusion(default)]
    fn multiply(left: FloatTensor<Self>, right: FloatTensor<Self>) -> FloatTensor<Self> {
        counted::matmul::<Self>(left, right)
    }

    /// `left * right`, and `bias` added to each row: the same bits as one after the other.
    #[fusion(default)]
    fn multiply_with_bias(
        left: FloatTensor<Self>,
        right: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        Self::add_bias(counted::matmul::<Self>(left, right), bias)
    }

    /// The gradient of `left * right` with respect to `right`, which has the memory layout of `right`.
    #[fusion(default)]
    fn multiply_right_gradient(
        left: FloatTensor<Self>,
        right: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        drop(right);
        split_k::transposed_product::<Self>(left, gradient)
    }

    /// `rows`, `[rows, columns]`, and `bias` added to each.
    #[fusion(default)]
    fn add_bias(rows: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self> {
        let columns = bias.shape()[0];
        Self::float_add(rows, Self::float_reshape(bias, Shape::new([1, columns])))
    }

    /// The sums of the columns of `[rows, columns]`: the gradient of a bias.
    #[fusion(dtype = input, shape = Shape::new([input[1]]))]
    fn column_sums(input: FloatTensor<Self>) -> FloatTensor<Self> {
        let columns = input.shape()[1];
        let sum = in_f32::<Self, 1>([input], |[input]| Self::float_sum_dim(input, 0));
        Self::float_reshape(sum, Shape::new([columns]))
    }

    /// Zeros in the place of negative numbers.
    #[fusion(default)]
    fn relu(input: FloatTensor<Self>) -> FloatTensor<Self> {
        <Self as ActivationOps<Self>>::relu(input)
    }

    /// The gradient of [`LayerOps::relu`], from its output.
    #[fusion(default)]
    fn relu_gradient(output: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        <Self as ActivationOps<Self>>::relu_backward(output, gradient)
    }

    /// The Gaussian error linear unit, the exact one.
    #[fusion(default)]
    fn gelu(input: FloatTensor<Self>) -> FloatTensor<Self> {
        in_f32::<Self, 1>([input], |[input]| {
            <Self as ActivationOps<Self>>::gelu(input)
        })
    }

    /// The gradient of [`LayerOps::gelu`].
    #[fusion(default)]
    fn gelu_gradient(input: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        in_f32::<Self, 2>([input, gradient], |[input, gradient]| {
            <Self as ActivationOps<Self>>::gelu_backward(input, gradient)
        })
    }

    /// The softmax of `scale * scores`, `[B, heads, T, T]`, of which row `r` has the columns `0..=r`.
    #[fusion(dtype = scores, shape = scores)]
    fn causal_softmax(scores: FloatTensor<Self>, scale: f64) -> FloatTensor<Self> {
        in_f32::<Self, 1>([scores], |[scores]| masked_softmax::<Self>(scores, scale))
    }

    /// The gradient of [`LayerOps::causal_softmax`], from its output.
    #[fusion(dtype = shares, shape = shares)]
    fn causal_softmax_gradient(
        shares: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        scale: f64,
    ) -> FloatTensor<Self> {
        in_f32::<Self, 2>([shares, gradient], |[shares, gradient]| {
            masked_softmax_gradient::<Self>(shares, gradient, scale)
        })
    }

    /// What each token looks up in itself and in those before it: queries, keys and values are
    /// `[B, heads, T, width]`, the output is `[B, T, heads * width]`; then what the backward pass needs:
    /// [`LayerOps::causal_softmax`] of all tokens, or less from which it follows.
    #[fusion(default)]
    fn causal_attention(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        scale: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        attended::<Self>(queries, keys, values, scale)
    }

    /// The gradients of [`LayerOps::causal_attention`] with respect to queries, keys and values.
    #[fusion(default)]
    fn causal_attention_gradients(
        queries: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        output: FloatTensor<Self>,
        saved: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        scale: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        drop(output);
        attended_gradients::<Self>([queries, keys, values], saved, gradient, scale)
    }

    /// The mean over the rows of `[rows, classes]` of how unlikely each one's target is, `[1]`; then what
    /// the backward pass needs: logarithms of probabilities, or less from which they follow. A loss in half
    /// precision would be rounded to steps of a hundredth: that of half-precision logits is `f32`.
    #[fusion(meta = |logits, _| on_cube::cross_entropy_specs(logits))]
    fn cross_entropy(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        class_loss::<Self>(raised_alone::<Self>(logits), targets)
    }

    /// The gradient of [`LayerOps::cross_entropy`] with respect to the logits; `gradient` is `[1]`.
    #[fusion(dtype = logits, shape = logits)]
    fn cross_entropy_gradient(
        logits: FloatTensor<Self>,
        targets: IntTensor<Self>,
        saved: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let dtype = logits.dtype();
        drop(logits);
        lowered::<Self>(class_loss_gradient::<Self>(saved, targets, gradient), dtype)
    }

    /// The class of the largest logit of each row of `[rows, classes]`: the first of equal ones.
    #[fusion(meta = |logits, dtype| on_cube::argmax_spec(logits, *dtype))]
    fn argmax(logits: FloatTensor<Self>, dtype: IntDType) -> IntTensor<Self> {
        let rows = Shape::new([logits.shape()[0]]);
        Self::int_reshape(Self::float_argmax(logits, 1, dtype), rows)
    }

    /// Pairs of numbers turned by angles, whose cosines and sines are `[1, 1, T, half]`, or `back`.
    #[fusion(default)]
    fn rope(
        input: FloatTensor<Self>,
        cosines: FloatTensor<Self>,
        sines: FloatTensor<Self>,
        back: bool,
    ) -> FloatTensor<Self> {
        in_f32::<Self, 3>([input, cosines, sines], |[input, cosines, sines]| {
            rotated::<Self>(&input, &cosines, sines, back)
        })
    }

    /// Zeros in the place of a share of all values, and the others multiplied so that the mean stays;
    /// then what the backward pass needs: factors, or less from which they follow.
    #[fusion(default)]
    fn dropout(
        input: FloatTensor<Self>,
        probability: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let factors = factors::<Self>(&input, probability);
        (Self::float_mul(input, factors.clone()), factors)
    }

    /// The gradient of [`LayerOps::dropout`].
    #[fusion(default)]
    fn dropout_gradient(
        gradient: FloatTensor<Self>,
        factors: FloatTensor<Self>,
        probability: f64,
    ) -> FloatTensor<Self> {
        let _ = probability;
        Self::float_mul(gradient, factors)
    }

    /// Normalises each row of `[rows, columns]`; then the means and the inverse deviations of the rows,
    /// through which no gradient flows.
    #[fusion(meta = |input, _, _, _| on_cube::layer_norm_specs(input))]
    fn layer_norm(
        input: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        rows::normalized::<Self>(input, gamma, beta, epsilon)
    }

    /// The gradients of [`LayerOps::layer_norm`] with respect to input, gamma and beta.
    #[fusion(meta = |input, gamma, _, _, _| (input.clone(), gamma.clone(), gamma.clone()))]
    fn layer_norm_gradients(
        input: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        inverse: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        rows::gradients::<Self>(input, &gamma, mean, inverse, gradient)
    }

    /// Batch norm by given statistics, `[C]`. It has no backward pass of its own.
    #[fusion(default)]
    fn batch_norm(
        input: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        variance: FloatTensor<Self>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        <Self as ModuleOps<Self>>::batch_norm(input, gamma, beta, mean, variance, epsilon)
    }

    /// Batch norm by the statistics of the batch, `[B, C, ...]`; then its mean and its biased
    /// variance, `[C]`, through which no gradient flows.
    #[fusion(default)]
    fn batch_norm_train(
        input: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: FloatTensor<Self>,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let result = <Self as ModuleOps<Self>>::batch_norm_train(input, gamma, beta, epsilon);
        (result.output, result.mean, result.variance)
    }

    /// The gradients of [`LayerOps::batch_norm_train`] with respect to input, gamma and beta.
    #[fusion(default)]
    fn batch_norm_gradients(
        input: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        mean: FloatTensor<Self>,
        variance: FloatTensor<Self>,
        epsilon: f64,
        gradient: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let result = <Self as ModuleOps<Self>>::batch_norm_train_backward(
            input, gamma, mean, variance, epsilon, gradient,
        );
        (result.x_grad, result.gamma_grad, result.beta_grad)
    }
}
