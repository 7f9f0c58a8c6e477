//! The cross entropy of classes, forward and backward.

use pulp::{Simd, WithSimd};

use crate::elementary::{exp, or_zero_below};
use crate::error::{KernelError, check_length, product};
use crate::isa::InstructionSet;
use crate::lanes::{map, sum};
use crate::parallel::each_piece;
use crate::softmax::maximum;

const CROSS_ENTROPY: &str = "cross_entropy";

/// About how many logits a task takes.
const PIECE: usize = 1 << 13;

/// What a logit costs, in values moved.
const COST: usize = 2;

/// Probabilities below have no gradient: 2^-64. It changes no parameter, but its products in the layers below are
/// subnormal numbers, which take some processors a hundred times as long.
const LEAST_PROBABILITY: f32 = 5.421_011e-20;

/// What a row is taken down by so that its softmax is `exp(logit - highest - logarithm)`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Normalizer {
    /// The largest logit.
    pub highest: f32,
    /// `ln(sum(exp(logit - highest)))`.
    pub logarithm: f32,
}

/// The mean over the rows of `-ln(softmax(logits)[target])`, and what the gradient needs of each
/// row. `logits` are `[rows, columns]`, `targets` a column for each row.
///
/// Of no rows the mean is not-a-number, as in PyTorch.
///
/// # Errors
/// Slices of other lengths than the shape says; a target that is no column.
pub fn cross_entropy(
    [rows, columns]: [usize; 2],
    logits: &[f32],
    targets: &[i64],
    normalizers: &mut [Normalizer],
) -> Result<f32, KernelError> {
    let set = InstructionSet::best();
    check([rows, columns], logits, targets, normalizers)?;
    let piece = rows_of_a_piece(columns);
    each_piece(
        normalizers,
        piece,
        COST * logits.len(),
        |index, normalizers| {
            let logits = &logits[index * piece * columns..][..normalizers.len() * columns];
            set.run(Normalize {
                columns,
                logits,
                normalizers,
            });
        },
    );
    let losses = targets.iter().zip(normalizers.iter()).enumerate();
    let losses = losses.map(|(row, (&target, normalizer))| {
        // Checked to be a column.
        let logit = logits[row * columns + target as usize];
        f64::from(normalizer.highest - logit) + f64::from(normalizer.logarithm)
    });
    Ok((losses.sum::<f64>() / rows as f64) as f32)
}

/// Writes `gradient` times the gradient of [`cross_entropy`] with respect to its logits. It is 0 where the softmax is
/// below 2^-64, about 5e-20.
///
/// # Errors
/// Slices of other lengths than the shape says; a target that is no column.
pub fn cross_entropy_backward(
    [rows, columns]: [usize; 2],
    logits: &[f32],
    targets: &[i64],
    normalizers: &[Normalizer],
    gradient: f32,
    logits_grad: &mut [f32],
) -> Result<(), KernelError> {
    let set = InstructionSet::best();
    check([rows, columns], logits, targets, normalizers)?;
    check_length(
        CROSS_ENTROPY,
        "logits_grad",
        logits.len(),
        logits_grad.len(),
    )?;
    let piece = rows_of_a_piece(columns);
    let share = gradient / rows as f32;
    each_piece(
        logits_grad,
        piece * columns,
        COST * logits.len(),
        |index, logits_grad| {
            let first = index * piece;
            let count = logits_grad.len() / columns;
            set.run(Differentiate {
                columns,
                logits: &logits[first * columns..][..logits_grad.len()],
                targets: &targets[first..][..count],
                normalizers: &normalizers[first..][..count],
                share,
                logits_grad,
            });
        },
    );
    Ok(())
}

fn check(
    [rows, columns]: [usize; 2],
    logits: &[f32],
    targets: &[i64],
    normalizers: &[Normalizer],
) -> Result<(), KernelError> {
    let length = product(CROSS_ENTROPY, &[rows, columns])?;
    check_length(CROSS_ENTROPY, "logits", length, logits.len())?;
    check_length(CROSS_ENTROPY, "targets", rows, targets.len())?;
    check_length(CROSS_ENTROPY, "normalizers", rows, normalizers.len())?;
    let strays = |target: &&i64| usize::try_from(**target).map_or(true, |target| target >= columns);
    match targets.iter().find(strays) {
        None => Ok(()),
        Some(&target) => Err(KernelError::Class {
            operation: CROSS_ENTROPY,
            target,
            classes: columns,
        }),
    }
}

fn rows_of_a_piece(columns: usize) -> usize {
    (PIECE / columns.max(1)).max(1)
}

struct Normalize<'a> {
    columns: usize,
    logits: &'a [f32],
    normalizers: &'a mut [Normalizer],
}

impl WithSimd for Normalize<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let one = simd.splat_f32s(1.0);
        let rows = self.logits.chunks(self.columns);
        for (logits, normalizer) in rows.zip(self.normalizers) {
            let highest = maximum(simd, logits, one);
            let shift = simd.splat_f32s(highest);
            let total = sum(
                simd,
                [logits],
                #[inline(always)]
                |[x]| exp(simd, simd.sub_f32s(x, shift)),
            );
            *normalizer = Normalizer {
                highest,
                logarithm: total.ln() as f32,
            };
        }
    }
}

struct Differentiate<'a> {
    columns: usize,
    logits: &'a [f32],
    targets: &'a [i64],
    normalizers: &'a [Normalizer],
    share: f32,
    logits_grad: &'a mut [f32],
}

impl WithSimd for Differentiate<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let share = simd.splat_f32s(self.share);
        let rows = self.logits.chunks(self.columns);
        let rows = rows.zip(self.logits_grad.chunks_mut(self.columns));
        let whose = self.targets.iter().zip(self.normalizers);
        for ((logits, logits_grad), (&target, normalizer)) in rows.zip(whose) {
            let highest = simd.splat_f32s(normalizer.highest);
            let logarithm = simd.splat_f32s(normalizer.logarithm);
            map(
                simd,
                [logits],
                logits_grad,
                #[inline(always)]
                |[x]| {
                    let x = simd.sub_f32s(simd.sub_f32s(x, highest), logarithm);
                    simd.mul_f32s(or_zero_below(simd, exp(simd, x), LEAST_PROBABILITY), share)
                },
            );
            logits_grad[target as usize] -= self.share;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sample::{assert_close, doubles, on_threads, quotients, values};

    fn define(columns: usize, logits: &[f64], targets: &[i64]) -> f64 {
        let rows = logits.chunks(columns).zip(targets);
        let losses = rows.map(|(row, &target)| {
            let total: f64 = row.iter().map(|x| x.exp()).sum();
            total.ln() - row[target as usize]
        });
        losses.sum::<f64>() / targets.len() as f64
    }

    fn targets(rows: usize, columns: usize) -> Vec<i64> {
        (0..rows).map(|row| (row * 7 % columns) as i64).collect()
    }

    fn both(shape: [usize; 2], logits: &[f32], targets: &[i64]) -> (f32, Vec<f32>) {
        let mut normalizers = vec![Normalizer::default(); shape[0]];
        let loss = cross_entropy(shape, logits, targets, &mut normalizers).unwrap();
        let mut logits_grad = vec![7.0; logits.len()];
        let from = &normalizers;
        cross_entropy_backward(shape, logits, targets, from, 1.0, &mut logits_grad).unwrap();
        (loss, logits_grad)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn equals_the_definition_and_its_difference_quotients(
            rows in 1_usize..6, columns in 1_usize..70,
        ) {
            let logits: Vec<_> = values(rows * columns, 1).iter().map(|x| 5.0 * x).collect();
            let targets = targets(rows, columns);
            let exact = doubles(&logits);
            let expected = define(columns, &exact, &targets);
            let expected_grad = quotients(&exact, |logits| define(columns, logits, &targets));
            for set in InstructionSet::available() {
                set.choose();
                let (loss, logits_grad) = both([rows, columns], &logits, &targets);
                assert_close(&[loss], &[expected]);
                assert_close(&logits_grad, &expected_grad);
            }
        }
    }

    #[test]
    fn the_same_bits_for_any_number_of_threads() {
        let [rows, columns] = [600, 130];
        let (logits, targets) = (values(rows * columns, 2), targets(rows, columns));
        let run = || both([rows, columns], &logits, &targets);
        let one = on_threads(1, run);
        for threads in [2, 4] {
            assert_eq!(on_threads(threads, run), one);
        }
    }

    #[test]
    fn large_logits_lose_nothing() {
        let (loss, logits_grad) = both([1, 2], &[1e6, 1e6 - 1.0], &[1]);
        let expected = (1.0 + 1.0_f64.exp()).ln();
        assert!((f64::from(loss) - expected).abs() < 1e-6, "{loss}");
        assert!((logits_grad[0] + logits_grad[1]).abs() < 1e-6);
    }

    #[test]
    fn what_is_next_to_impossible_has_no_gradient() {
        let logits: Vec<_> = (0..200).map(|column| -0.5 * column as f32).collect();
        for set in InstructionSet::available() {
            set.choose();
            let (_, logits_grad) = both([1, 200], &logits, &[0]);
            let least = LEAST_PROBABILITY / 2.0;
            assert!(logits_grad.iter().all(|&x| x == 0.0 || x.abs() > least));
            assert!(logits_grad[80] > 0.0 && logits_grad[100] == 0.0, "{set:?}");
        }
    }

    #[test]
    fn of_no_rows_there_is_no_mean() {
        let (loss, logits_grad) = both([0, 3], &[], &[]);
        assert!(loss.is_nan() && logits_grad.is_empty());
    }

    #[test]
    fn a_target_that_is_no_class_is_named() {
        for wrong in [3, -1] {
            let mut normalizers = [Normalizer::default(); 2];
            let error = cross_entropy([2, 3], &[0.0; 6], &[0, wrong], &mut normalizers);
            let message = error.unwrap_err().to_string();
            assert!(message.contains(&format!("class {wrong}")), "{message}");
        }
        assert!(
            cross_entropy([2, 3], &[0.0; 5], &[0, 0], &mut [Normalizer::default(); 2]).is_err()
        );
        assert!(cross_entropy([2, 3], &[0.0; 6], &[0], &mut [Normalizer::default(); 2]).is_err());
    }
}
