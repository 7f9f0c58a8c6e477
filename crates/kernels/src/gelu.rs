//! The Gaussian error linear unit (Hendrycks and Gimpel 2016), by the error function itself.

use pulp::{Simd, WithSimd};

use crate::elementary::{erf, exp};
use crate::error::{KernelError, check_length};
use crate::isa::InstructionSet;
use crate::lanes::map;
use crate::parallel::each_piece_of;

const GELU: &str = "gelu";

/// How many values a task takes.
const PIECE: usize = 1 << 13;

/// What a value costs, in values moved: forward and backward.
const COST: [usize; 2] = [2, 3];

/// 1 / sqrt(2 pi).
const DENSITY_AT_ZERO: f32 = 0.398_942_3;

/// Writes `input / 2 * (1 + erf(input / sqrt(2)))` to `output`, within 1e-6 for inputs up to ten.
/// Not-a-number stays, and minus infinity becomes it, as in PyTorch.
///
/// # Errors
/// Slices of different lengths.
pub fn gelu(input: &[f32], output: &mut [f32]) -> Result<(), KernelError> {
    let set = InstructionSet::best();
    check_length(GELU, "output", input.len(), output.len())?;
    let work = COST[0] * input.len();
    each_piece_of([input], output, PIECE, work, |given, output| {
        set.run(Forward(given, output));
    });
    Ok(())
}

/// Writes the gradient with respect to the `input` of [`gelu`]: `gradient` times the share of a
/// normal distribution below `input`, plus `input` times its density there.
///
/// # Errors
/// Slices of different lengths.
pub fn gelu_backward(
    input: &[f32],
    gradient: &[f32],
    input_grad: &mut [f32],
) -> Result<(), KernelError> {
    let set = InstructionSet::best();
    check_length(GELU, "gradient", input.len(), gradient.len())?;
    check_length(GELU, "input_grad", input.len(), input_grad.len())?;
    let work = COST[1] * input.len();
    let given = [input, gradient];
    each_piece_of(given, input_grad, PIECE, work, |given, input_grad| {
        set.run(Backward(given, input_grad));
    });
    Ok(())
}

/// The share of a normal distribution below `x`.
#[inline(always)]
fn share_below<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let half = simd.splat_f32s(0.5);
    let scaled = simd.mul_f32s(x, simd.splat_f32s(std::f32::consts::FRAC_1_SQRT_2));
    simd.mul_add_e_f32s(erf(simd, scaled), half, half)
}

struct Forward<'a>([&'a [f32]; 1], &'a mut [f32]);

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        map(
            simd,
            self.0,
            self.1,
            #[inline(always)]
            |[x]| simd.mul_f32s(x, share_below(simd, x)),
        );
    }
}

struct Backward<'a>([&'a [f32]; 2], &'a mut [f32]);

impl WithSimd for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        map(
            simd,
            self.0,
            self.1,
            #[inline(always)]
            |[x, gradient]| {
                let exponent = simd.mul_f32s(simd.mul_f32s(x, simd.splat_f32s(-0.5)), x);
                let scaled = simd.mul_f32s(x, simd.splat_f32s(DENSITY_AT_ZERO));
                let below = share_below(simd, x);
                let slope = simd.mul_add_e_f32s(exp(simd, exponent), scaled, below);
                simd.mul_f32s(gradient, slope)
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sample::{self, assert_same_on_threads, values};

    fn define(x: f64) -> f64 {
        x / 2.0 * (1.0 + sample::erf(x / std::f64::consts::SQRT_2))
    }

    fn slope(x: f64) -> f64 {
        let step = 1e-5;
        (define(x + step) - define(x - step)) / (2.0 * step)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn equals_the_definition_and_its_difference_quotients(
            given in prop::collection::vec((-10.0_f32..10.0, -1.0_f32..1.0), 0..200),
        ) {
            let (input, gradient): (Vec<f32>, Vec<f32>) = given.into_iter().unzip();
            for set in InstructionSet::available() {
                set.choose();
                let mut output = vec![7.0; input.len()];
                gelu(&input, &mut output).unwrap();
                let mut input_grad = vec![7.0; input.len()];
                gelu_backward(&input, &gradient, &mut input_grad).unwrap();
                for (index, &x) in input.iter().enumerate() {
                    let expected = define(f64::from(x));
                    let error = (f64::from(output[index]) - expected).abs();
                    prop_assert!(error <= 1e-6_f64.max(3e-7 * expected.abs()), "{x}: {error}");
                    let expected = slope(f64::from(x)) * f64::from(gradient[index]);
                    let error = (f64::from(input_grad[index]) - expected).abs();
                    prop_assert!(error <= 1e-6, "{x}: {error}");
                }
            }
        }
    }

    #[test]
    fn far_from_zero_it_is_exact_and_not_a_number_stays() {
        let input = [
            f32::NAN,
            1e10,
            -1e10,
            f32::MAX,
            f32::MIN,
            f32::INFINITY,
            0.0,
        ];
        for set in InstructionSet::available() {
            set.choose();
            let mut output = [7.0; 7];
            gelu(&input, &mut output).unwrap();
            assert!(output[0].is_nan());
            assert_eq!(output[1..], [1e10, 0.0, f32::MAX, 0.0, f32::INFINITY, 0.0]);
            let mut input_grad = [7.0; 5];
            gelu_backward(&input[..5], &[2.0; 5], &mut input_grad).unwrap();
            assert!(input_grad[0].is_nan());
            assert_eq!(input_grad[1..], [2.0, 0.0, 2.0, 0.0]);
        }
    }

    #[test]
    fn the_same_bits_for_any_number_of_threads() {
        let (input, gradient) = (values(70_001, 1), values(70_001, 2));
        assert_same_on_threads(|| {
            let [mut output, mut input_grad] = [(); 2].map(|()| vec![7.0; input.len()]);
            gelu(&input, &mut output).unwrap();
            gelu_backward(&input, &gradient, &mut input_grad).unwrap();
            [output, input_grad]
        });
    }

    #[test]
    fn other_lengths_are_refused() {
        assert!(gelu(&[1.0], &mut [0.0; 2]).is_err());
        assert!(gelu_backward(&[1.0], &[1.0; 2], &mut [0.0]).is_err());
        assert!(gelu_backward(&[1.0], &[1.0], &mut []).is_err());
    }
}
