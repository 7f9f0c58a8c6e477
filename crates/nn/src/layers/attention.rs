//! Causal attention.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Dispatch, TensorMetadata};
use burn::prelude::*;
use burn::tensor::assert_shape;

use super::operations::LayerOps;
use crate::precision::CastMatmul;

/// What each token looks up in itself and in those before it: [`causal_softmax`](crate::causal_softmax) of
/// queries by keys, times values. On CPUs in one pass over tiles, without the scores of all tokens in memory
/// (Dao et al. 2022).
///
/// # Shapes
/// - queries, keys, values: `[B, heads, T, width]`
/// - output: `[B, T, heads * width]`
///
/// # Panics
/// Panics if the shapes differ.
pub fn causal_attention(
    queries: Tensor<4>,
    keys: Tensor<4>,
    values: Tensor<4>,
    scale: f64,
) -> Tensor<3> {
    let [batch, heads, tokens, width] = queries.dims();
    assert_shape!(keys, [batch, heads, tokens, width]);
    assert_shape!(values, [batch, heads, tokens, width]);
    let cast = CastMatmul::of(&queries);
    let [queries, keys, values] =
        [queries, keys, values].map(|operand| cast.operand(operand).into_dispatch());
    let (output, _) = <Dispatch as LayerOps>::causal_attention(queries, keys, values, scale);
    cast.result(Tensor::from_dispatch(output))
}

/// By an operation for each step; kept are the shares of all tokens.
pub(super) fn attended<B: LayerOps>(
    queries: FloatTensor<B>,
    keys: FloatTensor<B>,
    values: FloatTensor<B>,
    scale: f64,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let [batch, heads, tokens, width] = queries.shape().dims();
    let scores = B::multiply(queries, B::float_swap_dims(keys, 2, 3));
    let shares = B::causal_softmax(scores, scale);
    let output = B::float_swap_dims(B::multiply(shares.clone(), values), 1, 2);
    let shape = Shape::new([batch, tokens, heads * width]);
    (B::float_reshape(output, shape), shares)
}

/// The gradients with respect to queries, keys and values.
pub(super) fn attended_gradients<B: LayerOps>(
    [queries, keys, values]: [FloatTensor<B>; 3],
    shares: FloatTensor<B>,
    gradient: FloatTensor<B>,
    scale: f64,
) -> (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>) {
    let [batch, heads, tokens, width] = queries.shape().dims();
    let gradient = B::float_reshape(gradient, Shape::new([batch, tokens, heads, width]));
    let gradient = B::float_swap_dims(gradient, 1, 2);
    let turned = |tensor| B::float_swap_dims(tensor, 2, 3);
    let of_values = B::multiply(turned(shares.clone()), gradient.clone());
    let of_shares = B::multiply(gradient, turned(values));
    let of_scores = B::causal_softmax_gradient(shares, of_shares, scale);
    let of_keys = B::multiply(turned(of_scores.clone()), queries);
    (B::multiply(of_scores, keys), of_keys, of_values)
}
