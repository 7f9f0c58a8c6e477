//! The rectified linear unit.

use pulp::{Simd, WithSimd};

use crate::error::{KernelError, check_length};
use crate::isa::InstructionSet;
use crate::parallel::each_piece_of;

const RELU: &str = "relu";

/// How many values a task takes.
const PIECE: usize = 1 << 14;

/// Writes `input` to `output`, with zeros in the place of negative numbers. Not-a-number stays.
///
/// # Errors
/// Slices of different lengths.
pub fn relu(input: &[f32], output: &mut [f32]) -> Result<(), KernelError> {
    let set = InstructionSet::best();
    check_length(RELU, "output", input.len(), output.len())?;
    each_piece_of([input], output, PIECE, input.len(), |given, output| {
        set.run(Forward(given, output));
    });
    Ok(())
}

/// Writes the gradient with respect to the input of [`relu`]: `gradient` where its `output` is
/// not zero.
///
/// # Errors
/// Slices of different lengths.
pub fn relu_backward(
    output: &[f32],
    gradient: &[f32],
    input_grad: &mut [f32],
) -> Result<(), KernelError> {
    let set = InstructionSet::best();
    check_length(RELU, "gradient", output.len(), gradient.len())?;
    check_length(RELU, "input_grad", output.len(), input_grad.len())?;
    let (given, work) = ([output, gradient], output.len());
    each_piece_of(given, input_grad, PIECE, work, |given, input_grad| {
        set.run(Backward(given, input_grad));
    });
    Ok(())
}

/// Whether a value or its gradient passes. `max` would turn not-a-number into zero.
#[inline(always)]
fn passes(value: f32) -> bool {
    value > 0.0 || value.is_nan()
}

struct Forward<'a>([&'a [f32]; 1], &'a mut [f32]);

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self([input], output) = self;
        for (output, &input) in output.iter_mut().zip(input) {
            *output = if passes(input) { input } else { 0.0 };
        }
    }
}

/// The output and its gradient, and where the gradient of the input goes.
struct Backward<'a>([&'a [f32]; 2], &'a mut [f32]);

impl WithSimd for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self([output, gradient], input_grad) = self;
        let given = output.iter().zip(gradient);
        for (input_grad, (&output, &gradient)) in input_grad.iter_mut().zip(given) {
            *input_grad = if passes(output) { gradient } else { 0.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn positive_numbers_and_their_gradients_pass(
            values in prop::collection::vec((-2.0_f32..2.0, -1.0_f32..1.0), 0..70_000),
        ) {
            let (input, gradient): (Vec<f32>, Vec<f32>) = values.into_iter().unzip();
            for set in InstructionSet::available() {
                set.choose();
                let mut output = vec![f32::NAN; input.len()];
                relu(&input, &mut output).unwrap();
                let mut input_grad = vec![f32::NAN; input.len()];
                relu_backward(&output, &gradient, &mut input_grad).unwrap();
                for (index, &value) in input.iter().enumerate() {
                    prop_assert_eq!(output[index], value.max(0.0));
                    let slope = if value > 0.0 { gradient[index] } else { 0.0 };
                    prop_assert_eq!(input_grad[index], slope);
                }
            }
        }
    }

    #[test]
    fn not_a_number_is_not_hidden() {
        let input = [f32::NAN, -0.0, f32::NEG_INFINITY, f32::INFINITY, -f32::NAN];
        for set in InstructionSet::available() {
            set.choose();
            let mut output = [7.0; 5];
            relu(&input, &mut output).unwrap();
            assert!(output[0].is_nan() && output[4].is_nan());
            assert_eq!(output[1..4], [0.0, 0.0, f32::INFINITY]);
            let mut input_grad = [7.0; 5];
            relu_backward(&output, &[2.0; 5], &mut input_grad).unwrap();
            assert_eq!(input_grad, [2.0, 0.0, 0.0, 2.0, 2.0]);
        }
    }

    #[test]
    fn other_lengths_are_refused() {
        assert!(relu(&[1.0], &mut [0.0; 2]).is_err());
        assert!(relu_backward(&[1.0], &[1.0; 2], &mut [0.0]).is_err());
        assert!(relu_backward(&[1.0], &[1.0], &mut []).is_err());
    }
}
