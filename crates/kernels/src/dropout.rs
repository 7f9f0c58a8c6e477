//! Dropout whose mask is never stored: it is drawn anew in the backward pass.

use pulp::{Simd, WithSimd};

use crate::error::{KernelError, check_length};
use crate::isa::InstructionSet;
use crate::parallel::each_piece;

const DROPOUT: &str = "dropout";

/// How many values a task takes.
const PIECE: usize = 1 << 14;

/// Which values a dropout lets pass: a number that is drawn for each of them from `seed` and its
/// place, and what it must stay below.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    seed: [u32; 2],
    /// Numbers below it pass.
    below: u32,
    /// What those that pass are multiplied by.
    scale: f32,
}

impl Dropout {
    /// Sets a share of `probability`, in `0..1`, to zero, and multiplies the others so that the mean
    /// stays.
    pub fn new(probability: f64, seed: [u32; 2]) -> Self {
        let passing = (1.0 - probability).clamp(0.0, 1.0);
        Self {
            seed,
            // 2^32 does not fit; then one value in four thousand million is dropped in error.
            below: (passing * 4_294_967_296.0) as u32,
            scale: passing.recip() as f32,
        }
    }

    /// What the value at `place` is multiplied by.
    #[inline(always)]
    fn factor(self, place: u32) -> f32 {
        let [low, high] = self.seed;
        let drawn = mixed(mixed(place ^ low).wrapping_add(high));
        if drawn < self.below { self.scale } else { 0.0 }
    }
}

/// Wellons' `lowbias32` (2018, "Prospecting for Hash Functions"): each bit of the input changes each bit of
/// the output in about half of all cases.
#[inline(always)]
fn mixed(value: u32) -> u32 {
    let value = (value ^ (value >> 16)).wrapping_mul(0x7feb_352d);
    let value = (value ^ (value >> 15)).wrapping_mul(0x846c_a68b);
    value ^ (value >> 16)
}

/// Writes `input` to `output`, with zeros in the place of some values. The gradient of the input
/// is the same of the gradient.
///
/// # Errors
/// Slices of different lengths, and more than 2^32 values.
pub fn dropout(some: Dropout, input: &[f32], output: &mut [f32]) -> Result<(), KernelError> {
    let set = InstructionSet::best();
    check_length(DROPOUT, "output", input.len(), output.len())?;
    if u32::try_from(input.len()).is_err() {
        return Err(KernelError::Overflow { operation: DROPOUT });
    }
    each_piece(output, PIECE, 2 * input.len(), |index, output| {
        let first = index * PIECE;
        set.run(Task {
            some,
            first: first as u32,
            input: &input[first..][..output.len()],
            output,
        });
    });
    Ok(())
}

struct Task<'a> {
    some: Dropout,
    first: u32,
    input: &'a [f32],
    output: &'a mut [f32],
}

impl WithSimd for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let places = self.first..;
        let values = self.output.iter_mut().zip(self.input);
        for (place, (output, &input)) in places.zip(values) {
            *output = input * self.some.factor(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::on_threads;

    fn mask(some: Dropout, length: usize) -> Vec<f32> {
        let mut output = vec![f32::NAN; length];
        dropout(some, &vec![1.0; length], &mut output).unwrap();
        output
    }

    #[test]
    fn as_many_are_dropped_as_are_asked_for_in_each_stretch() {
        for probability in [0.0, 0.1, 0.5, 0.9] {
            for seed in [[0, 0], [1, 0], [0, 1], [u32::MAX, 77]] {
                let mask = mask(Dropout::new(probability, seed), 1 << 16);
                for stretch in mask.chunks(1 << 12) {
                    let dropped = stretch.iter().filter(|&&factor| factor == 0.0).count();
                    let expected = probability * stretch.len() as f64;
                    // Six standard deviations.
                    let off = 6.0 * (expected * (1.0 - probability)).sqrt();
                    assert!(
                        (dropped as f64 - expected).abs() <= off,
                        "{dropped} {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn seeds_and_neighbours_are_independent() {
        let length = 1 << 16;
        let first = mask(Dropout::new(0.5, [3, 4]), length);
        let others = [
            mask(Dropout::new(0.5, [4, 4]), length),
            mask(Dropout::new(0.5, [3, 5]), length),
            first.iter().skip(1).copied().chain([0.0]).collect(),
        ];
        for other in others {
            let same = first.iter().zip(&other).filter(|(a, b)| a == b).count();
            let off = same.abs_diff(length / 2);
            assert!(off < 6 * 128, "{same} of {length}");
        }
    }

    #[test]
    fn the_same_for_all_sets_of_instructions_and_threads() {
        let some = Dropout::new(0.3, [5, 6]);
        let expected = mask(some, 100_003);
        for set in InstructionSet::available() {
            for threads in [1, 4] {
                let found = on_threads(threads, || {
                    set.choose();
                    let mut output = vec![f32::NAN; expected.len()];
                    dropout(some, &vec![1.0; expected.len()], &mut output).unwrap();
                    output
                });
                assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn other_lengths_are_refused() {
        assert!(dropout(Dropout::new(0.5, [1, 2]), &[1.0], &mut [0.0; 2]).is_err());
    }
}
