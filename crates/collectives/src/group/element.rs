//! The number types that ranks can exchange.

use std::fmt;

use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// The type of the numbers in a message, as it travels on the wire.
///
/// ```
/// use everburn_collectives::group::DType;
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
    /// Every type; the place in this list is the code on the wire.
    pub const ALL: [Self; 7] = [
        Self::F32,
        Self::F64,
        Self::F16,
        Self::Bf16,
        Self::I32,
        Self::I64,
        Self::U8,
    ];

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

    /// The name as Rust spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
        }
    }

    /// The code on the wire.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::F32 => 0,
            Self::F64 => 1,
            Self::F16 => 2,
            Self::Bf16 => 3,
            Self::I32 => 4,
            Self::I64 => 5,
            Self::U8 => 6,
        }
    }

    /// The type of a code, if there is one.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A number that ranks can exchange: `f32`, `f64`, `f16`, `bf16`, `i32`, `i64` and `u8`.
///
/// The trait is sealed: the wire has a code for each of these types and for no other.
///
/// ```
/// use everburn_collectives::group::{DType, Element};
///
/// assert_eq!(<half::f16 as Element>::DTYPE, DType::F16);
/// ```
pub trait Element: sealed::Sealed + Pod + Send + Sync + PartialEq + fmt::Debug {
    /// The type's code on the wire.
    const DTYPE: DType;

    /// The type in which reductions are computed: `f32` for the two half types, else itself.
    #[doc(hidden)]
    type Accumulator: Accumulator;

    /// Converts `from` to accumulators; the slices have the same length.
    #[doc(hidden)]
    fn widen(from: &[Self], to: &mut [Self::Accumulator]);

    /// Converts accumulators back, rounding once; the slices have the same length.
    #[doc(hidden)]
    fn narrow(from: &[Self::Accumulator], to: &mut [Self]);
}

/// The arithmetic of reductions.
#[doc(hidden)]
pub trait Accumulator: Pod + Default + Send + Sync {
    /// Whether a mean exists in this type.
    const FRACTIONAL: bool;
    /// `self + other`; integers wrap.
    fn add(self, other: Self) -> Self;
    /// `self * other`; integers wrap.
    fn multiply(self, other: Self) -> Self;
    /// The lesser; NaN if one of them is NaN.
    fn least(self, other: Self) -> Self;
    /// The greater; NaN if one of them is NaN.
    fn greatest(self, other: Self) -> Self;
    /// `self / ranks`; integers are returned unchanged (their mean is refused before).
    fn divide(self, ranks: usize) -> Self;
}

macro_rules! float_accumulator {
    ($($type:ty),*) => {$(
        impl Accumulator for $type {
            const FRACTIONAL: bool = true;
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self * other
            }
            // `self.is_nan()` first: a comparison with NaN is false, so a NaN on the right falls
            // through to `other`, and one on the left needs to be kept by name.
            #[inline(always)]
            fn least(self, other: Self) -> Self {
                if self.is_nan() || self < other { self } else { other }
            }
            #[inline(always)]
            fn greatest(self, other: Self) -> Self {
                if self.is_nan() || self > other { self } else { other }
            }
            #[inline(always)]
            fn divide(self, ranks: usize) -> Self {
                self / ranks as $type
            }
        }
    )*};
}

macro_rules! integer_accumulator {
    ($($type:ty),*) => {$(
        impl Accumulator for $type {
            const FRACTIONAL: bool = false;
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn least(self, other: Self) -> Self {
                self.min(other)
            }
            #[inline(always)]
            fn greatest(self, other: Self) -> Self {
                self.max(other)
            }
            #[inline(always)]
            fn divide(self, _ranks: usize) -> Self {
                self
            }
        }
    )*};
}

float_accumulator!(f32, f64);
integer_accumulator!(i32, i64, u8);

macro_rules! plain_element {
    ($($type:ty => $dtype:expr),*) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: DType = $dtype;
            type Accumulator = Self;
            fn widen(from: &[Self], to: &mut [Self]) {
                to.copy_from_slice(from);
            }
            fn narrow(from: &[Self], to: &mut [Self]) {
                to.copy_from_slice(from);
            }
        }
    )*};
}

macro_rules! half_element {
    ($($type:ty => $dtype:expr),*) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: DType = $dtype;
            type Accumulator = f32;
            fn widen(from: &[Self], to: &mut [f32]) {
                from.convert_to_f32_slice(to);
            }
            fn narrow(from: &[f32], to: &mut [Self]) {
                to.convert_from_f32_slice(from);
            }
        }
    )*};
}

plain_element!(f32 => DType::F32, f64 => DType::F64, i32 => DType::I32, i64 => DType::I64, u8 => DType::U8);
half_element!(f16 => DType::F16, bf16 => DType::Bf16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_survive_the_wire() {
        for dtype in DType::ALL {
            assert_eq!(DType::from_code(dtype.code()), Some(dtype));
        }
        assert_eq!(DType::from_code(7), None);
    }
}
