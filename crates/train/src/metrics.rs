//! burn-train metrics over the samples of all ranks.

pub(crate) mod layout;
pub(crate) mod line;
pub(crate) mod named_sum;
pub(crate) mod rank_times;
pub(crate) mod step_reduction;
pub(crate) mod step_report;
pub(crate) mod sums;
pub(crate) mod virtual_sums;

use std::sync::{Arc, Mutex, MutexGuard};

use burn::tensor::TensorReadError;
use burn_train::metric::state::{FormatOptions, NumericMetricState};
use burn_train::metric::{
    Metric, MetricAttributes, MetricDefinition, MetricEntry, MetricId, MetricMetadata, MetricName,
    Numeric, NumericAttributes, NumericEntry, SerializedEntry,
};
use burn_train::renderer::MetricState;
use everburn_record::StepCost;
use everburn_record::sync::lock;
use everburn_record::units;

use crate::metrics::step_report::StepReport;
use crate::metrics::sums::{ACCURACY, MetricSums};

const MIB: f64 = (1 << 20) as f64;

/// Which number of a [`StepReport`] a [`RankMetric`] shows.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Quantity {
    Loss,
    /// A metric that the objective reports, by this name.
    Named(String),
    SamplesPerSecond,
    Waiting,
    ExposedCommunication,
    PeakMemory,
}

/// The newest report that burn-train's metrics were given, for those that cannot be registered before the training:
/// nobody knows their names before an objective reports them.
#[derive(Clone, Default)]
pub(crate) struct NewestReport(Arc<Mutex<Option<StepReport>>>);

impl NewestReport {
    pub(crate) fn take(&self) -> Option<StepReport> {
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<StepReport>> {
        lock(&self.0)
    }
}

/// A number of the [`StepReport`], averaged over an epoch and weighted by predictions; a metric of the objective by its
/// own weight, in whole numbers.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::RankMetric;
/// use burn_train::metric::Metric;
///
/// assert_eq!(*RankMetric::accuracy().name(), "Accuracy");
/// ```
#[derive(Clone)]
pub struct RankMetric {
    quantity: Quantity,
    name: MetricName,
    state: NumericMetricState,
    /// Is given each report.
    newest: Option<NewestReport>,
}

impl RankMetric {
    fn new(quantity: Quantity, name: &str) -> Self {
        Self {
            quantity,
            name: Arc::new(name.to_string()),
            state: NumericMetricState::default(),
            newest: None,
        }
    }

    /// The same, which hands each report on.
    pub(crate) fn telling(self, newest: &NewestReport) -> Self {
        Self {
            newest: Some(newest.clone()),
            ..self
        }
    }

    /// The mean loss of a prediction.
    pub fn loss() -> Self {
        Self::new(Quantity::Loss, "Loss")
    }

    /// The share of predictions that were correct, in per cent.
    pub fn accuracy() -> Self {
        Self::named(ACCURACY)
    }

    /// A metric that the objective reports ([`Loss::with_metric`](crate::Loss::with_metric)).
    pub fn named(name: &str) -> Self {
        let shown = match name {
            ACCURACY => "Accuracy",
            name => name,
        };
        Self::new(Quantity::Named(name.to_string()), shown)
    }

    fn is_accuracy(&self) -> bool {
        matches!(&self.quantity, Quantity::Named(name) if name == ACCURACY)
    }

    /// How many samples all ranks together train on in a second.
    pub fn samples_per_second() -> Self {
        Self::new(Quantity::SamplesPerSecond, "Samples per second")
    }

    /// How long a step waits for the exchange with other ranks, in milliseconds.
    pub fn waiting() -> Self {
        Self::new(Quantity::Waiting, "Waiting for ranks")
    }

    /// How long a step waits for gradients that the backward pass did not hide, in milliseconds.
    pub fn exposed_communication() -> Self {
        Self::new(Quantity::ExposedCommunication, "Exposed communication")
    }

    /// The most memory that a rank has used in a step, in MiB.
    pub fn peak_memory() -> Self {
        Self::new(Quantity::PeakMemory, "Peak memory")
    }

    pub(crate) fn definition(&self) -> MetricDefinition {
        MetricDefinition::new(MetricId::new(self.name()), self)
    }

    /// Adds `report`, if its numbers can be read; what a renderer shows then.
    pub(crate) fn add(&mut self, report: &StepReport) -> Option<MetricState> {
        let metadata = MetricMetadata {
            progress: burn::data::dataloader::Progress::new(0, 0, None),
            iteration: None,
            lr: None,
        };
        let entry = self.update(report, &metadata).ok()?;
        let entry = MetricEntry::new(MetricId::new(self.name()), entry);
        Some(MetricState::Numeric(entry, self.value()))
    }

    fn unit(&self) -> Option<&'static str> {
        match self.quantity {
            Quantity::Named(_) if self.is_accuracy() => Some("%"),
            Quantity::Loss | Quantity::Named(_) | Quantity::SamplesPerSecond => None,
            Quantity::Waiting | Quantity::ExposedCommunication => Some("ms"),
            Quantity::PeakMemory => Some("MiB"),
        }
    }

    /// What is shown of these sums, and its weight; `None` for what a step costs.
    fn mean_and_weight(&self, sums: &MetricSums) -> Option<(f64, usize)> {
        match &self.quantity {
            Quantity::Loss => Some((sums.mean_loss(), sums.predictions as usize)),
            Quantity::Named(name) => {
                let sum = sums.metrics.get(&**name).copied().unwrap_or_default();
                let weight = match sum.weight > 0.0 {
                    true => sum.weight.round().max(1.0) as usize,
                    false => 0,
                };
                let scale = if self.is_accuracy() { 100.0 } else { 1.0 };
                Some((scale * sum.mean(), weight))
            }
            _ => None,
        }
    }

    fn format(&self) -> FormatOptions {
        FormatOptions::new(self.name.clone())
    }

    /// The entry with numbers as a person reads them: burn-train writes small ones as `3.03e-2 ms`.
    fn in_words(&self, entry: SerializedEntry) -> SerializedEntry {
        let mean = self.shown(self.state.running_value().current());
        let newest = self.shown(self.state.current_value().current());
        SerializedEntry::new(format!("epoch {mean} - batch {newest}"), entry.serialized)
    }

    fn shown(&self, value: f64) -> String {
        match self.quantity {
            Quantity::Named(_) if self.is_accuracy() => format!("{value:.2} %"),
            Quantity::Loss | Quantity::Named(_) => units::metric(value),
            Quantity::SamplesPerSecond => units::rate(value),
            Quantity::Waiting | Quantity::ExposedCommunication => units::seconds(value / 1e3),
            Quantity::PeakMemory if value.is_nan() => "unknown".to_owned(),
            Quantity::PeakMemory => units::bytes((value * MIB) as u64),
        }
    }
}

impl Metric for RankMetric {
    type Input = StepReport;

    fn name(&self) -> MetricName {
        self.name.clone()
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes {
            unit: self.unit().map(str::to_string),
            higher_is_better: self.is_accuracy() || self.quantity == Quantity::SamplesPerSecond,
        }
        .into()
    }

    fn update(
        &mut self,
        report: &StepReport,
        _metadata: &MetricMetadata,
    ) -> Result<SerializedEntry, TensorReadError> {
        let sums = report.sums()?;
        let cost = match report {
            StepReport::OfAllRanks { cost, .. } => *cost,
            StepReport::Local { .. } => StepCost {
                seconds: f64::NAN,
                ..StepCost::default()
            },
        };
        if let Some(newest) = &self.newest {
            *newest.lock() = Some(report.clone());
        }
        if let Some((value, weight)) = self.mean_and_weight(&sums) {
            if let StepReport::OfAllRanks { before, .. } = report {
                // A training that was resumed, or continues with fewer ranks, has made some of the epoch's steps elsewhere.
                self.state.reset();
                if let Some((value, weight)) = self.mean_and_weight(before)
                    && weight > 0
                {
                    self.state.update(value, weight);
                }
            }
            self.state.update(value, weight);
            let entry = self.state.compute_update(self.format());
            return Ok(self.in_words(entry));
        }
        let value = match &self.quantity {
            // Both have been updated above.
            Quantity::Loss | Quantity::Named(_) => f64::NAN,
            Quantity::SamplesPerSecond => sums.samples as f64 / cost.seconds,
            Quantity::Waiting => 1e3 * cost.waited,
            Quantity::ExposedCommunication => 1e3 * cost.exposed,
            Quantity::PeakMemory => cost
                .peak_memory
                .map_or(f64::NAN, |bytes| bytes as f64 / MIB),
        };
        let weight = match self.quantity {
            // The mean of a rate is that over time: microseconds are its weight.
            Quantity::SamplesPerSecond => (1e6 * cost.seconds) as usize,
            _ => sums.predictions as usize,
        };
        self.state.update(value, weight);
        let entry = self.state.compute_update(self.format());
        Ok(self.in_words(entry))
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        Ok(self.in_words(self.state.compute_final(self.format())))
    }

    fn clear(&mut self) {
        self.state.reset();
    }
}

impl Numeric for RankMetric {
    fn value(&self) -> Option<NumericEntry> {
        Some(self.state.current_value())
    }

    fn running_value(&self) -> Option<NumericEntry> {
        Some(self.state.running_value())
    }

    fn final_value(&self) -> NumericEntry {
        self.state.final_value()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_rate_of_an_epoch_is_its_samples_over_its_time() {
        let mut rate = RankMetric::samples_per_second();
        // A rank becomes slow: 64 samples take 10 ms, then 2 s.
        for seconds in [0.01, 0.01, 0.01, 2.0] {
            let sums = MetricSums {
                predictions: 64,
                samples: 64,
                ..MetricSums::default()
            };
            let cost = StepCost {
                seconds,
                ..StepCost::default()
            };
            let before = MetricSums::default();
            let report = StepReport::OfAllRanks { sums, cost, before };
            rate.add(&report).unwrap();
        }
        let mean = rate.final_value().current();
        assert!((mean - 256.0 / 2.03).abs() < 1e-3, "{mean}");
    }

    #[test]
    fn the_mean_of_an_epoch_has_the_steps_that_were_made_elsewhere() {
        let sums = |loss: f64, correct: f64, count: u64| {
            let sums = MetricSums {
                loss_sum: loss * count as f64,
                predictions: count,
                samples: count,
                ..MetricSums::default()
            };
            sums.with_metric(ACCURACY, correct, count as f64)
        };
        // Resumed after 30 samples; the steps after them have 10 and 20.
        let before = [sums(3.0, 0.0, 30), sums(3.0, 0.0, 30) + sums(1.0, 5.0, 10)];
        let steps = [sums(1.0, 5.0, 10), sums(0.5, 20.0, 20)];
        let expected = [(2.5, 12.5), (110.0 / 60.0, 2500.0 / 60.0)];
        let (mut loss, mut accuracy) = (RankMetric::loss(), RankMetric::accuracy());
        for ((before, sums), (mean, share)) in before.into_iter().zip(steps).zip(expected) {
            let report = StepReport::OfAllRanks {
                sums,
                cost: StepCost::default(),
                before,
            };
            for (metric, expected) in [(&mut loss, mean), (&mut accuracy, share)] {
                metric.add(&report).unwrap();
                let shown = metric.running_value().unwrap().current();
                assert!((shown - expected).abs() < 1e-9, "{shown} {expected}");
                assert_eq!(metric.final_value().current(), shown);
            }
        }
    }
}
