//! What a monitor learns of a run, piece by piece.

use everburn_record::{Event, Live, MetricLine, RankLine};
use serde::{Deserialize, Serialize};

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
    Metric(MetricLine),
    /// A line of `ranks.jsonl`.
    Ranks(RankLine),
    /// A line of `events.jsonl`.
    Event(Event),
    /// `live.json`, which is there anew, or of which other ranks are stopped (SIGSTOP) on the machine of the run's folder, or
    /// which cannot be written any more.
    Live(Live),
    /// `report.json`, which comes last.
    Report(serde_json::Value),
    /// That the run was cut off: it continues by its files, and its processes have ended without a word. Comes once.
    CutOff(Event),
    /// Whether a process runs the training. Comes about every second, as a heartbeat.
    Running(bool),
    /// Whether the server of a run of another machine is reached. Never sent: the monitor itself says so.
    Reached(bool),
}
