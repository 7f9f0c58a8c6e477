//! The loops of all reductions.
//!
//! Plain loops over slices of equal length: everything in them is inlined, so that the compiler
//! makes vector instructions of whichever instruction set they are compiled for
//! ([`super::instruction_set`]).

use super::super::element::Element;
use super::accumulator::Combination;
use super::instruction_set::Kernel;

/// How many elements are worked on at a time where they do not fit into registers: 8 KiB of `f64`,
/// which stay in the L1 cache while every rank's contribution passes through them.
const BLOCK: usize = 1024;

/// Combines all contributions, in rank order, into `result`.
pub(crate) struct Reduce<'a, T, C> {
    pub(crate) combination: C,
    pub(crate) contributions: &'a [&'a [T]],
    pub(crate) result: &'a mut [T],
}

impl<T: Element, C: Combination<T::Accumulator>> Kernel for Reduce<'_, T, C> {
    #[inline(always)]
    fn run(self) {
        let Self {
            combination,
            contributions,
            result,
        } = self;
        // Up to four contributions pass through registers alone.
        if contributions.len() <= 4 {
            return reduce_block(
                combination,
                contributions.len(),
                |r| contributions[r],
                result,
            );
        }
        for (block, result) in result.chunks_mut(BLOCK).enumerate() {
            let range = block * BLOCK..block * BLOCK + result.len();
            let contribution = |rank: usize| &contributions[rank][range.clone()];
            reduce_block(combination, contributions.len(), contribution, result);
        }
    }
}

/// Combines all contributions, in rank order, into the one that is `own`.
pub(crate) struct ReduceInPlace<'a, T, C> {
    pub(crate) combination: C,
    pub(crate) own: &'a mut [T],
    pub(crate) own_rank: usize,
    /// The other ranks' contributions, in rank order.
    pub(crate) others: &'a [&'a [T]],
}

impl<T: Element, C: Combination<T::Accumulator>> Kernel for ReduceInPlace<'_, T, C> {
    #[inline(always)]
    fn run(self) {
        let Self {
            combination,
            own,
            own_rank,
            others,
        } = self;
        let mut copy = [T::zeroed(); BLOCK];
        for (block, own) in own.chunks_mut(BLOCK).enumerate() {
            let range = block * BLOCK..block * BLOCK + own.len();
            let copy = &mut copy[..own.len()];
            copy.copy_from_slice(own);
            let copy: &[T] = copy;
            let contribution = |rank: usize| match rank.cmp(&own_rank) {
                std::cmp::Ordering::Less => &others[rank][range.clone()],
                std::cmp::Ordering::Equal => copy,
                std::cmp::Ordering::Greater => &others[rank - 1][range.clone()],
            };
            reduce_block(combination, others.len() + 1, contribution, own);
        }
    }
}

/// Combines `from` into `into`.
pub(crate) struct Accumulate<'a, T, C> {
    pub(crate) combination: C,
    pub(crate) into: &'a mut [T],
    pub(crate) from: &'a [T],
}

impl<T: Element, C: Combination<T::Accumulator>> Kernel for Accumulate<'_, T, C> {
    #[inline(always)]
    fn run(self) {
        let Self {
            combination,
            into,
            from,
        } = self;
        for (into, from) in into.iter_mut().zip(from) {
            let all = combination.combine(into.widen(), from.widen());
            *into = T::narrow(combination.finish(all));
        }
    }
}

/// Makes each of `values` the result that it would be as the combination of all contributions.
pub(crate) struct Finish<'a, T, C> {
    pub(crate) combination: C,
    pub(crate) values: &'a mut [T],
}

impl<T: Element, C: Combination<T::Accumulator>> Kernel for Finish<'_, T, C> {
    #[inline(always)]
    fn run(self) {
        for value in self.values {
            *value = T::narrow(self.combination.finish(value.widen()));
        }
    }
}

/// Combines the contributions of `ranks` ranks, in rank order. Of more than four ranks, `result`
/// may be at most [`BLOCK`] elements.
#[inline(always)]
fn reduce_block<'a, T: Element, C: Combination<T::Accumulator>>(
    combination: C,
    ranks: usize,
    contribution: impl Fn(usize) -> &'a [T],
    result: &mut [T],
) {
    let length = result.len();
    let of = |rank: usize| &contribution(rank)[..length];
    let join = |a, b| combination.combine(a, b);
    let last = |all| T::narrow(combination.finish(all));
    match ranks {
        0 => {}
        1 => {
            for (result, a) in result.iter_mut().zip(of(0)) {
                *result = last(a.widen());
            }
        }
        2 => {
            for ((result, a), b) in result.iter_mut().zip(of(0)).zip(of(1)) {
                *result = last(join(a.widen(), b.widen()));
            }
        }
        3 => {
            for (((result, a), b), c) in result.iter_mut().zip(of(0)).zip(of(1)).zip(of(2)) {
                *result = last(join(join(a.widen(), b.widen()), c.widen()));
            }
        }
        4 => {
            let inputs = of(0).iter().zip(of(1)).zip(of(2)).zip(of(3));
            for (result, (((a, b), c), d)) in result.iter_mut().zip(inputs) {
                *result = last(join(join(join(a.widen(), b.widen()), c.widen()), d.widen()));
            }
        }
        _ => {
            let mut sums = [T::Accumulator::default(); BLOCK];
            let sums = &mut sums[..length];
            let inputs = of(0).iter().zip(of(1)).zip(of(2));
            for (sum, ((a, b), c)) in sums.iter_mut().zip(inputs) {
                *sum = join(join(a.widen(), b.widen()), c.widen());
            }
            for rank in 3..ranks - 1 {
                for (sum, value) in sums.iter_mut().zip(of(rank)) {
                    *sum = join(*sum, value.widen());
                }
            }
            for ((result, sum), value) in result.iter_mut().zip(&*sums).zip(of(ranks - 1)) {
                *result = last(join(*sum, value.widen()));
            }
        }
    }
}
