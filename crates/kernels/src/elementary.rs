//! Functions that no instruction computes, a vector at a time and without branches.

use pulp::Simd;

/// `exp` of larger numbers is infinite: `ln(f32::MAX)`.
const EXP_LARGEST: f32 = 88.722_84;
/// `exp` of smaller numbers is not normal: `ln(f32::MIN_POSITIVE)`.
const EXP_SMALLEST: f32 = -87.336_54;
/// 1.5 * 2^23: added to a number below 2^22, it leaves that number rounded in the lowest bits.
const ROUNDER: f32 = 12_582_912.0;
/// Together ln 2. The first has so few bits that its product with an exponent is exact.
const LN_2_PARTS: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
/// `(exp(r) - 1 - r) / r^2` within `ln(2) / 2` of zero, the highest power first: those of Cephes
/// (Moshier 1992, `expf`).
const EXP: [f32; 6] = [
    1.987_569_1e-4,
    1.398_199_9e-3,
    8.333_452e-3,
    4.166_579_6e-2,
    0.166_666_66,
    0.5,
];

/// From here on `erf` rounds to one.
const ERF_ONE: f32 = 3.832_507;
/// `erf(x) / x` is the quotient of two polynomials of `x^2`, the highest power first: those of XLA
/// (`ErfImpl32` of 2024), and the bound above is that of Eigen (`generic_fast_erf_float`).
#[expect(clippy::excessive_precision)]
const ERF_NUMERATOR: [f32; 5] = [
    0.00022905065861350646,
    0.0034082910107109506,
    0.050955695062380861,
    0.18520832239976145,
    1.128379143519084,
];
#[expect(clippy::excessive_precision)]
const ERF_DENOMINATOR: [f32; 7] = [
    -1.1791602954361697e-7,
    0.000023547966471313185,
    0.0010179625278914885,
    0.014070470171167667,
    0.11098505178285362,
    0.49746925110067538,
    1.0,
];

#[inline(always)]
fn polynomial<S: Simd>(simd: S, x: S::f32s, coefficients: &[f32]) -> S::f32s {
    let mut sum = simd.splat_f32s(coefficients[0]);
    for &coefficient in &coefficients[1..] {
        sum = simd.mul_add_e_f32s(sum, x, simd.splat_f32s(coefficient));
    }
    sum
}

/// `value`, or 0 where its magnitude is below `least`.
#[inline(always)]
pub(crate) fn or_zero_below<S: Simd>(simd: S, value: S::f32s, least: f32) -> S::f32s {
    let is_below = simd.less_than_f32s(simd.abs_f32s(value), simd.splat_f32s(least));
    simd.select_f32s(is_below, simd.splat_f32s(0.0), value)
}

/// e to the power of each lane, within 2 units in the last place. Results that are not normal (below
/// 1.2e-38) become zero.
#[inline(always)]
pub(crate) fn exp<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let splat = |value| simd.splat_f32s(value);
    let shifted = simd.mul_add_e_f32s(x, splat(std::f32::consts::LOG2_E), splat(ROUNDER));
    let exponent = simd.sub_f32s(shifted, splat(ROUNDER));
    let mut r = x;
    for part in LN_2_PARTS {
        r = simd.mul_add_e_f32s(exponent, splat(-part), r);
    }
    let curve = polynomial(simd, r, &EXP);
    let line = simd.add_f32s(r, splat(1.0));
    let fraction = simd.mul_add_e_f32s(curve, simd.mul_f32s(r, r), line);
    // Times two to the exponent: there is always one, or the number is out of bounds.
    let shifted = simd.wrapping_dyn_shl_u32s(
        simd.transmute_u32s_f32s(shifted),
        simd.splat_u32s(f32::MANTISSA_DIGITS - 1),
    );
    let bits = simd.add_u32s(simd.transmute_u32s_f32s(fraction), shifted);
    let normal = simd.greater_than_or_equal_f32s(x, splat(EXP_SMALLEST));
    let value = simd.select_f32s(normal, simd.transmute_f32s_u32s(bits), splat(0.0));
    // Infinity for what is too large, and not-a-number for that.
    let beyond = simd.add_f32s(x, splat(f32::INFINITY));
    let finite = simd.less_than_or_equal_f32s(x, splat(EXP_LARGEST));
    simd.select_f32s(finite, value, beyond)
}

/// The error function of each lane, within 6 units in the last place, never beyond one.
#[inline(always)]
pub(crate) fn erf<S: Simd>(simd: S, x: S::f32s) -> S::f32s {
    let splat = |value| simd.splat_f32s(value);
    let square = simd.mul_f32s(x, x);
    let numerator = simd.mul_f32s(x, polynomial(simd, square, &ERF_NUMERATOR));
    let value = simd.div_f32s(numerator, polynomial(simd, square, &ERF_DENOMINATOR));
    // Not `min` and `max`: what they make of not-a-number is the instruction set's choice.
    let [one, minus_one] = [1.0, -1.0].map(splat);
    let value = simd.select_f32s(simd.greater_than_f32s(value, one), one, value);
    let value = simd.select_f32s(simd.less_than_f32s(value, minus_one), minus_one, value);
    let over = simd.greater_than_or_equal_f32s(x, splat(ERF_ONE));
    let under = simd.less_than_or_equal_f32s(x, splat(-ERF_ONE));
    let value = simd.select_f32s(over, one, value);
    simd.select_f32s(under, minus_one, value)
}

#[cfg(test)]
mod tests {
    use pulp::WithSimd;

    use super::*;
    use crate::isa::InstructionSet;
    use crate::lanes::map;
    use crate::sample;

    struct Each<'a> {
        input: &'a [f32],
        exp: &'a mut [f32],
        erf: &'a mut [f32],
    }

    impl WithSimd for Each<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            map(
                simd,
                [self.input],
                self.exp,
                #[inline(always)]
                |[x]| exp(simd, x),
            );
            map(
                simd,
                [self.input],
                self.erf,
                #[inline(always)]
                |[x]| erf(simd, x),
            );
        }
    }

    fn each(set: InstructionSet, input: &[f32]) -> [Vec<f32>; 2] {
        let [mut exp, mut erf] = [(); 2].map(|()| vec![7.0; input.len()]);
        set.run(Each {
            input,
            exp: &mut exp,
            erf: &mut erf,
        });
        [exp, erf]
    }

    /// How many units in the last place of `expected` are between both.
    fn units(actual: f32, expected: f64) -> f64 {
        let nearest = expected as f32;
        let unit = f64::from(nearest.abs().next_up()) - f64::from(nearest.abs());
        (f64::from(actual) - expected).abs() / unit
    }

    /// Numbers of every sign and exponent, and more of them where the functions bend.
    fn inputs() -> Vec<f32> {
        let whole_range = (0..u32::MAX).step_by(9973).map(f32::from_bits);
        let bends = (-1_000_000..1_000_000).map(|index| index as f32 * 9.1e-5);
        let near = (-1_000_000..1_000_000).map(|index| index as f32 * 4.1e-6);
        let all = whole_range.chain(bends).chain(near);
        all.filter(|value| !value.is_nan()).collect()
    }

    #[test]
    fn errors_are_a_few_units_over_the_whole_range() {
        let input = inputs();
        for set in InstructionSet::available() {
            let [exps, erfs] = each(set, &input);
            let mut worst = [(0.0, 0.0); 2];
            for ((&x, exp), erf) in input.iter().zip(exps).zip(erfs) {
                let expected = f64::from(x).exp();
                if expected < f64::from(f32::MIN_POSITIVE) {
                    assert!(
                        exp == 0.0 || expected as f32 == exp,
                        "{set:?}: exp({x}) = {exp}"
                    );
                } else if expected > f64::from(f32::MAX) {
                    assert!(expected as f32 == exp, "{set:?}: exp({x}) = {exp}");
                } else {
                    let error = units(exp, expected);
                    if error > worst[0].0 {
                        worst[0] = (error, x);
                    }
                }
                assert!(erf.abs() <= 1.0, "{set:?}: erf({x}) = {erf}");
                // Below, products of a coefficient and the number are not normal.
                if x.abs() > 1e-30 {
                    let error = units(erf, sample::erf(f64::from(x)));
                    if error > worst[1].0 {
                        worst[1] = (error, x);
                    }
                } else {
                    assert!(erf.abs() <= 1.2e-30);
                }
            }
            assert!(worst[0].0 < 2.0 && worst[1].0 < 6.0, "{set:?}: {worst:?}");
        }
    }

    #[test]
    fn the_ends_of_the_range() {
        let input = [
            f32::NAN,
            -f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MAX,
            f32::MIN,
            0.0,
            -0.0,
            89.0,
            -88.0,
        ];
        for set in InstructionSet::available() {
            let [exp, erf] = each(set, &input);
            assert!([exp[0], exp[1], erf[0], erf[1]].iter().all(|x| x.is_nan()));
            let infinity = f32::INFINITY;
            assert_eq!(
                exp[2..],
                [infinity, 0.0, infinity, 0.0, 1.0, 1.0, infinity, 0.0]
            );
            assert_eq!(erf[2..], [1.0, -1.0, 1.0, -1.0, 0.0, 0.0, 1.0, -1.0]);
        }
    }
}
