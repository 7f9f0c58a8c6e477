//! Causal attention.

use burn::backend::TensorMetadata;
use everburn_kernels::{self as kernels};

use super::products::matrices_of;
use super::tensors::{Tensor, attempt, contiguous, float, values};
use crate::layers::buffers::take;

/// Of queries, keys and values, wherever their numbers are. What is kept is `[B, heads, T]`.
pub(super) fn causal_attention(given: [&Tensor; 3], scale: f64) -> Option<(Tensor, Tensor)> {
    let [batch, heads, tokens, width] = given[0].shape().dims();
    let matrices = matrices_of(given)?;
    let (mut output, mut logarithms) = (
        take(batch * tokens * heads * width),
        take(batch * heads * tokens),
    );
    attempt(|| {
        kernels::causal_attention(matrices, scale as f32, &mut output, &mut logarithms)?;
        let output = float(output, [batch, tokens, heads * width], given[0]);
        Ok((output, float(logarithms, [batch, heads, tokens], given[0])))
    })
}

/// With the output, what was kept and the gradient. The numbers of a token are side by side, as the layers
/// before the attention take them.
pub(super) fn causal_attention_gradients(
    given: [&Tensor; 3],
    rest: [&Tensor; 3],
    scale: f64,
) -> Option<(Tensor, Tensor, Tensor)> {
    if rest[1].shape().num_dims() != 3 {
        // Shares of all tokens.
        return None;
    }
    let [batch, heads, tokens, width] = given[0].shape().dims();
    let matrices = matrices_of(given)?;
    let [output, logarithms, gradient] = contiguous(rest)?;
    let mut grads = [(); 3].map(|()| take(batch * tokens * heads * width));
    attempt(|| {
        let [a, b, c] = &mut grads;
        let kept = [values(&output), values(&logarithms)];
        kernels::causal_attention_backward(
            matrices,
            scale as f32,
            kept,
            values(&gradient),
            [a, b, c],
        )?;
        let [a, b, c] = grads.map(|grad| {
            let grad = float(grad, [batch, tokens, heads, width], given[0]);
            let layout = grad.layout().transpose(1, 2);
            grad.with_layout(layout)
        });
        Ok((a, b, c))
    })
}
