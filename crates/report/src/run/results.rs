//! What of `report.json` is shown: of what a file lacks, numbers are 0 and texts are empty.

use everburn_record::{TrainingReport, plain};

/// How many metrics of an objective are shown, and how much of their names.
const MOST_NAMED: usize = 32;
const LONGEST_NAME: usize = 64;

/// A text, where there is one.
pub(crate) fn text(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// How many there were, where that is known.
pub(crate) fn count(count: usize) -> Option<u64> {
    (count > 0).then_some(count as u64)
}

/// A time or a rate, where it was measured.
pub(crate) fn measured(number: f64) -> Option<f64> {
    (number.is_finite() && number > 0.0).then_some(number)
}

/// What there may be none of in the steps of a training, where there were steps.
pub(crate) fn of_steps<T>(report: &TrainingReport, amount: T) -> Option<T> {
    (report.steps > 0).then_some(amount)
}

/// What else was measured on the test samples: names for people, and numbers.
pub(crate) fn named(report: &TrainingReport) -> impl Iterator<Item = (String, f64)> {
    let named = report.test_metrics.iter().take(MOST_NAMED);
    let finite = named.filter(|(_, mean)| mean.is_finite());
    finite.map(|(name, mean)| (plain::line(name, LONGEST_NAME), *mean))
}

/// What the best epoch is the best of, and that: the validation loss, unless `--best-by` named another metric.
pub(crate) fn best(report: &TrainingReport) -> Option<(String, f64, usize)> {
    let best = report.best_epoch?;
    Some(match (&report.best_by, best.value) {
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
