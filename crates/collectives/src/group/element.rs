//! The number types that ranks can exchange.

use std::fmt;

use bytemuck::Pod;
use half::{bf16, f16};

use super::arithmetic::{Accumulator, ConvertF16, conversion};
use super::names::names;
use super::reduce::{self, ReduceOp};

/// The type of the numbers in a message, as it travels on the wire.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::group::DType;
///
/// assert_eq!(DType::Bf16.to_string(), "bf16");
/// assert_eq!(DType::Bf16.size(), 2);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// 32-bit float.
    F32,
    /// 64-bit float.
    F64,
    /// 16-bit float with a 5-bit exponent.
    F16,
    /// 16-bit float with an 8-bit exponent.
    Bf16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// Byte.
    U8,
}

impl DType {
    /// The size of one number, in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }
}

names!(DType {
    F32: "f32",
    F64: "f64",
    F16: "f16",
    Bf16: "bf16",
    I32: "i32",
    I64: "i64",
    U8: "u8",
});

mod sealed {
    pub trait Sealed {}
}

/// A number that ranks can exchange: `f32`, `f64`, `f16`, `bf16`, `i32`, `i64` and `u8`.
///
/// The trait is sealed: the wire has a code for each of these types and for no other.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::group::{DType, Element};
///
/// assert_eq!(<half::f16 as Element>::DTYPE, DType::F16);
/// ```
pub trait Element: sealed::Sealed + Pod + Send + Sync + PartialEq + fmt::Debug {
    /// The type's code on the wire.
    const DTYPE: DType;

    /// The type in which reductions are computed: `f32` for the two half types, else itself.
    #[doc(hidden)]
    type Accumulator: Accumulator;

    /// Whether [`Element::widen`] and [`Element::narrow`] vectorise where they are inlined into a
    /// loop. Otherwise a loop is to convert a block at a time.
    #[doc(hidden)]
    const CONVERTS_INLINE: bool;

    /// The same number as an accumulator.
    #[doc(hidden)]
    fn widen(self) -> Self::Accumulator;

    /// The number nearest to an accumulator; of two, the one with an even mantissa.
    #[doc(hidden)]
    fn narrow(accumulator: Self::Accumulator) -> Self;

    /// As [`Element::widen`], a whole block; the slices have the same length.
    #[doc(hidden)]
    #[inline(always)]
    fn widen_block<S: ConvertF16>(_set: S, from: &[Self], to: &mut [Self::Accumulator]) {
        for (from, to) in from.iter().zip(to) {
            *to = from.widen();
        }
    }

    /// As [`Element::narrow`], a whole block; the slices have the same length.
    #[doc(hidden)]
    #[inline(always)]
    fn narrow_block<S: ConvertF16>(_set: S, from: &[Self::Accumulator], to: &mut [Self]) {
        for (from, to) in from.iter().zip(to) {
            *to = Self::narrow(*from);
        }
    }

    /// Combines `contributions`, given in rank order, into `result`.
    #[doc(hidden)]
    fn reduce_in_rank_order(op: ReduceOp, contributions: &[&[Self]], result: &mut [Self]);

    /// The same bits, with the contribution of `own_rank` in `own`, and the result there.
    #[doc(hidden)]
    fn reduce_in_place_in_rank_order(
        op: ReduceOp,
        own: &mut [Self],
        own_rank: usize,
        others: &[&[Self]],
    );

    /// Combines `into`, which comes first, and `from`, of the same length, into `into`; a mean is summed.
    #[doc(hidden)]
    fn accumulate(op: ReduceOp, into: &mut [Self], from: &[Self]);

    /// Divides sums by the number of ranks that gave to them.
    #[doc(hidden)]
    fn finish_mean(values: &mut [Self], ranks: usize);
}

/// The loops of the module `reduce` for one type. They are methods of it so that they are compiled here: what is generic
/// over the type would be compiled in each crate that exchanges numbers, every loop for every instruction set.
macro_rules! reductions {
    () => {
        fn reduce_in_rank_order(op: ReduceOp, contributions: &[&[Self]], result: &mut [Self]) {
            reduce::reduce_in_rank_order(op, contributions, result);
        }
        fn reduce_in_place_in_rank_order(
            op: ReduceOp,
            own: &mut [Self],
            own_rank: usize,
            others: &[&[Self]],
        ) {
            reduce::reduce_in_place_in_rank_order(op, own, own_rank, others);
        }
        fn accumulate(op: ReduceOp, into: &mut [Self], from: &[Self]) {
            reduce::accumulate(op, into, from);
        }
        fn finish_mean(values: &mut [Self], ranks: usize) {
            reduce::finish_mean(values, ranks);
        }
    };
}

macro_rules! plain_element {
    ($($type:ty => $dtype:expr),*) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: DType = $dtype;
            type Accumulator = Self;
            const CONVERTS_INLINE: bool = true;
            #[inline(always)]
            fn widen(self) -> Self {
                self
            }
            #[inline(always)]
            fn narrow(accumulator: Self) -> Self {
                accumulator
            }
            reductions!();
        }
    )*};
}

plain_element!(f32 => DType::F32, f64 => DType::F64, i32 => DType::I32, i64 => DType::I64, u8 => DType::U8);

impl sealed::Sealed for bf16 {}
impl Element for bf16 {
    const DTYPE: DType = DType::Bf16;
    type Accumulator = f32;
    const CONVERTS_INLINE: bool = true;
    #[inline(always)]
    fn widen(self) -> f32 {
        conversion::widen_bf16(self.to_bits())
    }
    #[inline(always)]
    fn narrow(accumulator: f32) -> Self {
        Self::from_bits(conversion::narrow_bf16(accumulator))
    }
    reductions!();
}

impl sealed::Sealed for f16 {}
impl Element for f16 {
    const DTYPE: DType = DType::F16;
    type Accumulator = f32;
    // The instruction for it exists, but no loop over single numbers becomes that instruction.
    const CONVERTS_INLINE: bool = false;
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn narrow(accumulator: f32) -> Self {
        Self::from_f32(accumulator)
    }
    #[inline(always)]
    fn widen_block<S: ConvertF16>(set: S, from: &[Self], to: &mut [f32]) {
        set.widen(from, to);
    }
    #[inline(always)]
    fn narrow_block<S: ConvertF16>(set: S, from: &[f32], to: &mut [Self]) {
        set.narrow(from, to);
    }
    reductions!();
}
