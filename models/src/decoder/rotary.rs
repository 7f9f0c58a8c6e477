//! Rotary positions (Su et al. 2021, section 3.4.2).

use std::cell::RefCell;
use std::f64::consts::TAU;

use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_nn::rope;
use serde::{Deserialize, Deserializer, Serialize};

/// How the angles of rotary positions change for texts that are longer than those a model learned from.
///
/// ```
/// # mod everburn { pub use everburn_models as models; }
/// use everburn::models::decoder::RotaryScaling;
///
/// let scaling = RotaryScaling::Linear { factor: 4.0 };
/// assert_eq!(scaling.frequency(1.0), 0.25);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum RotaryScaling {
    /// They do not.
    #[default]
    #[serde(deserialize_with = "no_numbers")]
    None,
    /// All positions are divided by `factor` (Chen et al. 2023, section 2.3).
    Linear {
        /// By how much texts are longer.
        factor: f64,
    },
    /// Slow angles are divided by `factor`, fast ones stay, and those between pass from one to the other (Llama 3.1).
    Llama3 {
        /// By how much texts are longer.
        factor: f64,
        /// An angle that turns less often than this in the original context is slow.
        low_frequency: f64,
        /// An angle that turns more often than this in the original context is fast.
        high_frequency: f64,
        /// The context that the model learned with, in tokens.
        original_context: usize,
    },
}

/// Of a kind without numbers, serde would take any.
fn no_numbers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct NoNumbers {}
    NoNumbers::deserialize(deserializer).map(|NoNumbers {}| ())
}

impl RotaryScaling {
    /// What becomes of an angle that grows by `frequency` from one token to the next, in radians.
    pub fn frequency(&self, frequency: f64) -> f64 {
        match *self {
            Self::None => frequency,
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 {
                factor,
                low_frequency,
                high_frequency,
                original_context,
            } => {
                let turns = original_context as f64 * frequency / TAU;
                let fast = (turns - low_frequency) / (high_frequency - low_frequency);
                let fast = fast.clamp(0.0, 1.0);
                frequency * (fast + (1.0 - fast) / factor)
            }
        }
    }

    /// Whether all its numbers can be computed with.
    pub(crate) fn is_sound(&self) -> bool {
        let positive = |x: f64| x.is_finite() && x > 0.0;
        match *self {
            Self::None => true,
            Self::Linear { factor } => positive(factor),
            Self::Llama3 {
                factor,
                low_frequency,
                high_frequency,
                original_context,
            } => {
                positive(factor)
                    && positive(low_frequency)
                    && high_frequency.is_finite()
                    && high_frequency > low_frequency
                    && original_context > 0
            }
        }
    }
}

/// Turns pairs of numbers by angles that grow with the position. Number `i` of the first half of a head goes with
/// number `i` of the second half.
pub(crate) struct Rotation {
    cos: Tensor<4>,
    sin: Tensor<4>,
}

/// What the angles depend on.
#[derive(Clone, PartialEq)]
struct Angles {
    start: usize,
    length: usize,
    half: usize,
    base: f64,
    scaling: RotaryScaling,
}

/// Cosines and sines.
type Tables = [Vec<f32>; 2];

thread_local! {
    /// The last ones: all layers have the same, in each step.
    static LAST: RefCell<Option<(Angles, Tables)>> = const { RefCell::new(None) };
}

impl Angles {
    fn compute(&self) -> Tables {
        let Self {
            start,
            length,
            half,
            base,
            scaling,
        } = *self;
        let angle = |index: usize| {
            let (position, pair) = (start + index / half, index % half);
            let slowness = base.powf(pair as f64 / half as f64);
            match scaling {
                RotaryScaling::None => position as f64 / slowness,
                scaling => position as f64 * scaling.frequency(slowness.recip()),
            }
        };
        let table = |f: fn(f64) -> f64| {
            (0..length * half)
                .map(|index| f(angle(index)) as f32)
                .collect()
        };
        [table(f64::cos), table(f64::sin)]
    }

    fn tables(self) -> Tables {
        LAST.with_borrow_mut(|last| match last {
            Some((angles, tables)) if *angles == self => tables.clone(),
            _ => {
                let tables = self.compute();
                *last = Some((self, tables.clone()));
                tables
            }
        })
    }
}

impl Rotation {
    /// For `length` tokens after `start` others. The angles fall by `base` from the first pair to the last.
    pub(crate) fn new(
        (start, length): (usize, usize),
        head_width: usize,
        base: f64,
        scaling: RotaryScaling,
        device: &Device,
    ) -> Self {
        let half = head_width / 2;
        let angles = Angles {
            start,
            length,
            half,
            base,
            scaling,
        };
        let [cos, sin] = angles
            .tables()
            .map(|values| Tensor::from_data(TensorData::new(values, [1, 1, length, half]), device));
        Self { cos, sin }
    }

    /// # Shapes
    /// - x, output: `[B, heads, T, head_width]`
    pub(crate) fn turn(&self, x: Tensor<4>) -> Tensor<4> {
        rope(x, self.cos.clone(), self.sin.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_llama_3_fast_angles_stay_and_slow_ones_are_divided() {
        let scaling = RotaryScaling::Llama3 {
            factor: 8.0,
            low_frequency: 1.0,
            high_frequency: 4.0,
            original_context: 8192,
        };
        assert!(scaling.is_sound());
        assert_eq!(scaling.frequency(1.0), 1.0);
        let slow = TAU / 8192.0 / 2.0;
        assert!((scaling.frequency(slow) - slow / 8.0).abs() < 1e-12);
        // Halfway between one and four turns.
        let between = 2.5 * TAU / 8192.0;
        let expected = between * (0.5 + 0.5 / 8.0);
        assert!((scaling.frequency(between) - expected).abs() < 1e-12);
    }

    #[test]
    fn a_position_behind_others_has_the_angle_that_it_has_among_them() {
        let device = Device::flex();
        let x = Tensor::<4>::ones([1, 1, 3, 4], &device);
        let all = Rotation::new((0, 3), 4, 100.0, RotaryScaling::None, &device).turn(x.clone());
        let last = Rotation::new((2, 1), 4, 100.0, RotaryScaling::None, &device)
            .turn(x.slice_dim(2, 2..3));
        assert_eq!(all.slice_dim(2, 2..3).into_data(), last.into_data());
    }
}
