//! `metrics.jsonl`: what was measured.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use everburn_record::{MetricKind, MetricLine, file, unix_time_ms};

use crate::config::checkpoint_failure::OnCheckpointFailure;
use crate::error::{TrainError, with_hint};
use crate::metrics::sums::MetricSums;

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

impl MetricSums {
    /// These sums as a line that is written now.
    pub(crate) fn line(&self, kind: MetricKind, epoch: usize, step: usize) -> MetricLine {
        MetricLine {
            kind,
            epoch,
            step,
            loss: self.mean_loss(),
            accuracy: self.accuracy(),
            metrics: self.other_means(),
            samples: self.samples,
            predictions: self.predictions,
            unix_time_ms: Some(unix_time_ms()),
            ..MetricLine::default()
        }
    }
}

/// `metrics.jsonl`, open for writing.
#[derive(Debug)]
pub(crate) struct MetricsFile {
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
    pub(crate) fn write(&mut self, line: &MetricLine) -> Result<(), TrainError> {
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
            ..sums.line(MetricKind::Validation, 1, 10)
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
