//! A step of Adam (Kingma and Ba 2015) or AdamW (Loshchilov and Hutter 2019) in one pass over memory.
//!
//! Each operation is rounded for itself and in the order of `burn-optim`, so that the bits are those that
//! Burn's optimizers yield by fifteen passes. Only what leads to subnormal numbers becomes 0, because a processor takes
//! several times as long with them: gradients below 2^-58, whose squares are such, and moments below the smallest normal
//! number, which gradients that vanish leave for ever after some 800 steps.

use pulp::{Simd, WithSimd};

use crate::elementary::or_zero_below;
use crate::error::{KernelError, check_length};
use crate::isa::InstructionSet;
use crate::lanes::{load, store};
use crate::parallel::each_task;

const ADAM: &str = "adam";

/// How many values a task takes.
const PIECE: usize = 1 << 14;

/// What a value costs, in values moved.
const COST: usize = 4;

/// Gradients below count as 0: 2^-58. The square of this one times 0.001 is just normal.
const LEAST_GRADIENT: f32 = 3.469_447e-18;

/// Where weight decay acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightDecay {
    /// In the gradient, as in Adam.
    Gradient,
    /// On the parameter, as in AdamW.
    Parameter,
}

/// The numbers of a step.
///
/// ```
/// use everburn_kernels::{Adam, WeightDecay};
///
/// let step = Adam {
///     betas: [0.9, 0.999],
///     epsilon: 1e-8,
///     learning_rate: 0.1,
///     weight_decay: 0.0,
///     decays: WeightDecay::Parameter,
///     time: 1,
/// };
/// let (mut parameter, mut moments) = ([0.0], [[0.0]; 2]);
/// let [first, second] = &mut moments;
/// everburn_kernels::adam(&step, [&[1.0], &[4.0]], [&[], &[]], [&mut parameter, first, second])?;
/// assert!((parameter[0] - 0.9).abs() < 1e-6);
/// # Ok::<(), everburn_kernels::KernelError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// How much of the two moments stays.
    pub betas: [f32; 2],
    /// What is added to the root of the second moment.
    pub epsilon: f32,
    /// The learning rate.
    pub learning_rate: f64,
    /// How much of a parameter is taken away, or added to its gradient.
    pub weight_decay: f32,
    /// Which of the two.
    pub decays: WeightDecay,
    /// Which step it is, counted from 1. In the first the moments are not read.
    pub time: i32,
}

/// What the numbers of a step come to.
#[derive(Clone, Copy, Debug, PartialEq)]
struct AdamFactors {
    /// What a parameter is multiplied by before its update is taken away, if anything.
    keep: Option<f32>,
    /// What a parameter is multiplied by before it is added to its gradient, if it is.
    penalty: Option<f32>,
    /// What the first moment is multiplied by (Adam) or divided by (AdamW).
    first: f32,
    /// What the second moment is divided by, in AdamW.
    second: f32,
    /// What is added to the root.
    epsilon: f32,
    /// The learning rate.
    rate: f32,
}

impl Adam {
    /// In Burn's order of rounding.
    fn factors(&self) -> AdamFactors {
        let [beta_1, beta_2] = self.betas;
        let [left_1, left_2] = [beta_1, beta_2].map(|beta| 1.0 - beta.powi(self.time));
        let rate = self.learning_rate as f32;
        let decay = self.learning_rate * f64::from(self.weight_decay);
        match self.decays {
            WeightDecay::Gradient => AdamFactors {
                keep: None,
                penalty: (self.weight_decay != 0.0).then_some(self.weight_decay),
                first: left_2.sqrt() / left_1,
                second: 1.0,
                epsilon: self.epsilon * left_2.sqrt(),
                rate,
            },
            WeightDecay::Parameter => AdamFactors {
                keep: (decay != 0.0).then_some((1.0 - decay) as f32),
                penalty: None,
                first: left_1,
                second: left_2,
                epsilon: self.epsilon,
                rate,
            },
        }
    }
}

/// Writes a parameter and its two moments after a step to `updated`, from the parameter and its gradient,
/// `given`, and the moments before it.
///
/// # Errors
/// Slices of different lengths.
pub fn adam(
    step: &Adam,
    given: [&[f32]; 2],
    moments: [&[f32]; 2],
    updated: [&mut [f32]; 3],
) -> Result<(), KernelError> {
    let set = InstructionSet::best();
    let length = given[0].len();
    check_length(ADAM, "gradient", length, given[1].len())?;
    let is_first = step.time <= 1;
    for moment in moments.iter().filter(|_| !is_first) {
        check_length(ADAM, "moments", length, moment.len())?;
    }
    for values in &updated {
        check_length(ADAM, "updated", length, values.len())?;
    }
    let [parameter, first, second] = updated.map(|values| values.chunks_mut(PIECE));
    let tasks = parameter.zip(first).zip(second).enumerate().collect();
    let factors = step.factors();
    each_task(
        tasks,
        COST * length,
        |(index, ((parameter, first), second))| {
            let range = index * PIECE..index * PIECE + parameter.len();
            set.run(Task {
                step,
                factors,
                given: given.map(|values| &values[range.clone()]),
                moments: (!is_first).then(|| moments.map(|values| &values[range.clone()])),
                updated: [parameter, first, second],
            });
        },
    );
    Ok(())
}

struct Task<'a> {
    step: &'a Adam,
    factors: AdamFactors,
    given: [&'a [f32]; 2],
    moments: Option<[&'a [f32]; 2]>,
    updated: [&'a mut [f32]; 3],
}

impl WithSimd for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let splat = |value| simd.splat_f32s(value);
        let AdamFactors {
            keep,
            penalty,
            first: by_first,
            second: by_second,
            epsilon,
            rate,
        } = self.factors;
        let divides = self.step.decays == WeightDecay::Parameter;
        let betas = self.step.betas.map(splat);
        let others = self.step.betas.map(|beta| splat(1.0 - beta));
        let [by_first, by_second] = [by_first, by_second].map(splat);
        let [epsilon, rate] = [epsilon, rate].map(splat);
        let [keep, penalty] = [keep, penalty].map(|factor| factor.map(splat));
        let [to_parameter, to_first, to_second] = self.updated;
        for start in (0..to_parameter.len()).step_by(S::F32_LANES) {
            let end = to_parameter.len().min(start + S::F32_LANES);
            let [parameter, mut gradient] =
                self.given.map(|values| load(simd, &values[start..end]));
            if let Some(penalty) = penalty {
                gradient = simd.add_f32s(simd.mul_f32s(parameter, penalty), gradient);
            }
            let gradient = or_zero_below(simd, gradient, LEAST_GRADIENT);
            let mut first = simd.mul_f32s(gradient, others[0]);
            let mut second = simd.mul_f32s(simd.mul_f32s(gradient, gradient), others[1]);
            if let Some(moments) = self.moments {
                let [before_1, before_2] = moments.map(|values| load(simd, &values[start..end]));
                first = simd.add_f32s(simd.mul_f32s(before_1, betas[0]), first);
                second = simd.add_f32s(simd.mul_f32s(before_2, betas[1]), second);
            }
            let first = or_zero_below(simd, first, f32::MIN_POSITIVE);
            let second = or_zero_below(simd, second, f32::MIN_POSITIVE);
            let (above, below) = match divides {
                true => (
                    simd.div_f32s(first, by_first),
                    simd.div_f32s(second, by_second),
                ),
                false => (simd.mul_f32s(first, by_first), second),
            };
            let below = simd.add_f32s(simd.sqrt_f32s(below), epsilon);
            let update = simd.mul_f32s(simd.div_f32s(above, below), rate);
            let kept = match keep {
                Some(keep) => simd.mul_f32s(parameter, keep),
                None => parameter,
            };
            store(
                simd,
                &mut to_parameter[start..end],
                simd.sub_f32s(kept, update),
            );
            store(simd, &mut to_first[start..end], first);
            store(simd, &mut to_second[start..end], second);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{on_threads, values};

    /// Of one value, an operation at a time.
    fn expected(step: &Adam, [p, g]: [f32; 2], moments: Option<[f32; 2]>) -> [f32; 3] {
        let factors = step.factors();
        let [beta_1, beta_2] = step.betas;
        let g = factors.penalty.map_or(g, |penalty| p * penalty + g);
        let g = if g.abs() < LEAST_GRADIENT { 0.0 } else { g };
        let (mut first, mut second) = (g * (1.0 - beta_1), g * g * (1.0 - beta_2));
        if let Some([before_1, before_2]) = moments {
            first += before_1 * beta_1;
            second += before_2 * beta_2;
        }
        let [first, second] =
            [first, second].map(|moment: f32| match moment.abs() < f32::MIN_POSITIVE {
                true => 0.0,
                false => moment,
            });
        let delta = match step.decays {
            WeightDecay::Parameter => {
                first / factors.first / ((second / factors.second).sqrt() + factors.epsilon)
            }
            WeightDecay::Gradient => first * factors.first / (second.sqrt() + factors.epsilon),
        };
        let kept = factors.keep.map_or(p, |keep| p * keep);
        [kept - delta * factors.rate, first, second]
    }

    #[test]
    fn values_are_those_of_single_operations_on_any_number_of_threads() {
        let length = 3 * PIECE + 7;
        let [p, mut g, mut m, v] = [1, 2, 3, 4].map(|seed| values(length, seed));
        let mut v: Vec<f32> = v.iter().map(|value| value.abs()).collect();
        // Of a weight whose gradient has vanished.
        for index in (0..length).step_by(5) {
            g[index] = 0.0;
            m[index] *= f32::MIN_POSITIVE;
            v[index] *= f32::MIN_POSITIVE;
        }
        // Of a class that the model has excluded, but for a little.
        for index in (1..length).step_by(5) {
            g[index] *= 1e-17;
            m[index] = 0.0;
            v[index] = 0.0;
        }
        assert!(!(LEAST_GRADIENT * LEAST_GRADIENT * 0.001).is_subnormal());
        for decays in [WeightDecay::Gradient, WeightDecay::Parameter] {
            for (time, weight_decay) in [(1, 0.0), (1, 0.1), (7, 0.1)] {
                let step = Adam {
                    betas: [0.9, 0.99],
                    epsilon: 1e-8,
                    learning_rate: 0.003,
                    weight_decay,
                    decays,
                    time,
                };
                for set in InstructionSet::available() {
                    let on = |threads| {
                        on_threads(threads, || {
                            set.choose();
                            let mut updated = [(); 3].map(|()| vec![f32::NAN; length]);
                            let [a, b, c] = &mut updated;
                            adam(&step, [&p, &g], [&m, &v], [a, b, c]).unwrap();
                            updated
                        })
                    };
                    let alone = on(1);
                    let mut moments = alone[1..].iter().flatten();
                    assert!(!moments.any(|moment| moment.is_subnormal()), "{set:?}");
                    for index in 0..length {
                        let moments = (time > 1).then_some([m[index], v[index]]);
                        let expected = expected(&step, [p[index], g[index]], moments);
                        let found = [0, 1, 2].map(|of: usize| alone[of][index]);
                        assert_eq!(found, expected, "{set:?} {step:?} {index}");
                    }
                    assert_eq!(alone, on(3));
                }
            }
        }
    }

    #[test]
    fn other_lengths_are_refused() {
        let step = Adam {
            betas: [0.9, 0.99],
            epsilon: 1e-8,
            learning_rate: 0.003,
            weight_decay: 0.0,
            decays: WeightDecay::Gradient,
            time: 2,
        };
        let (two, three) = ([0.0; 2], [0.0; 3]);
        let try_with = |gradient: &[f32], moment: &[f32], length: usize| {
            let mut updated = [(); 3].map(|()| vec![0.0; length]);
            let [a, b, c] = &mut updated;
            adam(&step, [&two, gradient], [moment, moment], [a, b, c]).is_ok()
        };
        assert!(try_with(&two, &two, 2));
        assert!(!try_with(&three, &two, 2));
        assert!(!try_with(&two, &three, 2));
        assert!(!try_with(&two, &two, 3));
    }
}
