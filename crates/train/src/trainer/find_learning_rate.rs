//! The learning-rate range test (Smith 2017, "Cyclical Learning Rates for Training Neural Networks"), as fastai's and
//! Lightning's `lr_find` do it: the learning rate grows by the same factor in each step until the loss explodes. A good
//! rate is where the loss falls most steeply.

use burn::module::Module;
use serde::{Deserialize, Serialize};

use super::trial::Trial;
use super::{Trainer, TrainingData};
use crate::error::TrainError;
use crate::metrics::line::MetricLine;
use crate::model::erased::{AnyModel, Trainable, erase_data};

/// How much of the smoothed loss is that of the steps before; fastai's and Lightning's.
const SMOOTHING: f64 = 0.98;

/// The sweep ends when the smoothed loss is this many times the best one.
const EXPLODED: f64 = 4.0;

/// How many steps at the beginning say nothing: the average has just begun.
const FIRST: usize = 10;

/// The same at the end, where the loss explodes.
const LAST: usize = 1;

/// A fall below this part of the loss is rounding.
const ROUNDING: f64 = 1e-6;

/// The learning rates of a sweep.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::LearningRateRange;
///
/// let rates = LearningRateRange { from: 1e-4, to: 1.0, steps: 5 }.rates();
/// let expected = [1e-4, 1e-3, 1e-2, 1e-1, 1.0];
/// assert!(rates.iter().zip(expected).all(|(rate, expected)| (rate / expected - 1.0).abs() < 1e-12));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearningRateRange {
    /// The first rate.
    pub from: f64,
    /// The last one.
    pub to: f64,
    /// How many there are, a step for each.
    pub steps: usize,
}

impl Default for LearningRateRange {
    /// fastai's steps and Lightning's range.
    fn default() -> Self {
        Self {
            from: 1e-7,
            to: 1.0,
            steps: 100,
        }
    }
}

impl LearningRateRange {
    /// Each rate, the next a constant factor above the one before.
    #[must_use]
    pub fn rates(&self) -> Vec<f64> {
        let last = self.steps.saturating_sub(1).max(1) as f64;
        let rate = |step| self.from * (self.to / self.from).powf(step as f64 / last);
        (0..self.steps).map(rate).collect()
    }
}

/// A step of a sweep.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// let point = everburn::train::SweepPoint { learning_rate: 1e-3, loss: 2.0, smoothed: 2.1 };
/// assert!(serde_json::to_string(&point).unwrap().contains("0.001"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SweepPoint {
    /// Its learning rate.
    pub learning_rate: f64,
    /// The loss before it was applied, over all ranks.
    pub loss: f64,
    /// The exponential average of the losses so far.
    pub smoothed: f64,
}

/// What a sweep has found: [`Trainer::find_learning_rate`]. The same on all ranks.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{LearningRateSweep, SweepPoint};
///
/// // The loss falls most steeply around 1e-2.
/// let losses = [(1e-4, 2.3), (1e-3, 2.2), (1e-2, 1.5), (1e-1, 0.9), (1.0, 4.0)];
/// let point = |(learning_rate, loss)| SweepPoint { learning_rate, loss, smoothed: loss };
/// let sweep = LearningRateSweep { points: losses.map(point).to_vec(), ..LearningRateSweep::default() };
/// assert_eq!(sweep.suggestion(), Some(1e-2));
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LearningRateSweep {
    /// Its steps, up to the one at which the loss was no longer finite or four times the best.
    pub points: Vec<SweepPoint>,
    /// The loss has exploded before the last rate.
    pub exploded: bool,
    /// The user has stopped it.
    pub interrupted: bool,
}

impl LearningRateSweep {
    fn of(lines: &[MetricLine], interrupted: bool) -> Self {
        let rates = lines.iter().map(|line| line.learning_rate.unwrap_or(0.0));
        let losses = lines.iter().map(|line| line.loss);
        let points = smoothed(losses).zip(rates);
        let points = points.map(|((loss, smoothed), learning_rate)| SweepPoint {
            learning_rate,
            loss,
            smoothed,
        });
        let mut points: Vec<_> = points.collect();
        let exploded = !lines.is_empty() && has_exploded(lines);
        // JSON has no number for it, and a plot no place.
        points.retain(|point| point.loss.is_finite());
        Self {
            points,
            exploded,
            interrupted,
        }
    }

    /// The rate at which the smoothed loss falls most steeply over equal factors of the rate; `None` if it never falls,
    /// or there are too few points.
    #[must_use]
    pub fn suggestion(&self) -> Option<f64> {
        let count = self.points.len();
        // Of few points, none can be left out.
        let (first, last) = match count > 2 * (FIRST + LAST) {
            true => (FIRST, count - LAST),
            false => (0, count),
        };
        let points = &self.points[first..last];
        let slope = |at: usize| {
            let before = &points[at.saturating_sub(1)];
            let after = &points[(at + 1).min(points.len() - 1)];
            let factor = (after.learning_rate / before.learning_rate).ln();
            (after.smoothed - before.smoothed) / factor
        };
        let falls = |at: &usize| slope(*at) < -ROUNDING * points[*at].smoothed.abs();
        let falling = (0..points.len()).filter(falls);
        let falling = falling.map(|at| (slope(at), points[at].learning_rate));
        let steepest = falling.min_by(|(a, _), (b, _)| a.total_cmp(b));
        steepest.map(|(_, rate)| rate)
    }
}

/// The losses with their exponential average, whose beginning at zero is corrected.
fn smoothed(losses: impl Iterator<Item = f64>) -> impl Iterator<Item = (f64, f64)> {
    let (mut average, mut weight) = (0.0, 1.0);
    losses.map(move |loss| {
        average = SMOOTHING * average + (1.0 - SMOOTHING) * loss;
        weight *= SMOOTHING;
        (loss, average / (1.0 - weight))
    })
}

/// Whether the newest loss ends a sweep.
fn has_exploded(lines: &[MetricLine]) -> bool {
    let mut best = f64::INFINITY;
    let mut newest = f64::NAN;
    for (_, average) in smoothed(lines.iter().map(|line| line.loss)) {
        newest = average;
        best = best.min(average);
    }
    !newest.is_finite() || (lines.len() > 1 && newest > EXPLODED * best)
}

impl Trainer {
    /// Makes steps with exponentially growing learning rates on a copy of `model`, on all ranks together, until the loss
    /// explodes. `model` learns nothing.
    ///
    /// ```no_run
    /// # mod everburn { pub use everburn_train as train; }
    /// use everburn::train::{AnyData, AnyModel, LearningRateRange, TrainError, Trainer};
    ///
    /// fn find(trainer: &Trainer, model: AnyModel, data: &AnyData) -> Result<Option<f64>, TrainError> {
    ///     let sweep = trainer.find_learning_rate(model, data, LearningRateRange::default())?;
    ///     Ok(sweep.suggestion())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`TrainError`] as a training; [`TrainError::Config`] for a range that is none, and for trainings whose steps have
    /// no learning rate of their own (local steps), or whose ranks may be lost.
    pub fn find_learning_rate<M, I>(
        &self,
        model: M,
        data: &TrainingData<I, M::Batch>,
        range: LearningRateRange,
    ) -> Result<LearningRateSweep, TrainError>
    where
        M: Trainable,
        I: Send + Sync + Clone + 'static,
    {
        self.check_trials()?;
        let LearningRateRange { from, to, steps } = range;
        if !(from > 0.0 && from < to && to.is_finite() && steps > 1) {
            return Err(TrainError::Config(format!(
                "a sweep cannot go from {from} to {to} in {steps} steps: begin above 0, end above the beginning, \
                 and make 2 steps or more"
            )));
        }
        let trial = Trial {
            batch_size: self.config.batch_size,
            rates: range.rates(),
        };
        let model = AnyModel::new(model).materialize();
        let made = self.try_steps(&model, &erase_data(data), &trial, has_exploded)?;
        Ok(LearningRateSweep::of(&made.lines, made.interrupted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::line::MetricKind;
    use crate::metrics::sums::MetricSums;

    fn lines(losses: &[f64]) -> Vec<MetricLine> {
        let rates = LearningRateRange::default().rates();
        let line = |(step, loss): (usize, &f64)| {
            let mut line = MetricLine::new(MetricKind::Step, 1, step + 1, &MetricSums::default());
            (line.loss, line.learning_rate) = (*loss, Some(rates[step]));
            line
        };
        losses.iter().enumerate().map(line).collect()
    }

    #[test]
    fn the_average_begins_with_the_first_loss() {
        let averages: Vec<f64> = smoothed([2.0, 2.0, 1.0].into_iter())
            .map(|it| it.1)
            .collect();
        assert!((averages[0] - 2.0).abs() < 1e-12 && (averages[1] - 2.0).abs() < 1e-12);
        // (0.98² · 0.02 · 2 + 0.98 · 0.02 · 2 + 0.02 · 1) / (1 - 0.98³)
        assert!(
            (averages[2] - 0.097_616 / 0.058_808).abs() < 1e-9,
            "{averages:?}"
        );
    }

    #[test]
    fn a_sweep_ends_when_the_loss_explodes() {
        assert!(!has_exploded(&lines(&[2.0])));
        assert!(!has_exploded(&lines(&[2.0, 1.9, 7.0])));
        assert!(has_exploded(&lines(&[2.0, 1.9, 30.0])));
        assert!(has_exploded(&lines(&[2.0, f64::NAN])));
        assert!(has_exploded(&lines(&[f64::INFINITY])));
        let sweep = LearningRateSweep::of(&lines(&[2.0, 1.9, f64::NAN]), false);
        assert_eq!((sweep.points.len(), sweep.exploded), (2, true));
        let all = LearningRateSweep::of(&lines(&[2.0; 100]), false);
        assert!(!all.exploded);
    }

    #[test]
    fn the_steepest_descent_is_suggested_and_none_where_nothing_falls() {
        let flat = LearningRateSweep::of(&lines(&[2.0; 100]), false);
        assert_eq!(flat.suggestion(), None);
        assert_eq!(LearningRateSweep::default().suggestion(), None);
        // It falls in the middle, and explodes at the end.
        let loss = |step: usize| match step {
            0..50 => 2.0,
            50..70 => 2.0 - 0.08 * (step - 49) as f64,
            70..90 => 0.4,
            _ => 2.0 * (step - 89) as f64,
        };
        let losses: Vec<f64> = (0..100).map(loss).collect();
        let sweep = LearningRateSweep::of(&lines(&losses), false);
        let rates = LearningRateRange::default().rates();
        let suggested = sweep.suggestion().unwrap();
        assert!(
            suggested > rates[55] && suggested < rates[75],
            "{suggested}"
        );
    }
}
