//! `report.json`: what came out of a run.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{ShardingReport, file, number_or_nan, numbers_or_nan};

/// The longest file that is read: it has some thousand bytes, and a hundred for each rank where the state is sharded.
const LONGEST: u64 = 1 << 24;

/// The versions with which a run was made.
///
/// ```
/// use everburn_record::Versions;
///
/// fn show(versions: &Versions) {
///     println!("Everburn {}, Burn {}", versions.everburn, versions.burn);
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// Everburn's version.
    #[serde(default)]
    pub everburn: String,
    /// Burn's version.
    #[serde(default)]
    pub burn: String,
}

impl Versions {
    const fn not_said() -> Self {
        Self {
            everburn: String::new(),
            burn: String::new(),
        }
    }
}

impl Default for Versions {
    fn default() -> Self {
        Self {
            everburn: env!("CARGO_PKG_VERSION").to_string(),
            burn: "0.22.1".to_string(),
        }
    }
}

/// What came out of a run: the contents of `report.json`. An older or newer version may have written what is read: of what it
/// lacks, numbers are 0 and texts are empty.
///
/// ```
/// use everburn_record::TrainingReport;
///
/// let report = TrainingReport { epochs: 3, ..TrainingReport::default() };
/// let text = serde_json::to_string(&report).unwrap();
/// assert_eq!(serde_json::from_str::<TrainingReport>(&text).unwrap(), report);
/// let other: TrainingReport = serde_json::from_str(r#"{"model":"mnist","more":[]}"#).unwrap();
/// assert_eq!((&*other.model, other.steps), ("mnist", 0));
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, remote = "Self")]
pub struct TrainingReport {
    /// The model's name.
    pub model: String,
    /// The name of the data set that was really used: `mnist` or `synthetic-digits`, say.
    pub dataset: String,
    /// Where that data set came from and why it was taken.
    pub dataset_origin: String,
    /// The share of correct predictions on the test samples: of classes, or of next tokens. Absent if
    /// the run was stopped, or its objective has no such share.
    pub test_accuracy: Option<f64>,
    /// The mean loss of a prediction on the test samples: of a cross entropy, in nats. Absent if the run was stopped.
    pub test_loss: Option<f64>,
    /// The other metrics of the objective on the test samples, by name; NaN, in the file `null`, where one is no
    /// number.
    #[serde(
        deserialize_with = "numbers_or_nan",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub test_metrics: BTreeMap<String, f64>,
    /// How many test samples there were, over all ranks.
    pub test_samples: u64,
    /// How many predictions were made on them: as many for images, one for each token of a text.
    pub test_predictions: u64,
    /// The best epoch by the validation.
    pub best_epoch: Option<BestEpoch>,
    /// By which metric it is the best, as `training.best_by` has it; absent where that is the loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_by: Option<String>,
    /// Training samples of all ranks divided by the seconds spent on training steps.
    #[serde(deserialize_with = "number_or_nan")]
    pub samples_per_second: f64,
    /// How many ranks there were.
    pub world_size: usize,
    /// The size of the global batch.
    pub batch_size: usize,
    /// The optimizer was the task's own (`Task::optimizer`), and not that of the configuration.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub own_optimizer: bool,
    /// The schedule of the learning rate was the task's own (`Task::schedule`), and not that of the configuration.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub own_schedule: bool,
    /// How many epochs were finished, those before a resume included.
    pub epochs: usize,
    /// The epoch in which the run ended, where it ended within one: what progress shows is the number of this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unfinished_epoch: Option<usize>,
    /// How many steps were made, those before a resume included.
    pub steps: usize,
    /// How many of them were made since the run was begun or resumed: what times and bytes are of. A rank 0 that was lost and
    /// started again has those of the others.
    #[serde(default = "not_said")]
    pub steps_since_resume: usize,
    /// Seconds to the end since the run was begun or resumed.
    #[serde(deserialize_with = "number_or_nan")]
    pub seconds: f64,
    /// Seconds spent on training steps.
    #[serde(deserialize_with = "number_or_nan")]
    pub train_seconds: f64,
    /// Seconds for which rank 0 waited for gradients that the backward pass did not hide.
    #[serde(deserialize_with = "number_or_nan")]
    pub exposed_seconds: f64,
    /// How many bytes of gradients rank 0 handed to the exchange, after compression.
    pub gradient_bytes: u64,
    /// By which way gradients travelled between GPUs, and why; absent on the processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gradients_by: Option<String>,
    /// What ranks exchanged that took steps by themselves, since the run was begun or resumed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outer: Option<OuterReport>,
    /// What each rank has kept of the training's state, where it has kept a part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sharding: Option<ShardingReport>,
    /// The test was of the averaged model.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub averaged: bool,
    /// The most memory that a rank has used in a training step, in bytes; absent where none can measure it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_memory: Option<u64>,
    /// How many steps were skipped because gradients were too large for `f16`; absent in other precisions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped_steps: Option<u64>,
    /// Whether the run came to its end, its test included: also where it stopped early because it learnt nothing more,
    /// and not where a user stopped it. Reports of before this was recorded have it if they have a test accuracy.
    pub finished: bool,
    /// Why the run ended before its last epoch, if it did.
    pub stopped: Option<String>,
    /// The epoch after which the run was resumed, if it was.
    pub resumed_after_epoch: Option<usize>,
    /// The run was resumed with other data than it had before: test samples may be among those that it has learnt from.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub data_changed: bool,
    /// The versions with which the run was made.
    #[serde(default = "Versions::not_said")]
    pub versions: Versions,
}

impl Serialize for TrainingReport {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for TrainingReport {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut report = Self::deserialize(deserializer)?;
        // An older version has recorded nothing else: what was tested had come to its end.
        report.finished |= report.test_accuracy.is_some();
        if report.steps_since_resume == not_said() {
            report.steps_since_resume = report.steps;
        }
        Ok(report)
    }
}

/// In place of a number of steps that a file lacks.
const fn not_said() -> usize {
    usize::MAX
}

impl TrainingReport {
    /// The file's name in the folder of a run.
    pub const FILE: &str = "report.json";

    /// That of the run in a folder.
    ///
    /// ```
    /// use everburn_record::TrainingReport;
    ///
    /// let run = tempfile::tempdir()?;
    /// assert!(TrainingReport::of_run(run.path()).is_err());
    /// std::fs::write(run.path().join(TrainingReport::FILE), r#"{"steps":30}"#)?;
    /// assert_eq!(TrainingReport::of_run(run.path())?.steps, 30);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// The system's, or that there is something else in the file.
    pub fn of_run(run: &Path) -> io::Result<Self> {
        let text = file::read_text(&run.join(Self::FILE), LONGEST)?;
        Ok(serde_json::from_str(&text)?)
    }

    /// The step after which the run was resumed last: times, bytes and the peak of memory are of the steps since then.
    ///
    /// ```
    /// use everburn_record::TrainingReport;
    ///
    /// let report = TrainingReport { steps: 30, steps_since_resume: 10, ..TrainingReport::default() };
    /// assert_eq!(report.resumed_after_step(), Some(20));
    /// ```
    pub fn resumed_after_step(&self) -> Option<usize> {
        let before = self.steps.checked_sub(self.steps_since_resume)?;
        (before > 0).then_some(before)
    }
}

/// What ranks exchanged that took steps by themselves, and became equal in outer steps.
///
/// ```
/// use everburn_record::OuterReport;
///
/// // Gradients of 1,000 steps, and parameters of 20.
/// let report = OuterReport {
///     steps: 20,
///     bytes: 80_000,
///     bytes_of_checkpoints: 0,
///     bytes_of_gradients: 4_000_000,
/// };
/// assert_eq!(report.saved(), 3_920_000);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OuterReport {
    /// How many outer steps there were; with fragments, one for each exchange of a fragment.
    pub steps: usize,
    /// How many bytes of differences a rank handed to the exchange.
    pub bytes: u64,
    /// How many bytes of the optimizer's state and of what fewer bits have rounded away it handed over besides, to be equal at
    /// checkpoints.
    pub bytes_of_checkpoints: u64,
    /// How many bytes of gradients it would have handed over, had it done so in each step.
    pub bytes_of_gradients: u64,
}

impl OuterReport {
    /// How many bytes were not exchanged.
    pub const fn saved(&self) -> u64 {
        self.bytes_of_gradients
            .saturating_sub(self.bytes + self.bytes_of_checkpoints)
    }
}

/// The best epoch so far, by the validation.
///
/// ```
/// use everburn_record::TrainingReport;
///
/// fn best(report: &TrainingReport) -> Option<usize> {
///     report.best_epoch.map(|best| best.epoch)
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BestEpoch {
    /// The epoch, counted from 1.
    pub epoch: usize,
    /// Its mean validation loss: of a cross entropy, in nats.
    pub validation_loss: f64,
    /// The metric by which it is the best, where that is another than the loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_before_ends_were_recorded_has_ended_if_it_was_tested() {
        let mut report = TrainingReport {
            test_accuracy: Some(0.5),
            finished: true,
            ..TrainingReport::default()
        };
        let old = |report: &TrainingReport| {
            let text = serde_json::to_string(report).unwrap();
            let (begin, end) = text.split_once(r#""finished":"#).unwrap();
            let (_, end) = end.split_once(',').unwrap();
            serde_json::from_str::<TrainingReport>(&format!("{begin}{end}")).unwrap()
        };
        assert_eq!(old(&report), report);
        (report.test_accuracy, report.finished) = (None, false);
        assert!(!old(&report).finished);
        // And one of an objective without classes says so itself.
        report.finished = true;
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(
            serde_json::from_str::<TrainingReport>(&text).unwrap(),
            report
        );
    }

    #[test]
    fn what_a_file_lacks_is_not_known() {
        let text = r#"{"steps":30,"samples_per_second":null,"more":[]}"#;
        let report: TrainingReport = serde_json::from_str(text).unwrap();
        assert_eq!(
            (report.steps_since_resume, report.resumed_after_step()),
            (30, None)
        );
        assert!(report.samples_per_second.is_nan() && report.seconds == 0.0);
        assert_eq!((report.model.as_str(), report.best_by), ("", None));
        assert_eq!(report.versions, Versions::not_said());
        let whole = TrainingReport {
            best_by: Some("max:iou".into()),
            sharding: Some(ShardingReport::default()),
            versions: Versions::default(),
            ..TrainingReport::default()
        };
        let text = serde_json::to_string(&whole).unwrap();
        assert!(text.contains(r#""best_by":"max:iou""#), "{text}");
        assert_eq!(
            serde_json::from_str::<TrainingReport>(&text).unwrap(),
            whole
        );
    }
}
