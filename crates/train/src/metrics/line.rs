//! `metrics.jsonl`: what was measured.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use everburn_record::{file, numbers_or_nan, unix_time_ms};
use serde::{Deserialize, Serialize};

use crate::config::checkpoint_failure::OnCheckpointFailure;
use crate::error::{TrainError, with_hint};
use crate::metrics::step_report::StepCost;
use crate::metrics::sums::MetricSums;

/// Which part of the data a line of `metrics.jsonl` is about.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{MetricKind, MetricLine};
///
/// fn is_of_an_epoch(line: &MetricLine) -> bool {
///     matches!(line.kind, MetricKind::Train | MetricKind::Validation)
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MetricKind {
    /// One training step.
    Step,
    /// All training steps of an epoch.
    Train,
    /// The validation after an epoch.
    Validation,
    /// The test at the end.
    Test,
}

/// How many epochs are over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EpochsOver {
    /// Of how many all steps are made.
    pub(crate) trained: usize,
    /// How many are validated too.
    pub(crate) validated: usize,
}

impl EpochsOver {
    /// Whether what a line is about is done, and will not come again.
    pub(crate) fn includes(self, line: &MetricLine) -> bool {
        match line.kind {
            MetricKind::Step => true,
            MetricKind::Train => line.epoch <= self.trained,
            MetricKind::Validation | MetricKind::Test => line.epoch <= self.validated,
        }
    }
}

/// A line of `metrics.jsonl`. All numbers are over the samples of all ranks.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::MetricLine;
///
/// fn read(line: &str) -> Result<MetricLine, serde_json::Error> {
///     serde_json::from_str(line) // a line of `metrics.jsonl`
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MetricLine {
    /// What the line is about.
    pub kind: MetricKind,
    /// The epoch, counted from 1.
    pub epoch: usize,
    /// How many steps have been made over all epochs.
    pub step: usize,
    /// The mean loss of a prediction: of a cross entropy, in nats.
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
    pub(crate) fn new(kind: MetricKind, epoch: usize, step: usize, sums: &MetricSums) -> Self {
        Self {
            kind,
            epoch,
            step,
            loss: sums.mean_loss(),
            accuracy: sums.accuracy(),
            metrics: sums.other_means(),
            samples: sums.samples,
            predictions: sums.predictions,
            unix_time_ms: Some(unix_time_ms()),
            cost: StepCost::default(),
            learning_rate: None,
            gradient_norm: None,
            loss_scale: None,
            skipped_steps: None,
        }
    }
}

/// `metrics.jsonl`, open for writing.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{MetricLine, MetricsFile, TrainError};
///
/// fn append(file: &mut MetricsFile, line: &MetricLine) -> Result<(), TrainError> {
///     file.write(line)
/// }
/// ```
#[derive(Debug)]
pub struct MetricsFile {
    file: File,
    path: PathBuf,
    on_failure: OnCheckpointFailure,
    /// The line before could not be written, which has been told.
    failing: bool,
}

impl MetricsFile {
    /// Opens the file at its end.
    pub(crate) fn open(path: PathBuf) -> Result<Self, TrainError> {
        let file =
            file::append_to(&path).map_err(|error| TrainError::file("opening", &path, &error))?;
        Ok(Self {
            file,
            path,
            on_failure: OnCheckpointFailure::Stop,
            failing: false,
        })
    }

    /// What happens when a line cannot be written; without this, it is an error.
    pub(crate) fn on_failure(self, on_failure: OnCheckpointFailure) -> Self {
        Self { on_failure, ..self }
    }

    /// Appends a line, which others can read at once.
    ///
    /// # Errors
    /// [`TrainError::Write`] if it cannot be written.
    pub fn write(&mut self, line: &MetricLine) -> Result<(), TrainError> {
        let text = serde_json::to_string(line);
        let mut text = text.map_err(|error| TrainError::write(&self.path, error))?;
        text.push('\n');
        let written = self.append(text.as_bytes());
        let was_failing = std::mem::replace(&mut self.failing, written.is_err());
        match (self.on_failure, written) {
            (_, Ok(())) => Ok(()),
            (OnCheckpointFailure::Continue, Err(_)) if was_failing => Ok(()),
            (policy, Err(error)) => {
                policy.decide(Err(TrainError::write(&self.path, with_hint(&error))))
            }
        }
    }

    /// Appends all of `bytes` or, where the disk takes only some, none of them.
    fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let end = self.file.metadata()?.len();
        self.file.write_all(bytes).inspect_err(|_| {
            // What stays of the line would spoil the next one; it is the first error that is told.
            let _ = self.file.set_len(end);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(sums: &MetricSums) -> String {
        let line = MetricLine {
            unix_time_ms: None,
            ..MetricLine::new(MetricKind::Validation, 1, 10, sums)
        };
        serde_json::to_string(&line).unwrap()
    }

    #[test]
    fn a_line_has_the_metrics_that_there_are() {
        let sums = MetricSums {
            loss_sum: 1.0,
            predictions: 2,
            samples: 2,
            ..MetricSums::default()
        };
        let cost =
            r#""seconds":0.0,"waited":0.0,"exposed":0.0,"communication":0.0,"gradient_bytes":0}"#;
        let begin = r#"{"kind":"validation","epoch":1,"step":10,"loss":0.5"#;
        let counts = r#""samples":2,"predictions":2"#;
        assert_eq!(line(&sums), format!("{begin},{counts},{cost}"));
        let classes = sums.clone().with_metric("accuracy", 1.0, 2.0);
        let expected = format!(r#"{begin},"accuracy":0.5,{counts},{cost}"#);
        assert_eq!(line(&classes), expected);
        let others = sums
            .with_metric("mae", 1.0, 4.0)
            .with_metric("iou", 0.0, 0.0);
        let expected = format!(r#"{begin},"metrics":{{"iou":null,"mae":0.25}},{counts},{cost}"#);
        assert_eq!(line(&others), expected);
        let read: MetricLine = serde_json::from_str(&expected).unwrap();
        assert!(read.metrics["mae"] == 0.25 && read.metrics["iou"].is_nan());
    }
}
