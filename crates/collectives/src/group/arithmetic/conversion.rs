//! The two half types to `f32` and back: each instruction set's fastest way, and the same bits by
//! all of them as by the conversions of `half`.

use half::f16;
use half::slice::HalfFloatSliceExt;
#[cfg(target_arch = "x86_64")]
use pulp::x86::{V3, V4};

/// How an instruction set converts `f16`; the two slices have the same length.
#[doc(hidden)]
pub trait ConvertF16: Copy {
    /// By whatever `half` finds: one call for eight numbers where there is F16C.
    #[inline(always)]
    fn widen(self, from: &[f16], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }

    /// Rounds to the nearest; of two, to the one with an even mantissa.
    #[inline(always)]
    fn narrow(self, from: &[f32], to: &mut [f16]) {
        to.convert_from_f32_slice(from);
    }
}

/// The instructions that every machine of this architecture has.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct Baseline;

impl ConvertF16 for Baseline {}

#[cfg(target_arch = "x86_64")]
impl ConvertF16 for V3 {}

/// Sixteen at a time without a call, three to six times as fast as by `half`.
#[cfg(target_arch = "x86_64")]
impl ConvertF16 for V4 {
    #[inline(always)]
    fn widen(self, from: &[f16], to: &mut [f32]) {
        let (from, last_from) = from.as_chunks::<16>();
        let (to, last_to) = to.as_chunks_mut::<16>();
        for (from, to) in from.iter().zip(to) {
            *to = bytemuck::cast(self.avx512f._mm512_cvtph_ps(bytemuck::cast(*from)));
        }
        last_from.convert_to_f32_slice(last_to);
    }

    #[inline(always)]
    fn narrow(self, from: &[f32], to: &mut [f16]) {
        const TO_NEAREST: i32 = std::arch::x86_64::_MM_FROUND_TO_NEAREST_INT;
        let (from, last_from) = from.as_chunks::<16>();
        let (to, last_to) = to.as_chunks_mut::<16>();
        for (from, to) in from.iter().zip(to) {
            let narrow = self
                .avx512f
                ._mm512_cvtps_ph::<TO_NEAREST>(bytemuck::cast(*from));
            *to = bytemuck::cast(narrow);
        }
        last_to.convert_from_f32_slice(last_from);
    }
}

/// One `bf16`, by its bits: the upper half of an `f32`. A signalling NaN stays one.
#[inline(always)]
pub(crate) fn widen_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The bits of the nearest `bf16`. NaN becomes quiet and keeps the upper bits of its payload.
///
/// Without a branch, so that a loop over it becomes vector instructions, which `half`'s does not.
#[inline(always)]
pub(crate) fn narrow_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let quiet = (bits >> 16) | 0x0040;
    // Just below half of the last place, and one more where the number above is the odd one.
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    // Above the bits of infinity is NaN.
    let is_nan = bits & 0x7fff_ffff > 0x7f80_0000;
    (if is_nan { quiet } else { rounded }) as u16
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::super::InstructionSet;
    use super::super::instruction_set::Kernel;
    use super::*;

    struct WidenF16<'a>(&'a [f16], &'a mut [f32]);

    impl Kernel for WidenF16<'_> {
        #[inline(always)]
        fn run<S: ConvertF16>(self, set: S) {
            set.widen(self.0, self.1);
        }
    }

    struct NarrowF16<'a>(&'a [f32], &'a mut [f16]);

    impl Kernel for NarrowF16<'_> {
        #[inline(always)]
        fn run<S: ConvertF16>(self, set: S) {
            set.narrow(self.0, self.1);
        }
    }

    #[test]
    fn every_f16_widens_as_by_half() {
        let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        let mut widened = vec![0.0; all.len()];
        for set in InstructionSet::all() {
            set.run(WidenF16(&all, &mut widened));
            for (value, widened) in all.iter().zip(&widened) {
                assert_eq!(widened.to_bits(), value.to_f32().to_bits(), "{set:?}");
            }
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

    /// All numbers with these upper halves of their bits and with these lower ones.
    fn narrow_as_by_half(uppers: impl Iterator<Item = u32>, lowers: &[u32]) {
        let mut narrowed = vec![f16::ZERO; lowers.len()];
        for upper in uppers {
            let number = |lower: &u32| f32::from_bits((upper << 16) | lower);
            let values: Vec<f32> = lowers.iter().map(number).collect();
            for value in &values {
                assert_eq!(
                    narrow_bf16(*value),
                    bf16::from_f32(*value).to_bits(),
                    "{value}"
                );
            }
            for set in InstructionSet::all() {
                set.run(NarrowF16(&values, &mut narrowed));
                for (value, found) in values.iter().zip(&narrowed) {
                    let expected = f16::from_f32(*value).to_bits();
                    assert_eq!(found.to_bits(), expected, "{value} by {set:?}");
                }
            }
        }
    }

    #[test]
    fn every_sign_exponent_and_edge_of_rounding_narrows_as_by_half() {
        // Signs, exponents and seven bits of the mantissa, and below them every pattern that has
        // at most two runs: all ties, of normal and subnormal results, and what is beside them.
        let runs = (0..16).flat_map(|low| (low..=16).map(move |high| (1 << high) - (1 << low)));
        let edges: Vec<u32> = runs
            .flat_map(|run| [run, 0xffff & !run, (run | 1) & 0xffff])
            .collect();
        narrow_as_by_half(
            (0..=0xffff).step_by(if cfg!(debug_assertions) { 7 } else { 1 }),
            &edges,
        );
    }

    #[test]
    #[ignore = "all 2^32 numbers: a minute"]
    fn every_f32_narrows_as_by_half() {
        let all: Vec<u32> = (0..=0xffff).collect();
        narrow_as_by_half(0..=0xffff, &all);
    }
}
