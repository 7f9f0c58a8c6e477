//! `report.json`: what came out of a run.

use std::collections::BTreeMap;

use everburn_distributed::{HeldBytes, ShardStage};
use everburn_record::numbers_or_nan;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::config::best_by::BestBy;

/// The versions with which a run was made.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::Versions;
///
/// fn show(versions: &Versions) {
///     println!("Everburn {}, Burn {}", versions.everburn, versions.burn);
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// Everburn's version.
    pub everburn: String,
    /// Burn's version.
    pub burn: String,
}

impl Default for Versions {
    fn default() -> Self {
        Self {
            everburn: env!("CARGO_PKG_VERSION").to_string(),
            burn: "0.22.1".to_string(),
        }
    }
}

/// What came out of a run: the contents of `report.json`.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// let report = everburn::train::TrainingReport { epochs: 3, ..Default::default() };
/// let text = serde_json::to_string(&report).unwrap();
/// assert_eq!(serde_json::from_str::<everburn::train::TrainingReport>(&text).unwrap(), report);
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(remote = "Self")]
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
        default,
        deserialize_with = "numbers_or_nan",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub test_metrics: BTreeMap<String, f64>,
    /// How many test samples there were, over all ranks.
    pub test_samples: u64,
    /// How many predictions were made on them: as many for images, one for each token of a text.
    #[serde(default)]
    pub test_predictions: u64,
    /// The best epoch by the validation.
    pub best_epoch: Option<BestEpoch>,
    /// By which metric it is the best; absent where that is the loss.
    #[serde(default, skip_serializing_if = "BestBy::is_loss")]
    pub best_by: BestBy,
    /// Training samples of all ranks divided by the seconds spent on training steps.
    pub samples_per_second: f64,
    /// How many ranks there were.
    pub world_size: usize,
    /// The size of the global batch.
    pub batch_size: usize,
    /// The optimizer was the task's own (`Task::optimizer`), and not that of the configuration.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_optimizer: bool,
    /// The schedule of the learning rate was the task's own (`Task::schedule`), and not that of the configuration.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_schedule: bool,
    /// How many epochs were finished, those before a resume included.
    pub epochs: usize,
    /// The epoch in which the run ended, where it ended within one: what progress shows is the number of this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unfinished_epoch: Option<usize>,
    /// How many steps were made, those before a resume included.
    pub steps: usize,
    /// How many of them were made since the run was begun or resumed: what times and bytes are of. A rank 0 that was lost and
    /// started again has those of the others.
    #[serde(default)]
    pub steps_since_resume: usize,
    /// Seconds to the end since the run was begun or resumed.
    pub seconds: f64,
    /// Seconds spent on training steps.
    pub train_seconds: f64,
    /// Seconds for which rank 0 waited for gradients that the backward pass did not hide.
    #[serde(default)]
    pub exposed_seconds: f64,
    /// How many bytes of gradients rank 0 handed to the exchange, after compression.
    #[serde(default)]
    pub gradient_bytes: u64,
    /// By which way gradients travelled between GPUs, and why; absent on the processor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradients_by: Option<String>,
    /// What ranks exchanged that took steps by themselves, since the run was begun or resumed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outer: Option<OuterReport>,
    /// What each rank has kept of the training's state, where it has kept a part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharding: Option<ShardingReport>,
    /// The test was of the averaged model.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub averaged: bool,
    /// The most memory that a rank has used in a training step, in bytes; absent where none can measure it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory: Option<u64>,
    /// How many steps were skipped because gradients were too large for `f16`; absent in other precisions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped_steps: Option<u64>,
    /// Whether the run came to its end, its test included: also where it stopped early because it learnt nothing more,
    /// and not where a user stopped it. Reports of before this was recorded have it if they have a test accuracy.
    #[serde(default)]
    pub finished: bool,
    /// Why the run ended before its last epoch, if it did.
    pub stopped: Option<String>,
    /// The epoch after which the run was resumed, if it was.
    pub resumed_after_epoch: Option<usize>,
    /// The run was resumed with other data than it had before: test samples may be among those that it has learnt from.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub data_changed: bool,
    /// The versions with which the run was made.
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
        Ok(report)
    }
}

/// What ranks exchanged that took steps by themselves, and became equal in outer steps.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::OuterReport;
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
pub struct OuterReport {
    /// How many outer steps there were; with fragments, one for each exchange of a fragment.
    pub steps: usize,
    /// How many bytes of differences a rank handed to the exchange.
    pub bytes: u64,
    /// How many bytes of the optimizer's state and of what fewer bits have rounded away it handed over besides, to be equal at
    /// checkpoints.
    #[serde(default)]
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

/// What each rank has kept of a training's state, whose parts are on several.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; pub use everburn_train as train; }
/// use everburn::distributed::{HeldBytes, ShardStage};
/// use everburn::train::ShardingReport;
///
/// let held = HeldBytes { optimizer: 800, ..HeldBytes::default() };
/// let report = ShardingReport { stage: ShardStage::Optimizer, offloaded: false, ranks: vec![held; 2] };
/// assert_eq!(report.most().optimizer, 800);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardingReport {
    /// What was cut over the ranks.
    pub stage: ShardStage,
    /// The optimizer's state was in the host's memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub offloaded: bool,
    /// By rank: how many bytes it has held.
    pub ranks: Vec<HeldBytes>,
}

impl ShardingReport {
    /// The most that a rank has held of each.
    pub fn most(&self) -> HeldBytes {
        let most = |of: fn(&HeldBytes) -> u64| self.ranks.iter().map(of).max().unwrap_or(0);
        HeldBytes {
            parameters: most(|held| held.parameters),
            gradients: most(|held| held.gradients),
            optimizer: most(|held| held.optimizer),
            gradient_buckets: most(|held| held.gradient_buckets),
            gathered: most(|held| held.gathered),
        }
    }
}

/// The best epoch so far, by the validation.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::TrainingReport;
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
    /// The metric by which it is the best, where that is another than the loss ([`BestBy`]).
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
}
