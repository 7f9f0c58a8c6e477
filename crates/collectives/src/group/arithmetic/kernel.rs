//! The loops of all reductions.
//!
//! Plain loops over slices of equal length: everything in them is inlined, so that the compiler
//! makes vector instructions of whichever instruction set they are compiled for
//! ([`super::instruction_set`]).

use std::cmp::Ordering;

use super::super::element::Element;
use super::accumulator::Combination;
use super::conversion::ConvertF16;
use super::instruction_set::Kernel;

/// How many elements are worked on at a time where they do not fit into registers: 4 KiB of `f64`,
/// which stay in the L1 cache while every rank's contribution passes through them.
const BLOCK: usize = 512;

/// Up to how many contributions are combined in one loop, in registers alone.
const IN_REGISTERS: usize = 4;

/// Combines all contributions, in rank order, into `result`.
pub(crate) struct Reduce<'a, T, C> {
    pub(crate) combination: C,
    pub(crate) contributions: &'a [&'a [T]],
    pub(crate) result: &'a mut [T],
}

impl<T: Element, C: Combination<T::Accumulator>> Kernel for Reduce<'_, T, C> {
    #[inline(always)]
    fn run<S: ConvertF16>(self, set: S) {
        let Self {
            combination,
            contributions,
            result,
        } = self;
        let ranks = contributions.len();
        if T::CONVERTS_INLINE && ranks <= IN_REGISTERS {
            return reduce_in_registers(combination, ranks, |rank| contributions[rank], result);
        }
        if ranks == 0 {
            return;
        }
        let mut scratch = Scratch::new();
        for (block, result) in result.chunks_mut(BLOCK).enumerate() {
            let range = block * BLOCK..block * BLOCK + result.len();
            let contribution = |rank: usize| &contributions[rank][range.clone()];
            scratch.sum_up(set, combination, ranks, contribution);
            scratch.finish(set, combination, result);
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
    fn run<S: ConvertF16>(self, set: S) {
        let Self {
            combination,
            own,
            own_rank,
            others,
        } = self;
        let ranks = others.len() + 1;
        if T::CONVERTS_INLINE && ranks <= IN_REGISTERS {
            // What is read and what is written must be apart; a block's copy stays in the cache.
            let mut copy = [T::zeroed(); BLOCK];
            for (block, own) in own.chunks_mut(BLOCK).enumerate() {
                let start = block * BLOCK;
                let copy = &mut copy[..own.len()];
                copy.copy_from_slice(own);
                let contribution = with_own(copy, own_rank, others, start);
                reduce_in_registers(combination, ranks, contribution, own);
            }
            return;
        }
        let mut scratch = Scratch::new();
        for (block, own) in own.chunks_mut(BLOCK).enumerate() {
            let contribution = with_own(own, own_rank, others, block * BLOCK);
            scratch.sum_up(set, combination, ranks, contribution);
            scratch.finish(set, combination, own);
        }
    }
}

/// The contributions by rank to the block that begins at `start`, of which one is `own`.
#[inline(always)]
fn with_own<'a, T>(
    own: &'a [T],
    own_rank: usize,
    others: &'a [&'a [T]],
    start: usize,
) -> impl Fn(usize) -> &'a [T] {
    move |rank| match rank.cmp(&own_rank) {
        Ordering::Less => &others[rank][start..start + own.len()],
        Ordering::Equal => own,
        Ordering::Greater => &others[rank - 1][start..start + own.len()],
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
    fn run<S: ConvertF16>(self, set: S) {
        let Self {
            combination,
            into,
            from,
        } = self;
        if T::CONVERTS_INLINE {
            for (into, from) in into.iter_mut().zip(from) {
                let all = combination.combine(into.widen(), from.widen());
                *into = T::narrow(combination.finish(all));
            }
            return;
        }
        let mut scratch = Scratch::new();
        for (into, from) in into.chunks_mut(BLOCK).zip(from.chunks(BLOCK)) {
            let contribution = |rank| if rank == 0 { &*into } else { from };
            scratch.sum_up(set, combination, 2, contribution);
            scratch.finish(set, combination, into);
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
    fn run<S: ConvertF16>(self, set: S) {
        let Self {
            combination,
            values,
        } = self;
        if T::CONVERTS_INLINE {
            for value in values {
                *value = T::narrow(combination.finish(value.widen()));
            }
            return;
        }
        let mut scratch = Scratch::new();
        for values in values.chunks_mut(BLOCK) {
            scratch.sum_up(set, combination, 1, |_| &*values);
            scratch.finish(set, combination, values);
        }
    }
}

/// One block of accumulators, and room to convert another one.
struct Scratch<T: Element> {
    sums: [T::Accumulator; BLOCK],
    widened: [T::Accumulator; BLOCK],
}

impl<T: Element> Scratch<T> {
    #[inline(always)]
    fn new() -> Self {
        Self {
            sums: [T::Accumulator::default(); BLOCK],
            widened: [T::Accumulator::default(); BLOCK],
        }
    }

    /// Combines the contributions, of one length, of `ranks` ranks in rank order; at least one.
    #[inline(always)]
    fn sum_up<'a, S: ConvertF16, C: Combination<T::Accumulator>>(
        &mut self,
        set: S,
        combination: C,
        ranks: usize,
        contribution: impl Fn(usize) -> &'a [T],
    ) {
        let first = contribution(0);
        T::widen_block(set, first, &mut self.sums[..first.len()]);
        for contribution in (1..ranks).map(contribution) {
            let sums = &mut self.sums[..contribution.len()];
            if T::CONVERTS_INLINE {
                for (sum, value) in sums.iter_mut().zip(contribution) {
                    *sum = combination.combine(*sum, value.widen());
                }
            } else {
                let widened = &mut self.widened[..contribution.len()];
                T::widen_block(set, contribution, widened);
                for (sum, value) in sums.iter_mut().zip(&*widened) {
                    *sum = combination.combine(*sum, *value);
                }
            }
        }
    }

    /// Makes the result of what was combined.
    #[inline(always)]
    fn finish<S: ConvertF16, C: Combination<T::Accumulator>>(
        &mut self,
        set: S,
        combination: C,
        result: &mut [T],
    ) {
        let sums = &mut self.sums[..result.len()];
        for sum in &mut *sums {
            *sum = combination.finish(*sum);
        }
        T::narrow_block(set, sums, result);
    }
}

/// Combines the contributions of at most [`IN_REGISTERS`] ranks, in rank order.
#[inline(always)]
fn reduce_in_registers<'a, T: Element, C: Combination<T::Accumulator>>(
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
        IN_REGISTERS => {
            let inputs = of(0).iter().zip(of(1)).zip(of(2)).zip(of(3));
            for (result, (((a, b), c), d)) in result.iter_mut().zip(inputs) {
                *result = last(join(join(join(a.widen(), b.widen()), c.widen()), d.widen()));
            }
        }
        _ => unreachable!("more contributions than registers were asked for"),
    }
}
