//! Causal attention (Vaswani et al. 2017, section 3.2).

use burn::prelude::*;
use burn::tensor::activation::softmax;
use burn::tensor::{Bool, TensorData};
use everburn_nn::{Dropout, causal_attention, causal_softmax, matmul};

use super::LayerCache;

/// The heads of queries, keys or values.
///
/// # Shapes
/// - x: `[B, T, heads * head_width]`
/// - output: `[B, heads, T, head_width]`
pub(crate) fn heads(x: Tensor<3>, head_width: usize) -> Tensor<4> {
    let [batch, length, width] = x.dims();
    x.reshape([batch, length, width / head_width, head_width])
        .swap_dims(1, 2)
}

/// What each token looks up in itself and in those before it, of this text or of the cache. With fewer heads of keys
/// and values than of queries, each serves several of these (Ainslie et al. 2023, section 2.2).
///
/// # Shapes
/// - q: `[B, H, T, W]`
/// - k, v: `[B, K, T, W]`, where `K` divides `H`
/// - output: `[B, T, H * W]`
pub(crate) fn attend(
    q: Tensor<4>,
    [k, v]: [Tensor<4>; 2],
    dropout: &Dropout,
    cache: Option<&mut LayerCache>,
) -> Tensor<3> {
    let [batch, heads, length, width] = q.dims();
    let [k, v] = match cache {
        None => [k, v],
        Some(cache) => cache.extend([k, v]),
    };
    let [k, v] = [k, v].map(|x| for_each_query(x, heads));
    let seen = k.dims()[2];
    let scale = (width as f64).sqrt().recip();
    let drops = dropout.prob > 0.0 && dropout.training.is_enabled() && q.device().is_autodiff();
    if length == seen && !drops {
        return causal_attention(q, k, v, scale);
    }
    let scores = matmul(q, k.swap_dims(2, 3)); // [B, H, T, seen]
    let shares = match length {
        _ if length == seen => causal_softmax(scores, scale),
        1 => softmax(scores * scale, 3),
        _ => softmax(without_later(scores * scale), 3),
    };
    matmul(dropout.forward(shares), v)
        .swap_dims(1, 2) // [B, T, H, W]
        .reshape([batch, length, heads * width])
}

/// Scores of tokens that are behind others, with those of later tokens so low that these have no share.
///
/// # Shapes
/// - scores, output: `[B, H, T, seen]` with `T <= seen`: the last `T` of `seen` tokens look at all of them
fn without_later(scores: Tensor<4>) -> Tensor<4> {
    let [batch, heads, length, seen] = scores.dims();
    let before = seen - length;
    let later = (0..length).flat_map(|row| (0..seen).map(move |column| column > before + row));
    let later = TensorData::new(later.collect::<Vec<bool>>(), [1, 1, length, seen]);
    let later = Tensor::<4, Bool>::from_data(later, &scores.device());
    scores.mask_fill(
        later.expand([batch, heads, length, seen]),
        f32::NEG_INFINITY,
    )
}

/// Keys or values, repeated so that each of `heads` queries has its own.
fn for_each_query(x: Tensor<4>, heads: usize) -> Tensor<4> {
    let [batch, own, length, width] = x.dims();
    if own == heads {
        return x;
    }
    x.unsqueeze_dim::<5>(2)
        .expand([batch, own, heads / own, length, width])
        .reshape([batch, heads, length, width])
}
