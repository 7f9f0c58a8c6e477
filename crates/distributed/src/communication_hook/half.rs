//! Gradients rounded to 16 bits.
//!
//! Numbers are rounded to the nearest, ties to even, once on each rank before the sum, and the
//! process group adds them in `f32` and rounds what travels back.
//!
//! A 16-bit number can overflow where an `f32` would not. Both hooks therefore look at the sum: if
//! there is anything in it that is not finite, the bucket is summed once more in `f32`. Infinities
//! and NaN survive every addition, so an overflow on any rank is in the sum; the sum has the same
//! bits on all ranks, so all of them decide alike, and nobody has to ask. In a training that does
//! not diverge the detour is next to never taken.
//!
//! [`Fp16`] has a second need. Gradients are often smaller than `2^-24`, its least number, and the
//! weighting with a rank's share makes them smaller still. They are scaled by a power of two that
//! puts the largest of the bucket near [`TARGET_EXPONENT`], and scaled back after the sum. The
//! factor comes from the bucket's *previous* sum, which all ranks know without asking (delayed
//! scaling: Micikevicius et al. 2022, "FP8 Formats for Deep Learning", and NVIDIA's Transformer
//! Engine); PyTorch's `fp16_compress_hook` does not scale at all. A bucket without a previous sum,
//! one that was zero, or one in which everything became zero is summed in `f32`. So a wrong factor
//! costs one more all-reduce and never the gradients, unless within a single step a bucket's
//! largest gradient shrinks below `2^-9` of what it was: then the least of its gradients lose
//! digits early.
//!
//! [`HalfType`] is what both types differ in, [`sum_rounded`] what they have in common. Buckets that are on a GPU are
//! rounded there, and take the same way from then on (`device/rounded.rs`).

use std::collections::HashMap;

use everburn_collectives::group::{CollectiveError, Element, ProcessGroup};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::all_reduce::sum_over_ranks;
use super::{CommunicationHook, GradientBucket};

/// Where the scaling puts the largest sum: in `2^8 .. 2^9`. To the greatest `f16`, just below
/// `2^16`, the next step's gradients may still grow 128-fold; down to the least normal one,
/// `2^-14`, is a range of 22 binary digits that keep the full precision.
const TARGET_EXPONENT: i32 = 8;

/// Powers of two beyond these are no normal `f32`, or have no normal reciprocal.
const EXPONENT_LIMIT: i32 = 126;

/// How many numbers are scaled at a time: 4 KiB, which stay in the L1 cache until they are rounded.
const BLOCK: usize = 1024;

/// Rounds gradients to `f16` for the way: half the bytes, 11 significant binary digits.
///
/// Scaled by a power of two, and in `f32` where even that would overflow: see the source.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; }
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::distributed::{CommunicationHook, Fp16, GradientBucket};
///
/// let group = ProcessGroup::alone(GroupOptions::default());
/// let mut hook = Fp16::default();
/// let mut values = vec![1e-9, 2e-9];
/// for bytes in [8, 4] {
///     // The first step of a bucket finds the factor, in `f32`.
///     let bucket = GradientBucket { index: 0, slots: &[], values: &mut values };
///     assert_eq!(hook.reduce(bucket, &group).unwrap(), bytes);
///     assert!((values[0] - 1e-9).abs() < 1e-12);
/// }
/// ```
#[doc(alias = "fp16_compress_hook")]
#[derive(Debug, Default)]
pub struct Fp16 {
    /// The exponent of the power of two by which each bucket is multiplied, by index. The same on
    /// all ranks.
    exponents: HashMap<usize, i32>,
    message: Vec<f16>,
}

impl CommunicationHook for Fp16 {
    fn name(&self) -> String {
        "fp16".to_owned()
    }

    fn reduce(
        &mut self,
        bucket: GradientBucket<'_>,
        group: &ProcessGroup,
    ) -> Result<u64, CollectiveError> {
        let GradientBucket { index, values, .. } = bucket;
        let mut exponent = self.exponents.remove(&index);
        let bytes = sum_rounded(values, &mut exponent, &mut self.message, group)?;
        self.exponents
            .extend(exponent.map(|exponent| (index, exponent)));
        Ok(bytes)
    }
}

/// Rounds gradients to `bf16` for the way: half the bytes, 8 significant binary digits, and the
/// range of `f32`.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; }
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::distributed::{Bf16, CommunicationHook, GradientBucket};
///
/// let group = ProcessGroup::alone(GroupOptions::default());
/// let mut values = vec![1.001, f32::MAX];
/// let bucket = GradientBucket { index: 0, slots: &[], values: &mut values[..1] };
/// assert_eq!(Bf16::default().reduce(bucket, &group).unwrap(), 2);
/// assert_eq!(values[0], 1.0);
/// ```
#[doc(alias = "bf16_compress_hook")]
#[derive(Debug, Default)]
pub struct Bf16 {
    message: Vec<bf16>,
}

impl CommunicationHook for Bf16 {
    fn name(&self) -> String {
        "bf16".to_owned()
    }

    fn reduce(
        &mut self,
        bucket: GradientBucket<'_>,
        group: &ProcessGroup,
    ) -> Result<u64, CollectiveError> {
        sum_rounded(bucket.values, &mut Some(0), &mut self.message, group)
    }
}

/// A type of 16 bits in which a bucket travels. Numbers are multiplied by `2^exponent` before they are rounded.
pub(crate) trait HalfType: Element {
    /// Puts `values` into `message`, multiplied and rounded.
    fn round(values: &[f32], exponent: i32, message: &mut Vec<Self>);

    /// Puts the numbers of `message` into `values`, without the factor.
    fn unround(message: &[Self], exponent: i32, values: &mut [f32]);

    /// The exponent for the next step of a bucket with this sum; `None` if the type cannot hold the sum.
    fn exponent_after(sum: &[Self], exponent: i32) -> Option<i32>;

    /// The exponent for the next step of a bucket that was summed in `f32`; `None` if that step is to be as well.
    fn exponent_after_wide(sum: &[f32]) -> Option<i32>;
}

impl HalfType for f16 {
    /// With the processor's own instruction where it has one: that is why this goes through slices.
    fn round(values: &[f32], exponent: i32, message: &mut Vec<f16>) {
        let scale = power_of_two(exponent);
        message.resize(values.len(), f16::ZERO);
        let mut scaled = [0.0; BLOCK];
        for (values, message) in values.chunks(BLOCK).zip(message.chunks_mut(BLOCK)) {
            let scaled = &mut scaled[..values.len()];
            for (scaled, value) in scaled.iter_mut().zip(values) {
                *scaled = value * scale;
            }
            message.convert_from_f32_slice(scaled);
        }
    }

    fn unround(message: &[f16], exponent: i32, values: &mut [f32]) {
        let unscale = power_of_two(-exponent);
        message.convert_to_f32_slice(values);
        values.iter_mut().for_each(|value| *value *= unscale);
    }

    fn exponent_after(sum: &[f16], exponent: i32) -> Option<i32> {
        largest_sum(sum, power_of_two(-exponent)).and_then(exponent_for)
    }

    fn exponent_after_wide(sum: &[f32]) -> Option<i32> {
        largest_magnitude(sum).and_then(exponent_for)
    }
}

/// Has the range of `f32`: the exponent is always zero.
impl HalfType for bf16 {
    fn round(values: &[f32], _: i32, message: &mut Vec<bf16>) {
        message.resize(values.len(), bf16::ZERO);
        for (rounded, value) in message.iter_mut().zip(values) {
            *rounded = round_to_bf16(*value);
        }
    }

    fn unround(message: &[bf16], _: i32, values: &mut [f32]) {
        for (value, sum) in values.iter_mut().zip(message) {
            *value = f32::from_bits(u32::from(sum.to_bits()) << 16);
        }
    }

    fn exponent_after(sum: &[bf16], _: i32) -> Option<i32> {
        sum.iter().all(|sum| is_finite(*sum)).then_some(0)
    }

    fn exponent_after_wide(_: &[f32]) -> Option<i32> {
        Some(0)
    }
}

/// Replaces `values` by their sum over all ranks, rounded to `T` on the way, and `exponent` by that of the next step.
/// In `f32` where there is no exponent, or where `T` cannot hold the sum. Returns how many bytes collectives were handed.
pub(crate) fn sum_rounded<T: HalfType>(
    values: &mut [f32],
    exponent: &mut Option<i32>,
    message: &mut Vec<T>,
    group: &ProcessGroup,
) -> Result<u64, CollectiveError> {
    let mut bytes = 0;
    if let Some(used) = *exponent {
        T::round(values, used, message);
        bytes += sum_over_ranks(group, message)?;
        *exponent = T::exponent_after(message, used);
        if exponent.is_some() {
            T::unround(message, used, values);
            return Ok(bytes);
        }
    }
    bytes += sum_over_ranks(group, values)?;
    *exponent = T::exponent_after_wide(values);
    Ok(bytes)
}

/// The largest magnitude; `None` if there is one that is not finite.
///
/// Without their sign bits, numbers are ordered as the integers of the same bits are; after them
/// come infinity and the NaNs.
fn largest_magnitude(values: &[f32]) -> Option<f32> {
    let largest = values.iter().fold(0, |largest: u32, value| {
        largest.max(value.to_bits() & 0x7fff_ffff)
    });
    Some(f32::from_bits(largest)).filter(|largest| largest.is_finite())
}

/// As [`largest_magnitude`], of sums that are yet to be multiplied by `unscale`.
fn largest_sum(sums: &[f16], unscale: f32) -> Option<f32> {
    let largest = sums
        .iter()
        .fold(0, |largest: u16, sum| largest.max(sum.to_bits() & 0x7fff));
    let largest = f16::from_bits(largest).to_f32() * unscale;
    Some(largest).filter(|largest| largest.is_finite())
}

/// The exponent that puts `largest` where the scaling wants it; `None` for zero.
fn exponent_for(largest: f32) -> Option<i32> {
    if largest == 0.0 {
        return None;
    }
    // Of a subnormal number this is -127, which is not its magnitude but beyond the limit as well.
    let magnitude = (largest.to_bits() >> 23) as i32 - 127;
    Some((TARGET_EXPONENT - magnitude).clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT))
}

/// `2^exponent`, exactly, for an exponent within [`EXPONENT_LIMIT`].
pub(crate) fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((127 + exponent) as u32) << 23)
}

/// As `bf16::from_f32`, but without a branch, so that the compiler vectorises loops over it.
fn round_to_bf16(value: f32) -> bf16 {
    let bits = value.to_bits();
    let to_even = (bits >> 16) & 1;
    let rounded = bits.wrapping_add(0x7fff + to_even) >> 16;
    // Rounding up could turn a NaN into infinity or zero; this keeps its upper bits, quiet.
    let quiet = (bits >> 16) | 0x40;
    bf16::from_bits(if value.is_nan() { quiet } else { rounded } as u16)
}

/// As `bf16::is_finite`, in one comparison that the compiler vectorises.
fn is_finite(value: bf16) -> bool {
    value.to_bits() & 0x7f80 != 0x7f80
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_to_bf16_is_that_of_the_reference() {
        let upper_halves = (0..=u16::MAX).map(|upper| u32::from(upper) << 16);
        let lower_halves = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff];
        for bits in upper_halves.flat_map(|upper| lower_halves.map(|lower| upper | lower)) {
            let value = f32::from_bits(bits);
            let (rounded, reference) = (round_to_bf16(value), bf16::from_f32(value));
            assert_eq!(
                rounded.to_bits(),
                reference.to_bits(),
                "{value} ({bits:#x})"
            );
            assert_eq!(is_finite(rounded), reference.is_finite(), "{value}");
        }
    }

    #[test]
    fn scaling_puts_the_largest_number_in_its_place_and_is_undone_exactly() {
        let normal = (-118..=127).map(|exponent| 1.5 * 2f32.powi(exponent));
        for largest in normal {
            let exponent = exponent_for(largest).unwrap();
            let scaled = largest * power_of_two(exponent);
            assert_eq!(scaled, 1.5 * 256.0, "{largest}");
            assert_eq!(scaled * power_of_two(-exponent), largest);
        }
        let least = f32::from_bits(1);
        assert_eq!(exponent_for(least), Some(EXPONENT_LIMIT));
        assert_eq!(exponent_for(0.0), None);
    }

    #[test]
    fn the_largest_magnitude_is_none_where_something_is_not_finite() {
        assert_eq!(largest_magnitude(&[1.0, -3.0, 2.0]), Some(3.0));
        assert_eq!(largest_magnitude(&[]), Some(0.0));
        let halves = [1.0, -3.0, 2.0].map(f16::from_f32);
        assert_eq!(largest_sum(&halves, 0.5), Some(1.5));
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(largest_magnitude(&[1.0, bad, 2.0]), None);
            assert_eq!(largest_sum(&[f16::ONE, f16::from_f32(bad)], 1.0), None);
        }
        let beyond = [f16::from_f32(4.0)];
        assert_eq!(largest_sum(&beyond, power_of_two(126)), None);
    }
}
