//! By which metric epochs are compared.

use std::fmt;
use std::str::FromStr;

use crate::error::TrainError;
use crate::metrics::sums::{ACCURACY, LOSS, MetricSums};

/// Whether a metric is better where it is lower.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::Direction;
///
/// assert_ne!(Direction::Lower, Direction::Higher);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// As losses and errors are.
    Lower,
    /// As shares are.
    Higher,
}

/// The metric of the validation by which the best epoch is chosen, and with it the checkpoint that is kept and when a
/// training stops early.
///
/// It is written as the metric's name after `min:` or `max:`. The loss and the accuracy need neither.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{BestBy, Direction};
///
/// let by: BestBy = "max:iou".parse().unwrap();
/// assert_eq!((by.metric(), by.direction()), ("iou", Direction::Higher));
/// assert_eq!(BestBy::default().to_string(), "loss");
/// assert_eq!("max:accuracy".parse::<BestBy>().unwrap().to_string(), "accuracy");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BestBy {
    metric: String,
    direction: Direction,
}

impl BestBy {
    /// The metric's name.
    pub fn metric(&self) -> &str {
        &self.metric
    }

    /// Which values of it are better.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// Whether it is by the validation loss.
    pub(crate) fn is_loss(&self) -> bool {
        *self == Self::default()
    }

    /// Whether `value` is better than `best`; what is not finite never is, and is no best one.
    pub(crate) fn is_better(&self, value: f64, best: Option<f64>) -> bool {
        match (best.filter(|best| best.is_finite()), self.direction) {
            _ if !value.is_finite() => false,
            (None, _) => true,
            (Some(best), Direction::Lower) => value < best,
            (Some(best), Direction::Higher) => value > best,
        }
    }

    /// What the metric is in these sums, of a validation or a step.
    ///
    /// # Errors
    /// [`TrainError::UnknownMetric`] if nothing of its name is reported.
    pub(crate) fn value(&self, sums: &MetricSums) -> Result<f64, TrainError> {
        sums.mean(&self.metric).ok_or_else(|| {
            let names = sums.metrics.keys().map(ToString::to_string);
            TrainError::UnknownMetric {
                metric: self.metric.clone(),
                there: std::iter::once(LOSS.to_string()).chain(names).collect(),
            }
        })
    }
}

impl Default for BestBy {
    fn default() -> Self {
        Self {
            metric: LOSS.to_string(),
            direction: Direction::Lower,
        }
    }
}

/// In which direction a metric is better whose name says so.
fn usual(metric: &str) -> Option<Direction> {
    match metric {
        LOSS => Some(Direction::Lower),
        ACCURACY => Some(Direction::Higher),
        _ => None,
    }
}

impl fmt::Display for BestBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { metric, direction } = self;
        match direction {
            known if usual(metric) == Some(*known) => write!(f, "{metric}"),
            Direction::Lower => write!(f, "min:{metric}"),
            Direction::Higher => write!(f, "max:{metric}"),
        }
    }
}

impl FromStr for BestBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (metric, direction) = match text.split_once(':') {
            Some(("min", metric)) => (metric, Some(Direction::Lower)),
            Some(("max", metric)) => (metric, Some(Direction::Higher)),
            _ => (text, usual(text)),
        };
        match direction {
            Some(direction) if !metric.is_empty() => Ok(Self {
                metric: metric.to_string(),
                direction,
            }),
            _ => Err(format!(
                "is a lower or a higher `{text}` better? write min:NAME or max:NAME; {LOSS} and {ACCURACY} need neither"
            )),
        }
    }
}

everburn_record::serde_as_text!(BestBy);

#[cfg(test)]
mod tests {
    use everburn_tests::AssertContains;

    use super::*;

    #[test]
    fn a_metric_without_a_direction_is_refused() {
        for text in ["mae", "", "min:", "low:mae"] {
            let error = text.parse::<BestBy>().unwrap_err();
            assert!(error.contains("min:NAME or max:NAME"), "{error}");
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for text in ["loss", "max:loss", "accuracy", "min:accuracy", "min:a:b"] {
            assert_eq!(text.parse::<BestBy>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn the_better_value_is_taken_and_what_is_not_finite_never() {
        let by: BestBy = "max:iou".parse().unwrap();
        assert!(by.is_better(0.5, None) && by.is_better(0.5, Some(0.25)));
        assert!(!by.is_better(0.5, Some(0.5)) && !by.is_better(f64::NAN, None));
        assert!(BestBy::default().is_better(0.25, Some(0.5)));
        for worst in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
            assert!(!by.is_better(worst, None) && !by.is_better(worst, Some(0.5)));
            assert!(by.is_better(0.5, Some(worst)), "{worst}");
        }
    }

    #[test]
    fn a_metric_that_nobody_reports_is_answered_with_those_that_there_are() {
        let sums = MetricSums::default().with_metric("mae", 1.0, 2.0);
        let by: BestBy = "max:iou".parse().unwrap();
        let error = by.value(&sums).unwrap_err().to_string();
        error.assert_contains(["`iou`", "loss, mae"]);
        let by: BestBy = "min:mae".parse().unwrap();
        assert_eq!(by.value(&sums).unwrap(), 0.5);
    }
}
