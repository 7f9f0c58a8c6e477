//! Products of matrices.

use burn::backend::Dispatch;
use burn::prelude::*;
use burn::tensor::assert_shape;

use super::operations::LayerOps;
use crate::precision::CastMatmul;

/// The product of each pair of matrices: [`Tensor::matmul`] but for rounding, with the `gemm` crate on
/// CPUs and without copies of matrices that are not row after row.
///
/// # Shapes
/// - left: `[B, heads, rows, inner]`
/// - right: `[B, heads, inner, columns]`
/// - output: `[B, heads, rows, columns]`
///
/// # Panics
/// Panics if the factors do not fit together.
pub fn matmul(left: Tensor<4>, right: Tensor<4>) -> Tensor<4> {
    let [batch, heads, _, inner] = left.dims();
    assert_shape!(right, [batch, heads, inner, _]);
    let cast = CastMatmul::of(&left);
    let [left, right] = [left, right].map(|operand| cast.operand(operand).into_dispatch());
    cast.result(Tensor::from_dispatch(<Dispatch as LayerOps>::multiply(
        left, right,
    )))
}

/// `left * right`, and `bias` added to each row.
pub(crate) fn product(left: Tensor<2>, right: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<2> {
    let [left, right] = [left, right].map(Tensor::into_dispatch);
    Tensor::from_dispatch(match bias.map(Tensor::into_dispatch) {
        Some(bias) => <Dispatch as LayerOps>::multiply_with_bias(left, right, bias),
        None => <Dispatch as LayerOps>::multiply(left, right),
    })
}

/// `rows`, and `bias` added to each: as [`product`] adds it, and its gradient is summed as there.
pub(crate) fn add_bias(rows: Tensor<2>, bias: Tensor<1>) -> Tensor<2> {
    let [rows, bias] = [rows.into_dispatch(), bias.into_dispatch()];
    Tensor::from_dispatch(<Dispatch as LayerOps>::add_bias(rows, bias))
}
