//! The two half types to `f32` and back, as integer arithmetic without a branch, so that a loop
//! over them becomes vector instructions of any instruction set, and one result everywhere.
//!
//! The conversions of `f16` follow F. Giesen, "Float->half variants" and "half->float variants"
//! (2012, public domain, gist.github.com/rygorous/2156668 and 2144712): in the variants that
//! round to even and in which no operand is a subnormal `f32`, which some processors handle slowly.

/// All bits of an `f32` but the sign.
const MAGNITUDE: u32 = 0x7fff_ffff;
/// The bits of infinity; what lies above them is NaN.
const INFINITY: u32 = 0x7f80_0000;

/// One `bf16`, by its bits: the upper half of an `f32`. A signalling NaN stays one.
#[inline(always)]
pub(crate) fn widen_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The bits of the nearest `bf16`. NaN becomes quiet and keeps the upper bits of its payload.
#[inline(always)]
pub(crate) fn narrow_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let quiet = (bits >> 16) | 0x0040;
    // Just below half of the last place, and one more where the number above is the even one.
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    (if bits & MAGNITUDE > INFINITY {
        quiet
    } else {
        rounded
    }) as u16
}

/// One `f16`, by its bits. NaN becomes quiet and keeps its payload.
#[inline(always)]
pub(crate) fn widen_f16(bits: u16) -> f32 {
    /// The exponent of an `f16`, where it comes to lie.
    const EXPONENT: u32 = 0x7c00 << 13;
    /// By how much the exponents of the two types differ.
    const REBIAS: u32 = (127 - 15) << 23;
    const SMALLEST_NORMAL: u32 = REBIAS + (1 << 23);

    let shifted = u32::from(bits & 0x7fff) << 13;
    let normal = shifted + REBIAS;
    // Infinity and NaN have the greatest exponent in both types.
    let quiet = if shifted > EXPONENT { 0x0040_0000 } else { 0 };
    let special = (shifted + 2 * REBIAS) | quiet;
    // A subnormal gets an exponent, and with it a leading one, which the subtraction takes away.
    let subnormal = f32::from_bits(shifted + SMALLEST_NORMAL) - f32::from_bits(SMALLEST_NORMAL);
    let magnitude = if shifted >= EXPONENT {
        special
    } else if shifted < 1 << 23 {
        subnormal.to_bits()
    } else {
        normal
    };
    f32::from_bits(magnitude | (u32::from(bits & 0x8000) << 16))
}

/// The bits of the nearest `f16`; infinity from 65520 on. NaN becomes quiet and keeps the upper
/// bits of its payload.
#[inline(always)]
pub(crate) fn narrow_f16(value: f32) -> u16 {
    /// 65536, which is beyond all `f16`.
    const TOO_GREAT: u32 = (127 + 16) << 23;
    const SMALLEST_NORMAL: u32 = (127 - 14) << 23;
    /// One half, in whose last place lies the smallest subnormal `f16`, 2^-24: adding it rounds.
    const ROUNDING: f32 = 0.5;

    let bits = value.to_bits();
    let magnitude = bits & MAGNITUDE;
    let special = if magnitude > INFINITY {
        0x7e00 | ((magnitude >> 13) & 0x03ff)
    } else {
        0x7c00
    };
    let subnormal = (f32::from_bits(magnitude) + ROUNDING)
        .to_bits()
        .wrapping_sub(ROUNDING.to_bits());
    // The new exponent, and the rounding to even as in `narrow_bf16`.
    let normal = magnitude
        .wrapping_sub((127 - 15) << 23)
        .wrapping_add(0x0fff + ((magnitude >> 13) & 1))
        >> 13;
    let half = if magnitude >= TOO_GREAT {
        special
    } else if magnitude < SMALLEST_NORMAL {
        subnormal
    } else {
        normal
    };
    (half | ((bits & !MAGNITUDE) >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn every_f16_widens_as_by_half() {
        for bits in 0..=u16::MAX {
            let expected = f16::from_bits(bits).to_f32().to_bits();
            assert_eq!(widen_f16(bits).to_bits(), expected, "{bits:#x}");
        }
    }

    #[test]
    fn every_bf16_widens_as_by_half_but_for_signalling_nan() {
        for bits in 0..=u16::MAX {
            let value = bf16::from_bits(bits);
            let quiet = if value.is_nan() { 0x0040_0000 } else { 0 };
            let found = widen_bf16(bits).to_bits() | quiet;
            assert_eq!(found, value.to_f32().to_bits(), "{bits:#x}");
        }
    }

    fn narrows_as_by_half(bits: u32) {
        let value = f32::from_bits(bits);
        assert_eq!(
            narrow_f16(value),
            f16::from_f32(value).to_bits(),
            "{bits:#x}"
        );
        assert_eq!(
            narrow_bf16(value),
            bf16::from_f32(value).to_bits(),
            "{bits:#x}"
        );
    }

    #[test]
    fn every_sign_exponent_and_edge_of_rounding_narrows_as_by_half() {
        // Signs, exponents and seven bits of the mantissa, and below them every pattern that has
        // at most two runs: all ties, of normal and subnormal results, and what lies beside them.
        let runs = (0..16).flat_map(|low| (low..=16).map(move |high| (1 << high) - (1 << low)));
        let edges: Vec<u32> = runs.flat_map(|run| [run, 0xffff & !run, run | 1]).collect();
        for upper in 0..=u32::from(u16::MAX) {
            for lower in &edges {
                narrows_as_by_half((upper << 16) | lower);
            }
        }
    }

    #[test]
    #[ignore = "all 2^32 numbers: half a minute"]
    fn every_f32_narrows_as_by_half() {
        for bits in 0..=u32::MAX {
            narrows_as_by_half(bits);
        }
    }
}
