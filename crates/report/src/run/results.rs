//! `report.json`: what came out of a run.

use std::collections::BTreeMap;

use everburn_record::{numbers_or_nan, plain};
use serde::Deserialize;

/// What `report.json` says, as far as it is there: an older or newer version may have written it.
///
/// ```
/// let text = r#"{"model":"mnist","test_accuracy":0.98,"best_epoch":{"epoch":2,"validation_loss":0.1},"more":[]}"#;
/// let results: everburn_report::Results = serde_json::from_str(text).unwrap();
/// assert_eq!(results.best_epoch.unwrap().epoch, 2);
/// assert_eq!(results.test_loss, None);
/// ```
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct Results {
    /// The model's name.
    pub model: Option<String>,
    /// The name of the data set.
    pub dataset: Option<String>,
    /// Where the data set came from.
    pub dataset_origin: Option<String>,
    /// The share of correct predictions on the test samples.
    pub test_accuracy: Option<f64>,
    /// The mean loss of a prediction on them, in nats.
    pub test_loss: Option<f64>,
    /// The other metrics of the objective on them, by name.
    #[serde(deserialize_with = "numbers_or_nan")]
    pub test_metrics: BTreeMap<String, f64>,
    /// How many test samples there were.
    pub test_samples: Option<u64>,
    /// The best epoch by the validation.
    pub best_epoch: Option<BestEpoch>,
    /// By which metric it is the best, as `--best-by` has it; absent where that is the loss.
    pub best_by: Option<String>,
    /// Samples of all ranks in a second of training.
    pub samples_per_second: Option<f64>,
    /// How many ranks there were at the end.
    pub world_size: Option<usize>,
    /// The size of the global batch.
    pub batch_size: Option<u64>,
    /// How many epochs were finished.
    pub epochs: Option<u64>,
    /// How many steps were made.
    pub steps: Option<u64>,
    /// How many of them were made since the run was begun or resumed, which is what times and bytes are of; absent where
    /// an older version wrote it.
    pub steps_since_resume: Option<u64>,
    /// Seconds from start to end.
    pub seconds: Option<f64>,
    /// Seconds of training steps.
    pub train_seconds: Option<f64>,
    /// Seconds for which rank 0 waited for gradients that the backward pass did not hide.
    pub exposed_seconds: Option<f64>,
    /// How many bytes of gradients rank 0 handed to the exchange.
    pub gradient_bytes: Option<u64>,
    /// The most memory that a rank has used, in bytes.
    pub peak_memory: Option<u64>,
    /// What each rank has kept of the training's state, where it has kept a part.
    pub sharding: Option<Sharding>,
    /// Why the run ended early.
    pub stopped: Option<String>,
    /// The epoch after which it was resumed.
    pub resumed_after_epoch: Option<u64>,
    /// It was resumed with other data than it had before.
    pub data_changed: bool,
    /// The versions with which it was made.
    pub versions: Option<Versions>,
}

/// The best epoch by the validation.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct BestEpoch {
    /// The epoch, from 1.
    pub epoch: u64,
    /// Its mean validation loss, in nats.
    pub validation_loss: f64,
    /// The metric by which it is the best, where that is another.
    #[serde(default)]
    pub value: Option<f64>,
}

/// What ranks have kept of a training's state, whose parts are on several.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Sharding {
    /// What was cut over the ranks.
    pub stage: String,
    /// By rank: what it has held.
    pub ranks: Vec<HeldBytes>,
}

/// How many bytes per rank has held of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct HeldBytes {
    /// Trained parameters.
    pub parameters: u64,
    /// Averaged gradients.
    pub gradients: u64,
    /// The optimizer's state.
    pub optimizer: u64,
}

impl Sharding {
    /// The most that a rank has held of all together, and who.
    pub(crate) fn most(&self) -> Option<(usize, HeldBytes)> {
        let total = |held: &HeldBytes| {
            let parameters = held.parameters.saturating_add(held.gradients);
            parameters.saturating_add(held.optimizer)
        };
        let ranks = self.ranks.iter().copied().enumerate();
        ranks.max_by_key(|(rank, held)| (total(held), std::cmp::Reverse(*rank)))
    }
}

/// The versions with which a run was made.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
pub struct Versions {
    /// Everburn's.
    pub everburn: Option<String>,
    /// Burn's.
    pub burn: Option<String>,
}

/// How many metrics of an objective are shown, and how much of their names.
const MOST_NAMED: usize = 32;
const LONGEST_NAME: usize = 64;

impl Results {
    /// The file's name in the folder of a run.
    pub const FILE: &str = "report.json";

    /// The step after which the run was resumed last: times, bytes and the peak of memory are of the steps since then.
    pub(crate) fn resumed_after_step(&self) -> Option<u64> {
        let before = self.steps?.checked_sub(self.steps_since_resume?)?;
        (before > 0).then_some(before)
    }

    /// What else was measured on the test samples: names for people, and numbers.
    pub(crate) fn named(&self) -> impl Iterator<Item = (String, f64)> {
        let named = self.test_metrics.iter().take(MOST_NAMED);
        let finite = named.filter(|(_, mean)| mean.is_finite());
        finite.map(|(name, mean)| (plain::line(name, LONGEST_NAME), *mean))
    }

    /// What the best epoch is the best of, and that: the validation loss, unless `--best-by` named another metric.
    pub(crate) fn best(&self) -> Option<(String, f64, u64)> {
        let best = self.best_epoch?;
        Some(match (&self.best_by, best.value) {
            (Some(by), Some(value)) => {
                let metric = by.split_once(':').map_or(&**by, |(_, metric)| metric);
                let metric = plain::line(metric, LONGEST_NAME);
                (format!("best validation {metric}"), value, best.epoch)
            }
            _ => {
                let name = "best validation loss".to_owned();
                (name, best.validation_loss, best.epoch)
            }
        })
    }

    pub(super) fn parse(text: &str) -> Result<Self, String> {
        super::json(text)
    }
}
