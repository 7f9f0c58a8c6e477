//! The arithmetic of reductions.
//!
//! [`reduce_in_rank_order`] combines every element strictly in rank order:
//! `((x0 + x1) + x2) + ...`, whichever rank computes it. [`accumulate`] combines two operands, for
//! algorithms with an order of their own. A sum, product or mean that is NaN is
//! always the quiet NaN without sign and payload; a least or greatest is the NaN of the lowest
//! rank that contributed one. Callers reach them as methods of [`Element`].

use super::arithmetic::{
    Accumulate, Finish, Greatest, InstructionSet, Least, Mean, Product, Reduce, ReduceInPlace, Sum,
    Swapped,
};
use super::element::{DType, Element};
use super::names::names;

/// How the ranks' contributions become one.
///
/// Each reduction combines the contributions element by element, in the order of the algorithm
/// ([`super::ReductionOrder`]). `f16` and `bf16` are combined in `f32`; [`super::Algorithm::Flat`]
/// and [`super::Algorithm::Direct`] round them once over all ranks, the others at each step. Sums and products of integers wrap. `Min`
/// and `Max` return NaN where a rank contributed NaN, so that a diverged rank is seen.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::group::ReduceOp;
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
    /// Whether this operation exists for elements of this type.
    #[must_use]
    pub fn supports(self, dtype: DType) -> bool {
        let is_integer = matches!(dtype, DType::I32 | DType::I64 | DType::U8);
        self != Self::Mean || !is_integer
    }
}

names!(ReduceOp {
    Sum: "sum",
    Mean: "mean",
    Min: "min",
    Max: "max",
    Product: "product",
});

/// Runs a kernel, on an instruction set, with the combination that belongs to an operation. What a
/// mean needs is given.
macro_rules! run_combining {
    ($set:expr, $op:expr, mean: $mean:expr, $kernel:ident { $($field:ident),* }) => {
        match $op {
            ReduceOp::Sum => $set.run($kernel { combination: Sum, $($field),* }),
            ReduceOp::Mean => $set.run($kernel { combination: $mean, $($field),* }),
            ReduceOp::Min => $set.run($kernel { combination: Least, $($field),* }),
            ReduceOp::Max => $set.run($kernel { combination: Greatest, $($field),* }),
            ReduceOp::Product => $set.run($kernel { combination: Product, $($field),* }),
        }
    };
}

/// Combines `contributions`, given in rank order, into `result`. Contributions of another length
/// than `result` would be a bug of the caller; the surplus is ignored.
pub(super) fn reduce_in_rank_order<T: Element>(
    op: ReduceOp,
    contributions: &[&[T]],
    result: &mut [T],
) {
    let set = InstructionSet::best();
    let ranks = contributions.len();
    run_combining!(set, op, mean: Mean { ranks }, Reduce { contributions, result });
}

/// Combines the contribution of `own_rank`, which is in `own`, with those of the `others`, given
/// in rank order, into `own`: the same bits as by [`reduce_in_rank_order`].
pub(super) fn reduce_in_place_in_rank_order<T: Element>(
    op: ReduceOp,
    own: &mut [T],
    own_rank: usize,
    others: &[&[T]],
) {
    let set = InstructionSet::best();
    let ranks = others.len() + 1;
    match (others, op, own_rank) {
        // Of two, one passes over the data suffices, without a copy.
        (&[other], ReduceOp::Mean, _) => {
            let from = &other[..own.len()];
            set.run(Accumulate {
                combination: Mean { ranks },
                into: own,
                from,
            });
        }
        (&[other], _, 0) => accumulate(op, own, &other[..own.len()]),
        (&[other], _, _) => accumulate_before(op, own, &other[..own.len()]),
        _ => run_combining!(
            set, op, mean: Mean { ranks }, ReduceInPlace { own, own_rank, others }
        ),
    }
}

/// Combines `into`, which comes first, and `from`, of the same length, into `into`. A mean is
/// summed: its division is [`finish_mean`]. Half types are combined in `f32` and rounded at each
/// call.
pub(super) fn accumulate<T: Element>(op: ReduceOp, into: &mut [T], from: &[T]) {
    debug_assert_eq!(into.len(), from.len());
    let set = InstructionSet::best();
    run_combining!(set, op, mean: Sum, Accumulate { into, from });
}

/// As [`accumulate`], but `from` comes first. It matters to the least and greatest of zeros of
/// different signs and of two NaN; sums and products are the same bits either way.
fn accumulate_before<T: Element>(op: ReduceOp, into: &mut [T], from: &[T]) {
    debug_assert_eq!(into.len(), from.len());
    let set = InstructionSet::best();
    match op {
        ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Product => accumulate(op, into, from),
        ReduceOp::Min => set.run(Accumulate {
            combination: Swapped(Least),
            into,
            from,
        }),
        ReduceOp::Max => set.run(Accumulate {
            combination: Swapped(Greatest),
            into,
            from,
        }),
    }
}

/// Divides sums by the number of ranks that gave to them.
pub(super) fn finish_mean<T: Element>(values: &mut [T], ranks: usize) {
    InstructionSet::best().run(Finish {
        combination: Mean { ranks },
        values,
    });
}

#[cfg(test)]
mod tests;
