//! `metrics.jsonl`: what was measured.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::number::{number_or_nan, numbers_or_nan};

/// Which part of the data a line of `metrics.jsonl` is about.
///
/// ```
/// use everburn_record::{MetricKind, MetricLine};
///
/// fn is_of_an_epoch(line: &MetricLine) -> bool {
///     matches!(line.kind, MetricKind::Train | MetricKind::Validation)
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MetricKind {
    /// One training step.
    #[default]
    Step,
    /// All training steps of an epoch.
    Train,
    /// The validation after an epoch.
    Validation,
    /// The test at the end.
    Test,
}

/// A line of `metrics.jsonl`. All numbers are over the samples of all ranks. An older version may have written fewer of them.
///
/// ```
/// let text = r#"{"kind":"step","epoch":1,"step":10,"loss":2.25,"accuracy":0.125,"samples":64,"seconds":0.5,"more":1}"#;
/// let line: everburn_record::MetricLine = serde_json::from_str(text).unwrap();
/// assert_eq!(line.samples_per_second(), Some(128.0));
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct MetricLine {
    /// What the line is about.
    pub kind: MetricKind,
    /// The epoch, counted from 1.
    #[serde(default)]
    pub epoch: usize,
    /// How many steps have been made over all epochs.
    pub step: usize,
    /// The mean loss of a prediction: of a cross entropy, in nats. NaN, in the file `null`, where it is not a number.
    #[serde(default = "not_a_number", deserialize_with = "number_or_nan")]
    pub loss: f64,
    /// The share of predictions that were correct, where the objective has such.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// The other metrics of the objective, by name; NaN, in the file `null`, where one is not a number.
    #[serde(
        default,
        deserialize_with = "numbers_or_nan",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub metrics: BTreeMap<String, f64>,
    /// How many samples this is about.
    #[serde(default)]
    pub samples: u64,
    /// How many predictions: as many for images, one for each token of a text.
    #[serde(default)]
    pub predictions: u64,
    /// When it was written, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix_time_ms: Option<u64>,
    /// What it cost rank 0.
    #[serde(flatten)]
    pub cost: StepCost,
    /// The learning rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// The norm of all gradients together, before they were clipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient_norm: Option<f64>,
    /// What the loss of the next step is multiplied by, where losses are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// How many steps were skipped so far because gradients were too large, where losses are scaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped_steps: Option<u64>,
}

impl MetricLine {
    /// The file's name in the folder of a run.
    pub const FILE: &str = "metrics.jsonl";

    /// The loss, where it is a number.
    pub fn known_loss(&self) -> Option<f64> {
        (!self.loss.is_nan()).then_some(self.loss)
    }

    /// How many samples per second all ranks together read, where that is known.
    pub fn samples_per_second(&self) -> Option<f64> {
        let known = self.samples > 0 && self.cost.seconds > 0.0;
        known.then(|| self.samples as f64 / self.cost.seconds)
    }
}

fn not_a_number() -> f64 {
    f64::NAN
}

/// What a training step cost a rank.
///
/// ```
/// use everburn_record::StepCost;
///
/// let cost = StepCost { seconds: 0.5, exposed: 0.1, ..StepCost::default() };
/// assert_eq!((cost + cost).exposed, 0.2);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepCost {
    /// How long the step took, in seconds.
    pub seconds: f64,
    /// How long the rank stood still for other ranks, in seconds: for gradients and for the verdict
    /// on the step.
    pub waited: f64,
    /// The part of `waited` that is the exchange of gradients which the backward pass did not hide,
    /// in seconds.
    pub exposed: f64,
    /// How long gradients were being exchanged, hidden or not, in seconds.
    pub communication: f64,
    /// How many bytes of gradients the rank handed to the exchange, after compression.
    pub gradient_bytes: u64,
    /// The most memory that a rank has used, in bytes; absent where no rank can measure it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_memory: Option<u64>,
}

impl std::ops::Add for StepCost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            seconds: self.seconds + other.seconds,
            waited: self.waited + other.waited,
            exposed: self.exposed + other.exposed,
            communication: self.communication + other.communication,
            gradient_bytes: self.gradient_bytes + other.gradient_bytes,
            peak_memory: self.peak_memory.max(other.peak_memory),
        }
    }
}

impl std::ops::AddAssign for StepCost {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}
