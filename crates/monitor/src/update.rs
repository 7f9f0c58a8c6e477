//! What a monitor learns of a run, piece by piece.

use everburn_report::{Event, Live, RankLine};
use serde::{Deserialize, Serialize};

/// A line of `metrics.jsonl`, as far as it is understood: an older or newer version may have written it.
///
/// ```
/// let text = r#"{"kind":"step","epoch":1,"step":10,"loss":2.25,"accuracy":0.125,"samples":64,"seconds":0.5,"more":1}"#;
/// let line: everburn_monitor::MetricRecord = serde_json::from_str(text).unwrap();
/// assert_eq!(line.samples_per_second(), Some(128.0));
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MetricRecord {
    /// `step`, `train`, `validation` or `test`.
    pub kind: String,
    /// The epoch, counted from 1.
    pub epoch: u64,
    /// How many steps have been made over all epochs.
    pub step: u64,
    /// The mean loss of a prediction, in nats; absent where it is no number.
    pub loss: Option<f64>,
    /// The share of predictions that were correct.
    pub accuracy: Option<f64>,
    /// How many samples this is about.
    pub samples: u64,
    /// How many predictions.
    pub predictions: u64,
    /// When it was written, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unix_time_ms: Option<u64>,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// For how long rank 0 waited for others.
    pub waited: f64,
    /// The part of that which is the exchange of gradients.
    pub exposed: f64,
    /// For how long gradients were being exchanged, hidden or not.
    pub communication: f64,
    /// How many bytes of gradients rank 0 handed to the exchange.
    pub gradient_bytes: u64,
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
    /// How many samples a second all ranks together read, where that is known.
    #[must_use]
    pub fn samples_per_second(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.samples as f64 / self.seconds)
    }
}

/// A piece of what is to be known of a run: what a monitor is fed with, and what goes over the wire.
///
/// ```
/// use everburn_monitor::Update;
///
/// let update = Update::Running(true);
/// assert_eq!(serde_json::to_string(&update).unwrap(), r#"{"running":true}"#);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Update {
    /// What is known so far belongs to another run, or is about to be told again.
    Reset,
    /// What the run is: its name, and the text of its `config.toml`.
    Run {
        /// The name of its folder.
        name: String,
        /// The text of `config.toml`.
        config: String,
    },
    /// A line of `metrics.jsonl`.
    Metric(MetricRecord),
    /// A line of `ranks.jsonl`.
    Ranks(RankLine),
    /// A line of `events.jsonl`.
    Event(Event),
    /// `live.json`, which is there anew.
    Live(Live),
    /// `report.json`, which comes last.
    Report(serde_json::Value),
    /// Whether a process has the run. Comes about every second, as a sign of life.
    Running(bool),
    /// Whether the server of a run of another machine is reached. Never sent: the monitor itself says so.
    Reached(bool),
}
