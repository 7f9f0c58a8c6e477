//! Half-precision tensors on their way through operations that compute in `f32`.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{DType, FloatDType};

use crate::precision::is_half;

/// `tensors` as `f32`, and the type that results are to be rounded to; `None` if none has 16 bits.
pub(super) fn raised<B: Backend, const N: usize>(
    tensors: [&FloatTensor<B>; N],
) -> Option<(FloatDType, [FloatTensor<B>; N])> {
    let mut types = tensors.iter().map(|tensor| tensor.dtype());
    let low = types.find(|dtype| is_half(*dtype))?;
    let raise = |tensor: &FloatTensor<B>| match is_half(tensor.dtype()) {
        true => B::float_cast(tensor.clone(), FloatDType::F32),
        false => tensor.clone(),
    };
    Some((low.into(), tensors.map(raise)))
}

/// `tensor` as `f32`, if it has 16 bits.
pub(super) fn raised_alone<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    match raised::<B, 1>([&tensor]) {
        Some((_, [raised])) => raised,
        None => tensor,
    }
}

/// `tensor` rounded to `dtype`, if that has 16 bits.
pub(super) fn lowered<B: Backend>(tensor: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    match is_half(dtype) {
        true => B::float_cast(tensor, dtype.into()),
        false => tensor,
    }
}

/// What `compute` makes of `tensors` as `f32`, rounded to their type.
pub(super) fn in_f32<B: Backend, const N: usize>(
    tensors: [FloatTensor<B>; N],
    compute: impl FnOnce([FloatTensor<B>; N]) -> FloatTensor<B>,
) -> FloatTensor<B> {
    match raised::<B, N>(tensors.each_ref()) {
        Some((low, raised)) => B::float_cast(compute(raised), low),
        None => compute(tensors),
    }
}

/// Lets an operation of `f32` serve half precision: it is called again on raised tensors, and its result is
/// rounded.
macro_rules! through_f32 {
    ($operation:ident($($tensor:ident),+ $(; $($rest:expr),+)?)) => {
        if let Some((low, [$($tensor),+])) = $crate::layers::half::raised::<Self, _>([$(&$tensor),+]) {
            return Self::float_cast(<Self as $crate::layers::operations::LayerOps>::$operation($($tensor),+ $(, $($rest),+)?), low);
        }
    };
}

pub(super) use through_f32;
