//! Reductions in one canonical order.
//!
//! Every element of a result is combined strictly in rank order: `((x0 + x1) + x2) + ...`. Which
//! rank computes it, over which transport and by which algorithm plays no part, so all ranks hold
//! the same bits. (Where the result is NaN, all ranks hold the same NaN, but which of several NaN
//! payloads survives an addition is the processor's choice.)

use std::fmt;

use super::element::{Accumulator, Element};

/// How the ranks' contributions become one.
///
/// Each reduction adds the contributions element by element in rank order. `f16` and `bf16` are
/// combined in `f32` over all ranks and rounded once. Sums and products of integers wrap. `Min`
/// and `Max` return NaN where a rank contributed NaN, so that a diverged rank is seen.
///
/// ```
/// use everburn_collectives::group::ReduceOp;
///
/// assert_eq!(ReduceOp::Mean.to_string(), "mean");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The sum.
    Sum,
    /// The sum divided by the number of ranks; refused for integers.
    Mean,
    /// The least; NaN if there is one.
    Min,
    /// The greatest; NaN if there is one.
    Max,
    /// The product.
    Product,
}

impl ReduceOp {
    /// Every operation; the place in this list is the code on the wire.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Mean, Self::Min, Self::Max, Self::Product];

    /// The code on the wire.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Sum => 0,
            Self::Mean => 1,
            Self::Min => 2,
            Self::Max => 3,
            Self::Product => 4,
        }
    }

    /// The operation of a code, if there is one.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// Whether this operation exists for elements of type `T`.
    #[must_use]
    pub fn supports<T: Element>(self) -> bool {
        self != Self::Mean || T::Accumulator::FRACTIONAL
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Min => "min",
            Self::Max => "max",
            Self::Product => "product",
        })
    }
}

/// How many accumulators are worked on at a time: 8 KiB of `f64`, which stays in the L1 cache
/// while every rank's contribution passes through it.
const BLOCK: usize = 1024;

/// Combines `contributions`, given in rank order, into `result`, which may be one of nobody's
/// inputs. Contributions of another length than `result` would be a bug of the caller; the
/// surplus is ignored.
pub(crate) fn reduce_in_rank_order<T: Element>(
    op: ReduceOp,
    contributions: &[&[T]],
    result: &mut [T],
) {
    match op {
        ReduceOp::Sum => fold(contributions, result, Accumulator::add, |x| x),
        ReduceOp::Mean => {
            let ranks = contributions.len();
            fold(
                contributions,
                result,
                Accumulator::add,
                |x: T::Accumulator| x.divide(ranks),
            );
        }
        ReduceOp::Min => fold(contributions, result, Accumulator::least, |x| x),
        ReduceOp::Max => fold(contributions, result, Accumulator::greatest, |x| x),
        ReduceOp::Product => fold(contributions, result, Accumulator::multiply, |x| x),
    }
}

/// Combines `from` into `into`, which holds the left operands. Without the last step of a mean.
pub(crate) fn accumulate<T: Element>(op: ReduceOp, into: &mut [T], from: &[T]) {
    pair(op, into, from, |own, other, combine| combine(own, other));
}

/// Combines `from` into `into`, which holds the right operands. Without the last step of a mean.
pub(crate) fn accumulate_before<T: Element>(op: ReduceOp, into: &mut [T], from: &[T]) {
    pair(op, into, from, |own, other, combine| combine(other, own));
}

/// Divides sums by the number of ranks: the last step of a mean.
pub(crate) fn finish_mean<T: Element>(values: &mut [T], ranks: usize) {
    let mut wide = [T::Accumulator::default(); BLOCK];
    for block in values.chunks_mut(BLOCK) {
        let wide = &mut wide[..block.len()];
        T::widen(block, wide);
        for value in wide.iter_mut() {
            *value = value.divide(ranks);
        }
        T::narrow(wide, block);
    }
}

fn pair<T: Element>(
    op: ReduceOp,
    into: &mut [T],
    from: &[T],
    order: impl Fn(
        T::Accumulator,
        T::Accumulator,
        fn(T::Accumulator, T::Accumulator) -> T::Accumulator,
    ) -> T::Accumulator,
) {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => {
            pair_with(into, from, |a, b| order(a, b, Accumulator::add))
        }
        ReduceOp::Min => pair_with(into, from, |a, b| order(a, b, Accumulator::least)),
        ReduceOp::Max => pair_with(into, from, |a, b| order(a, b, Accumulator::greatest)),
        ReduceOp::Product => pair_with(into, from, |a, b| order(a, b, Accumulator::multiply)),
    }
}

fn pair_with<T: Element>(
    into: &mut [T],
    from: &[T],
    combine: impl Fn(T::Accumulator, T::Accumulator) -> T::Accumulator,
) {
    if size_of::<T>() == size_of::<T::Accumulator>() {
        let into: &mut [T::Accumulator] = bytemuck::cast_slice_mut(into);
        let from: &[T::Accumulator] = bytemuck::cast_slice(from);
        for (a, b) in into.iter_mut().zip(from) {
            *a = combine(*a, *b);
        }
        return;
    }
    let mut left = [T::Accumulator::default(); BLOCK];
    let mut right = [T::Accumulator::default(); BLOCK];
    for (into, from) in into.chunks_mut(BLOCK).zip(from.chunks(BLOCK)) {
        let (left, right) = (&mut left[..into.len()], &mut right[..into.len()]);
        T::widen(into, left);
        T::widen(from, right);
        for (a, b) in left.iter_mut().zip(right.iter()) {
            *a = combine(*a, *b);
        }
        T::narrow(left, into);
    }
}

/// The loop of all reductions, one block at a time: `combine` is inlined into a loop over two
/// slices of equal length, which the compiler vectorises.
fn fold<T: Element>(
    contributions: &[&[T]],
    result: &mut [T],
    combine: impl Fn(T::Accumulator, T::Accumulator) -> T::Accumulator,
    finish: impl Fn(T::Accumulator) -> T::Accumulator,
) {
    let Some((first, others)) = contributions.split_first() else {
        return;
    };
    let mut sums = [T::Accumulator::default(); BLOCK];
    let mut widened = [T::Accumulator::default(); BLOCK];
    for (block, result) in result.chunks_mut(BLOCK).enumerate() {
        let range = block * BLOCK..block * BLOCK + result.len();
        let sums = &mut sums[..result.len()];
        let widened = &mut widened[..result.len()];
        T::widen(&first[range.clone()], sums);
        for other in others {
            T::widen(&other[range.clone()], widened);
            for (sum, value) in sums.iter_mut().zip(widened.iter()) {
                *sum = combine(*sum, *value);
            }
        }
        for sum in sums.iter_mut() {
            *sum = finish(*sum);
        }
        T::narrow(sums, result);
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    fn reduce<T: Element>(op: ReduceOp, contributions: &[&[T]]) -> Vec<T> {
        let mut result = contributions[0].to_vec();
        reduce_in_rank_order(op, contributions, &mut result);
        result
    }

    #[test]
    fn nan_propagates_from_either_side() {
        for op in [ReduceOp::Min, ReduceOp::Max] {
            assert!(reduce(op, &[&[f32::NAN], &[1.0]])[0].is_nan());
            assert!(reduce(op, &[&[1.0], &[f32::NAN], &[2.0]])[0].is_nan());
        }
    }

    #[test]
    fn half_types_round_once() {
        // 1 + 2^-9 + 2^-9 in bf16 (8 bits): each step alone would round back to 1.
        let small = bf16::from_f32(2f32.powi(-8));
        let sum = reduce(ReduceOp::Sum, &[&[bf16::ONE], &[small], &[small]]);
        assert_eq!(sum[0], bf16::from_f32(1.0 + 2f32.powi(-7)));
        let small = f16::from_f32(2f32.powi(-11));
        let sum = reduce(ReduceOp::Sum, &[&[f16::ONE], &[small], &[small]]);
        assert_eq!(sum[0], f16::from_f32(1.0 + 2f32.powi(-10)));
    }

    #[test]
    fn the_order_is_the_order_of_ranks() {
        let contributions: [&[f32]; 3] = [&[1e8], &[1.0], &[-1e8]];
        assert_eq!(reduce(ReduceOp::Sum, &contributions), [1e8 + 1.0 - 1e8]);
    }

    #[test]
    fn integers_wrap_and_have_no_mean() {
        assert_eq!(reduce::<u8>(ReduceOp::Sum, &[&[200], &[100]]), [44]);
        assert!(!ReduceOp::Mean.supports::<i64>());
        assert!(ReduceOp::Mean.supports::<bf16>());
    }
}
