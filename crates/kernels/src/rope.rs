//! Rotary positions (Su et al. 2021, section 3.4.2): pairs of numbers rotated by angles.

use pulp::{Simd, WithSimd};

use crate::error::{KernelError, check_length, product};
use crate::isa::InstructionSet;
use crate::lanes::{load, store};
use crate::parallel::each_piece;

const ROPE: &str = "rope";

/// How many tokens a task takes.
const TOKENS: usize = 32;

/// Vectors of the tokens of several texts and heads: `[texts, heads, tokens, 2 * half]`, of which the
/// numbers of a vector are side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeShape {
    /// Texts and heads.
    pub batch: [usize; 2],
    /// Tokens of a text.
    pub tokens: usize,
    /// Pairs of a vector: number `i` of the first half goes with number `i` of the second.
    pub half: usize,
    /// How far the next text, the next head and the next token of the input are.
    pub strides: [usize; 3],
}

/// Which way pairs are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeDirection {
    /// By the angles.
    Forward,
    /// By minus the angles: what undoes it, and the gradient.
    Back,
}

/// Rotates each pair `(a, b)` of `input` by the angle of its token and place, whose cosines and sines
/// are `[tokens, half]`: `(a cos - b sin, b cos + a sin)`. The output is
/// `[texts, tokens, heads, 2 * half]`: heads side by side, as linear layers have them.
///
/// # Errors
/// Slices of other lengths than the shape says.
pub fn rope(
    shape: RopeShape,
    direction: RopeDirection,
    input: &[f32],
    [cosines, sines]: [&[f32]; 2],
    output: &mut [f32],
) -> Result<(), KernelError> {
    let set = InstructionSet::best();
    let RopeShape {
        batch: [texts, heads],
        tokens,
        half,
        strides,
    } = shape;
    let width = product(ROPE, &[2, half])?;
    let length = product(ROPE, &[texts, heads, tokens, width])?;
    check_length(ROPE, "output", length, output.len())?;
    check_length(
        ROPE,
        "cosines",
        product(ROPE, &[tokens, half])?,
        cosines.len(),
    )?;
    check_length(ROPE, "sines", cosines.len(), sines.len())?;
    if output.is_empty() {
        return Ok(());
    }
    let mut last = [texts, heads, tokens].into_iter().zip(strides);
    let end = last.try_fold(width, |end, (count, stride)| {
        end.checked_add((count - 1).checked_mul(stride)?)
    });
    match end {
        Some(end) if end <= input.len() => {}
        end => check_length(ROPE, "input", end.unwrap_or(usize::MAX), input.len())?,
    }
    let (row, of_task) = (heads * width, TOKENS);
    each_piece(output, of_task * row, length, |index, output| {
        set.run(Task {
            shape,
            direction,
            input,
            angles: [cosines, sines],
            first: index * of_task,
            output,
        });
    });
    Ok(())
}

/// Some tokens of all texts, one after the other.
struct Task<'a> {
    shape: RopeShape,
    direction: RopeDirection,
    input: &'a [f32],
    angles: [&'a [f32]; 2],
    /// The number of the first token.
    first: usize,
    output: &'a mut [f32],
}

impl WithSimd for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let RopeShape {
            batch: [_, heads],
            tokens,
            half,
            strides,
        } = self.shape;
        let minus = simd.splat_f32s(-1.0);
        for (token, output) in self.output.chunks_exact_mut(heads * 2 * half).enumerate() {
            let [text, token] = [(self.first + token) / tokens, (self.first + token) % tokens];
            let angles = self.angles.map(|table| &table[token * half..][..half]);
            for (head, output) in output.chunks_exact_mut(2 * half).enumerate() {
                let start = text * strides[0] + head * strides[1] + token * strides[2];
                let (a, b) = self.input[start..][..2 * half].split_at(half);
                let (to_a, to_b) = output.split_at_mut(half);
                for at in (0..half).step_by(S::F32_LANES) {
                    let part = at..half.min(at + S::F32_LANES);
                    let [a, b] = [a, b].map(|values| load(simd, &values[part.clone()]));
                    let [cosine, mut sine] = angles.map(|table| load(simd, &table[part.clone()]));
                    if self.direction == RopeDirection::Back {
                        sine = simd.mul_f32s(minus, sine);
                    }
                    let [a_cosine, a_sine] = [cosine, sine].map(|by| simd.mul_f32s(a, by));
                    let [b_cosine, b_sine] = [cosine, sine].map(|by| simd.mul_f32s(b, by));
                    store(
                        simd,
                        &mut to_a[part.clone()],
                        simd.sub_f32s(a_cosine, b_sine),
                    );
                    store(simd, &mut to_b[part], simd.add_f32s(b_cosine, a_sine));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::values;

    #[test]
    fn pairs_are_rotated_and_back() {
        let (texts, heads, tokens, half) = (2, 3, 5, 17);
        let width = 2 * half;
        // Heads side by side.
        let strides = [tokens * heads * width, width, heads * width];
        let shape = RopeShape {
            batch: [texts, heads],
            tokens,
            half,
            strides,
        };
        let input = values(texts * heads * tokens * width, 1);
        let angles = values(tokens * half, 2);
        let cosines: Vec<f32> = angles.iter().map(|angle| angle.cos()).collect();
        let sines: Vec<f32> = angles.iter().map(|angle| angle.sin()).collect();
        let angles = [&cosines[..], &sines];
        for set in InstructionSet::available() {
            set.choose();
            let mut output = vec![f32::NAN; input.len()];
            rope(shape, RopeDirection::Forward, &input, angles, &mut output).unwrap();
            for matrix in 0..texts * heads {
                for token in 0..tokens {
                    let from = matrix / heads * strides[0]
                        + matrix % heads * strides[1]
                        + token * strides[2];
                    let [text, head] = [matrix / heads, matrix % heads];
                    let to = ((text * tokens + token) * heads + head) * width;
                    for pair in 0..half {
                        let [a, b] =
                            [from + pair, from + half + pair].map(|at| f64::from(input[at]));
                        let [c, s] =
                            [&cosines, &sines].map(|table| f64::from(table[token * half + pair]));
                        let found = [to + pair, to + half + pair].map(|at| f64::from(output[at]));
                        assert!((found[0] - (a * c - b * s)).abs() < 1e-6);
                        assert!((found[1] - (b * c + a * s)).abs() < 1e-6);
                    }
                }
            }
            let mut back = vec![f32::NAN; input.len()];
            rope(shape, RopeDirection::Back, &output, angles, &mut back).unwrap();
            assert!(back.iter().zip(&input).all(|(a, b)| (a - b).abs() < 1e-6));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let shape = RopeShape {
            batch: [1, 2],
            tokens: 3,
            half: 2,
            strides: [24, 12, 4],
        };
        let (input, table) = ([0.0; 24], [0.0; 6]);
        let rotated = |shape, input: &[f32], table: &[f32], output: &mut [f32]| {
            rope(shape, RopeDirection::Forward, input, [table, table], output)
        };
        assert!(rotated(shape, &input, &table, &mut [0.0; 24]).is_ok());
        assert!(rotated(shape, &input[1..], &table, &mut [0.0; 24]).is_err());
        assert!(rotated(shape, &input, &table[1..], &mut [0.0; 24]).is_err());
        assert!(rotated(shape, &input, &table, &mut [0.0; 23]).is_err());
        let far = RopeShape {
            strides: [1, usize::MAX, 1],
            ..shape
        };
        assert!(rotated(far, &input, &table, &mut [0.0; 24]).is_err());
        let none = RopeShape { tokens: 0, ..shape };
        assert!(rotated(none, &input, &[], &mut []).is_ok());
    }
}
