//! burn-train metrics over the samples of all ranks.

use std::sync::Arc;

use burn::tensor::TensorReadError;
use burn_train::metric::state::{FormatOptions, NumericMetricState};
use burn_train::metric::{
    Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry,
};
use everburn_record::units;

use crate::tally::{StepCost, StepReport};

const MIB: f64 = (1 << 20) as f64;

/// Which number of a [`StepReport`] a [`RankMetric`] shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quantity {
    Loss,
    Accuracy,
    SamplesPerSecond,
    Waiting,
    ExposedCommunication,
    PeakMemory,
}

/// A number of the [`StepReport`], averaged over an epoch and weighted by predictions.
///
/// ```
/// use everburn_train::RankMetric;
/// use burn_train::metric::Metric;
///
/// assert_eq!(*RankMetric::accuracy().name(), "Accuracy");
/// ```
#[derive(Clone)]
pub struct RankMetric {
    quantity: Quantity,
    name: MetricName,
    state: NumericMetricState,
}

impl RankMetric {
    fn new(quantity: Quantity, name: &str) -> Self {
        Self {
            quantity,
            name: Arc::new(name.to_string()),
            state: NumericMetricState::default(),
        }
    }

    /// The mean loss of a prediction.
    pub fn loss() -> Self {
        Self::new(Quantity::Loss, "Loss")
    }

    /// The share of predictions that were correct, in per cent.
    pub fn accuracy() -> Self {
        Self::new(Quantity::Accuracy, "Accuracy")
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

    fn unit(&self) -> Option<&'static str> {
        match self.quantity {
            Quantity::Loss | Quantity::SamplesPerSecond => None,
            Quantity::Accuracy => Some("%"),
            Quantity::Waiting | Quantity::ExposedCommunication => Some("ms"),
            Quantity::PeakMemory => Some("MiB"),
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
            Quantity::Loss if value.abs() < 1e-3 => units::significant(value, 3),
            Quantity::Loss => format!("{value:.4}"),
            Quantity::Accuracy => format!("{value:.2} %"),
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
            higher_is_better: matches!(
                self.quantity,
                Quantity::Accuracy | Quantity::SamplesPerSecond
            ),
        }
        .into()
    }

    fn update(
        &mut self,
        report: &StepReport,
        _metadata: &MetricMetadata,
    ) -> Result<SerializedEntry, TensorReadError> {
        let tally = report.tally()?;
        let cost = match report {
            StepReport::OfAllRanks { cost, .. } => *cost,
            StepReport::Local { .. } => StepCost {
                seconds: f64::NAN,
                ..StepCost::default()
            },
        };
        let value = match self.quantity {
            Quantity::Loss => tally.mean_loss(),
            Quantity::Accuracy => 100.0 * tally.accuracy(),
            Quantity::SamplesPerSecond => tally.samples as f64 / cost.seconds,
            Quantity::Waiting => 1e3 * cost.waited,
            Quantity::ExposedCommunication => 1e3 * cost.exposed,
            Quantity::PeakMemory => cost
                .peak_memory
                .map_or(f64::NAN, |bytes| bytes as f64 / MIB),
        };
        self.state.update(value, tally.predictions as usize);
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
