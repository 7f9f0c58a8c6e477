//! Sums over samples, of the loss and of named metrics, so that ranks can be added up.

use std::borrow::Cow;
use std::collections::BTreeMap;

use everburn_record::number_or_nan;
use serde::{Deserialize, Serialize};

/// The name of the loss, where metrics are chosen by name.
pub const LOSS: &str = "loss";

/// The name of the share of predictions that were correct.
pub const ACCURACY: &str = "accuracy";

/// A sum, and what it is divided by for the mean.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// let mut absolute_error = everburn::train::WeightedSum { sum: 3.0, weight: 2.0 };
/// absolute_error += everburn::train::WeightedSum { sum: 0.0, weight: 1.0 };
/// assert_eq!(absolute_error.mean(), 1.0);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct WeightedSum {
    /// The sum over samples.
    #[serde(deserialize_with = "number_or_nan")]
    pub sum: f64,
    /// The sum of their weights: of samples, pixels or pairs, their number.
    #[serde(deserialize_with = "number_or_nan")]
    pub weight: f64,
}

impl WeightedSum {
    /// The weighted mean, NaN without a weight.
    pub fn mean(self) -> f64 {
        self.sum / self.weight
    }
}

impl std::ops::AddAssign for WeightedSum {
    fn add_assign(&mut self, other: Self) {
        self.sum += other.sum;
        self.weight += other.weight;
    }
}

/// Sums over predictions: a prediction is the class of a sample, or the next token of a text, of which a sample has
/// many; of other objectives, it is the sample itself. A mean is formed last and once, over all ranks: never a mean
/// of means.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::MetricSums;
///
/// let two = MetricSums { loss_sum: 3.0, predictions: 2, samples: 2, ..MetricSums::default() };
/// let one = MetricSums { loss_sum: 0.0, predictions: 1, samples: 1, ..MetricSums::default() };
/// let both = two.with_metric("mae", 4.0, 2.0) + one.with_metric("mae", 0.5, 1.0);
/// assert_eq!(both.mean_loss(), 1.0);
/// assert_eq!(both.mean("mae"), Some(1.5));
/// assert_eq!(both.accuracy(), None);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MetricSums {
    /// The sum of each prediction's loss: of a cross entropy, in nats.
    pub loss_sum: f64,
    /// How many predictions there were.
    pub predictions: u64,
    /// How many samples there were.
    pub samples: u64,
    /// The metrics that the objective reports, by name.
    pub metrics: BTreeMap<Cow<'static, str>, WeightedSum>,
}

impl MetricSums {
    /// The same, with a metric more; if it is there, its sums are added.
    #[must_use]
    pub fn with_metric(
        mut self,
        name: impl Into<Cow<'static, str>>,
        sum: f64,
        weight: f64,
    ) -> Self {
        *self.metrics.entry(name.into()).or_default() += WeightedSum { sum, weight };
        self
    }

    /// The mean loss of a prediction, NaN if there was none.
    pub fn mean_loss(&self) -> f64 {
        self.loss_sum / self.predictions as f64
    }

    /// The mean of a metric, or of the loss; `None` if there is none of this name, NaN if it has no weight.
    pub fn mean(&self, name: &str) -> Option<f64> {
        match name {
            LOSS => Some(self.mean_loss()),
            _ => self.metrics.get(name).map(|sum| sum.mean()),
        }
    }

    /// The share of predictions that were correct, where that is reported.
    pub fn accuracy(&self) -> Option<f64> {
        self.mean(ACCURACY)
    }

    /// How many predictions were correct, where that is reported.
    pub fn correct(&self) -> Option<u64> {
        self.metrics.get(ACCURACY).map(|sum| sum.sum as u64)
    }

    /// The mean of each metric but loss and accuracy, which have places of their own in what is recorded.
    pub fn other_means(&self) -> BTreeMap<String, f64> {
        let others = self.metrics.iter().filter(|(name, _)| *name != ACCURACY);
        others
            .map(|(name, sum)| (name.to_string(), sum.mean()))
            .collect()
    }

    /// Whether nothing was reported: this rank had no samples, or others report for it.
    pub(crate) fn is_nothing(&self) -> bool {
        self.samples == 0 && self.predictions == 0 && self.metrics.is_empty()
    }
}

impl std::ops::Add for MetricSums {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += &other;
        self
    }
}

impl std::ops::AddAssign<&Self> for MetricSums {
    fn add_assign(&mut self, other: &Self) {
        self.loss_sum += other.loss_sum;
        self.predictions += other.predictions;
        self.samples += other.samples;
        for (name, sum) in &other.metrics {
            match self.metrics.get_mut(name) {
                Some(own) => *own += *sum,
                None => drop(self.metrics.insert(name.clone(), *sum)),
            }
        }
    }
}

impl std::ops::AddAssign for MetricSums {
    fn add_assign(&mut self, other: Self) {
        *self += &other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_weighted_by_predictions() {
        let of = |loss_sum, correct, predictions: u64| {
            let sums = MetricSums {
                loss_sum,
                predictions,
                samples: 1,
                ..MetricSums::default()
            };
            sums.with_metric(ACCURACY, correct, predictions as f64)
        };
        let both = of(10.0, 9.0, 10) + of(5.0, 0.0, 1);
        assert_eq!(both.mean_loss(), 15.0 / 11.0);
        assert_eq!(both.accuracy(), Some(9.0 / 11.0));
        assert_eq!(both.correct(), Some(9));
        assert!(both.other_means().is_empty());
    }

    #[test]
    fn nothing_has_no_mean() {
        let nothing = MetricSums::default();
        assert!(nothing.mean_loss().is_nan());
        assert_eq!(nothing.mean("mae"), None);
        assert!(nothing.is_nothing() && !nothing.with_metric("mae", 0.0, 0.0).is_nothing());
    }

    #[test]
    fn what_is_no_number_survives_a_file() {
        let sums = MetricSums::default().with_metric("mae", f64::NAN, 2.0);
        let text = serde_json::to_string(&sums).unwrap();
        let read: MetricSums = serde_json::from_str(&text).unwrap();
        let mae = read.metrics["mae"];
        assert!(mae.sum.is_nan() && mae.weight == 2.0, "{text}");
    }
}
