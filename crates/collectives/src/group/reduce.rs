//! Reductions in one canonical order.
//!
//! Every element of a result is combined strictly in rank order: `((x0 + x1) + x2) + ...`. Which
//! rank computes it, over which transport and by which algorithm plays no part, so all ranks hold
//! the same bits, and so does a run on another machine. A sum, product or mean that is NaN is
//! always the quiet NaN without sign and payload; a least or greatest is the NaN of the lowest
//! rank that contributed one.

use std::fmt;

use super::arithmetic::{
    Accumulate, Accumulator, Finish, Greatest, Least, Mean, Product, Reduce, ReduceInPlace, Sum,
    Swapped, run,
};
use super::element::Element;

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

/// Runs a kernel with the combination that belongs to an operation; what a mean needs is given.
macro_rules! run_combining {
    ($op:expr, mean: $mean:expr, $kernel:ident { $($field:ident),* }) => {
        match $op {
            ReduceOp::Sum => run($kernel { combination: Sum, $($field),* }),
            ReduceOp::Mean => run($kernel { combination: $mean, $($field),* }),
            ReduceOp::Min => run($kernel { combination: Least, $($field),* }),
            ReduceOp::Max => run($kernel { combination: Greatest, $($field),* }),
            ReduceOp::Product => run($kernel { combination: Product, $($field),* }),
        }
    };
}

/// Combines `contributions`, given in rank order, into `result`. Contributions of another length
/// than `result` would be a bug of the caller; the surplus is ignored.
pub(crate) fn reduce_in_rank_order<T: Element>(
    op: ReduceOp,
    contributions: &[&[T]],
    result: &mut [T],
) {
    let ranks = contributions.len();
    run_combining!(op, mean: Mean { ranks }, Reduce { contributions, result });
}

/// Combines the contribution of `own_rank`, which lies in `own`, with those of the `others`, given
/// in rank order, into `own`: the same bits as by [`reduce_in_rank_order`].
#[allow(dead_code, reason = "the data plane calls it")]
pub(crate) fn reduce_in_place_in_rank_order<T: Element>(
    op: ReduceOp,
    own: &mut [T],
    own_rank: usize,
    others: &[&[T]],
) {
    let ranks = others.len() + 1;
    if let [other] = others {
        let from = &other[..own.len()];
        let into = own;
        return match (op, own_rank) {
            (ReduceOp::Mean, _) => {
                let combination = Mean { ranks };
                run(Accumulate {
                    combination,
                    into,
                    from,
                });
            }
            (_, 0) => accumulate(op, into, from),
            (_, _) => accumulate_before(op, into, from),
        };
    }
    run_combining!(op, mean: Mean { ranks }, ReduceInPlace { own, own_rank, others });
}

/// Combines `into`, which comes first, and `from` into `into`. A mean is summed: its division is
/// [`finish_mean`]. Half types are combined in `f32` and rounded at each call.
#[allow(dead_code, reason = "the data plane calls it")]
pub(crate) fn accumulate<T: Element>(op: ReduceOp, into: &mut [T], from: &[T]) {
    debug_assert_eq!(into.len(), from.len());
    run_combining!(op, mean: Sum, Accumulate { into, from });
}

/// As [`accumulate`], but `from` comes first. It matters to the least and greatest of zeros of
/// different signs and of two NaN; sums and products are the same bits either way.
#[allow(dead_code, reason = "the data plane calls it")]
pub(crate) fn accumulate_before<T: Element>(op: ReduceOp, into: &mut [T], from: &[T]) {
    debug_assert_eq!(into.len(), from.len());
    match op {
        ReduceOp::Min => run(Accumulate {
            combination: Swapped(Least),
            into,
            from,
        }),
        ReduceOp::Max => run(Accumulate {
            combination: Swapped(Greatest),
            into,
            from,
        }),
        ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Product => accumulate(op, into, from),
    }
}

/// Divides sums by the number of ranks that gave to them.
#[allow(dead_code, reason = "the data plane calls it")]
pub(crate) fn finish_mean<T: Element>(values: &mut [T], ranks: usize) {
    let combination = Mean { ranks };
    run(Finish {
        combination,
        values,
    });
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
