//! `metrics.jsonl`: what was measured.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::number::numbers_or_nan;

/// A line of `metrics.jsonl`, as far as it is understood: an older or newer version may have written it.
///
/// ```
/// let text = r#"{"kind":"step","epoch":1,"step":10,"loss":2.25,"accuracy":0.125,"samples":64,"seconds":0.5,"more":1}"#;
/// let line: everburn_record::MetricRecord = serde_json::from_str(text).unwrap();
/// assert_eq!(line.samples_per_second(), Some(128.0));
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct MetricRecord {
    /// `step`, `train`, `validation` or `test`.
    pub kind: String,
    /// The epoch, counted from 1.
    #[serde(default)]
    pub epoch: u64,
    /// How many steps have been made over all epochs.
    pub step: u64,
    /// The mean loss of a prediction; absent where it is not a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// The share of predictions that were correct, where the objective has such.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// The other metrics of the objective, by name; NaN where one is not a number.
    #[serde(
        default,
        deserialize_with = "numbers_or_nan",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub metrics: BTreeMap<String, f64>,
    /// How many samples this is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// How many predictions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predictions: Option<u64>,
    /// When it was written, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unix_time_ms: Option<u64>,
    /// How long it took, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// For how long rank 0 waited for others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited: Option<f64>,
    /// The part of that which is the exchange of gradients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exposed: Option<f64>,
    /// For how long gradients were being exchanged, hidden or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub communication: Option<f64>,
    /// How many bytes of gradients rank 0 handed to the exchange.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gradient_bytes: Option<u64>,
    /// The most memory that a rank has used, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_memory: Option<u64>,
    /// The learning rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// The norm of all gradients together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gradient_norm: Option<f64>,
}

impl MetricRecord {
    /// The file's name in the folder of a run.
    pub const FILE: &str = "metrics.jsonl";

    /// How many samples per second all ranks together read, where that is known.
    pub fn samples_per_second(&self) -> Option<f64> {
        let seconds = self.seconds.filter(|seconds| *seconds > 0.0)?;
        Some(self.samples? as f64 / seconds)
    }
}
