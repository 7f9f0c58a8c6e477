//! What a step reports to burn-train: sums that may still be on the device, and then those of all ranks.

use burn::prelude::*;
use burn::tensor::{TensorReadError, Transaction};
use burn_train::metric::{Adaptor, ItemLazy};
use everburn_record::StepCost;
use everburn_record::units::counted;

use crate::error::TrainError;
use crate::metrics::named_sum::NamedSum;
use crate::metrics::rank_times::ForwardPass;
use crate::metrics::sums::{MetricSums, WeightedSum};
use crate::model::predictions::{Classes, Predictions};

/// A step's report on its way to burn-train's metrics.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::StepReport;
///
/// fn is_local(report: &StepReport) -> bool {
///     matches!(report, StepReport::Local { .. })
/// }
/// ```
#[derive(Debug, Clone)]
#[expect(
    clippy::large_enum_variant,
    reason = "one a step is alive: a box would cost more"
)]
pub enum StepReport {
    /// This process' own samples; the numbers may still be on the device.
    Local {
        /// The mean loss of a prediction, shape `[1]`.
        loss: Tensor<1>,
        /// How many predictions there were.
        predictions: usize,
        /// How many samples there were.
        samples: usize,
        /// What else was measured.
        metrics: Vec<NamedSum>,
        /// What the forward pass was; `None` if nobody has measured it.
        forward: Option<ForwardPass>,
        /// Which class each sample is of, and which it was taken for, where there are classes.
        classes: Option<Classes>,
    },
    /// The samples of all ranks.
    OfAllRanks {
        /// The sums.
        sums: MetricSums,
        /// What they cost.
        cost: StepCost,
        /// The sums of the epoch's steps before this one, or of the validation's batches.
        before: MetricSums,
    },
}

impl StepReport {
    /// The sums, read from the device where they are still there.
    ///
    /// # Errors
    /// The device's error if they cannot be read.
    pub fn sums(&self) -> Result<MetricSums, TensorReadError> {
        let mut all = Self::all_sums(std::slice::from_ref(self))?;
        Ok(all.pop().unwrap_or_default())
    }

    /// The sums of several, of which those that are still on the device are read together, with one wait.
    ///
    /// # Errors
    /// As [`sums`](Self::sums).
    pub(crate) fn all_sums(reports: &[Self]) -> Result<Vec<MetricSums>, TensorReadError> {
        let mut transaction = Transaction::default();
        for report in reports {
            if let Self::Local { loss, metrics, .. } = report {
                transaction = transaction.register(loss.clone());
                for NamedSum { sum, weight, .. } in metrics {
                    transaction = weight.register(sum.register(transaction));
                }
            }
        }
        let read = transaction.try_execute().map_err(TensorReadError::from)?;
        let mut read = read.iter().map(number);
        let mut next = || read.next().expect("what was registered is read");
        Ok(reports
            .iter()
            .map(|report| report.read(&mut next))
            .collect())
    }

    /// The sums; `next` is the next number that was read from the device.
    fn read(&self, mut next: impl FnMut() -> f64) -> MetricSums {
        let (predictions, samples, metrics) = match self {
            Self::OfAllRanks { sums, .. } => return sums.clone(),
            Self::Local {
                predictions,
                samples,
                metrics,
                ..
            } => (*predictions, *samples, metrics),
        };
        let mut sums = MetricSums {
            loss_sum: next() * predictions as f64,
            predictions: predictions as u64,
            samples: samples as u64,
            ..MetricSums::default()
        };
        for NamedSum { name, sum, weight } in metrics {
            let (sum, weight) = (sum.read(&mut next), weight.read(&mut next));
            *sums.metrics.entry(name.clone()).or_default() += WeightedSum { sum, weight };
        }
        sums
    }

    /// Which class each of this process' samples is of, and which it was taken for; `None` where there are no
    /// classes.
    ///
    /// # Errors
    /// The device's error if they cannot be read.
    pub fn predictions(&self) -> Result<Option<Predictions>, TensorReadError> {
        match self {
            Self::Local {
                classes: Some(classes),
                ..
            } => classes.read().map(Some),
            _ => Ok(None),
        }
    }

    /// What this process' forward pass was, where it was measured.
    pub fn forward(&self) -> Option<ForwardPass> {
        match self {
            Self::Local { forward, .. } => *forward,
            Self::OfAllRanks { .. } => None,
        }
    }

    /// Refuses a count of samples that is not the batch's, by which gradients would have wrong weights; and two metrics of one
    /// name.
    pub(crate) fn require_samples(&self, of_batch: usize) -> Result<(), TrainError> {
        match self {
            Self::Local { samples, .. } if *samples != of_batch => {
                Err(TrainError::Config(format!(
                    "the task's loss counts {} in a batch of {of_batch}: the number in `Loss::new(mean, samples)` \
                     is that of the batch, as in `batch.images.dims()[0]`; or the batcher has returned fewer samples than it was given",
                    counted(*samples, "sample")
                )))
            }
            Self::Local { metrics, .. } => {
                let mut names = metrics.iter().map(|metric| &metric.name);
                let mut seen = std::collections::BTreeSet::new();
                match names.find(|name| !seen.insert(*name)) {
                    Some(twice) => Err(TrainError::Config(format!(
                        "the task's loss has the metric `{twice}` twice: give each its own name in `Loss::with_metric`"
                    ))),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// The same, with what the forward pass was.
    #[must_use]
    pub(crate) fn after_forward(mut self, pass: ForwardPass) -> Self {
        if let Self::Local { forward, .. } = &mut self {
            *forward = Some(pass);
        }
        self
    }
}

fn number(data: &TensorData) -> f64 {
    data.iter::<f64>().next().expect("a sum is one number")
}

impl ItemLazy for StepReport {
    fn sync(self) -> Result<Self, burn::tensor::ExecutionError> {
        Ok(match self {
            Self::Local {
                loss,
                predictions,
                samples,
                metrics,
                forward,
                classes,
            } => {
                loss.device().flush()?;
                let metrics = metrics.into_iter().map(|metric| NamedSum {
                    sum: metric.sum.without_autodiff(),
                    weight: metric.weight.without_autodiff(),
                    ..metric
                });
                Self::Local {
                    loss: loss.without_autodiff(),
                    predictions,
                    samples,
                    metrics: metrics.collect(),
                    forward,
                    classes,
                }
            }
            other => other,
        })
    }
}

impl Adaptor<StepReport> for StepReport {
    fn adapt(&self) -> StepReport {
        self.clone()
    }
}
