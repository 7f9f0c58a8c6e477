//! The learning-rate range test (Smith 2017, "Cyclical Learning Rates for Training Neural Networks"), as fastai's and
//! Lightning's `lr_find` do it: the learning rate grows by the same factor in each step until the loss explodes. A good
//! rate is where the loss falls most steeply.

use burn::module::Module;
use everburn_record::units::counted;
use serde::{Deserialize, Serialize};

use super::trial::Trial;
use super::{Trainer, TrainingData};
use crate::error::TrainError;
use crate::metrics::line::MetricLine;
use crate::model::erased::{AnyModel, Trainable, erase_data};

/// How much of the smoothed loss is that of the steps before; fastai's and Lightning's.
const SMOOTHING: f64 = 0.98;

/// The sweep ends when the mean of the newest losses is this many times the best smoothed one.
const EXPLODED: f64 = 4.0;

/// How many losses that mean has. The smoothed loss of a short sweep follows a divergence too late; one batch of three may
/// be hard by chance.
const NEWEST: usize = 3;

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
    /// Its steps, up to the one at which the loss was no longer finite or four times the best smoothed one.
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

    /// The rate at which the smoothed loss falls most steeply over equal factors of the rate, before it is lowest; `None` if
    /// it never falls before it rises, or there are too few points.
    #[must_use]
    pub fn suggestion(&self) -> Option<f64> {
        let count = self.points.len();
        // Of few points, none can be left out.
        let (first, last) = match count > 2 * (FIRST + LAST) {
            true => (FIRST, count - LAST),
            false => (0, count),
        };
        let points = &self.points[first..last];
        // After it the training diverges, and a batch that is easy by chance falls more steeply than any slope before.
        let by_loss = |a: &usize, b: &usize| points[*a].smoothed.total_cmp(&points[*b].smoothed);
        let lowest = (0..points.len()).min_by(by_loss)?;
        let slope = |at: usize| {
            let (before, after) = (&points[at.saturating_sub(1)], &points[at + 1]);
            let factor = (after.learning_rate / before.learning_rate).ln();
            (after.smoothed - before.smoothed) / factor
        };
        let falls = |at: &usize| slope(*at) < -ROUNDING * points[*at].smoothed.abs();
        let falling = (0..lowest).filter(falls);
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
    let losses = || lines.iter().map(|line| line.loss);
    let best = smoothed(losses())
        .map(|(_, average)| average)
        .fold(f64::INFINITY, f64::min);
    let count = lines.len().min(NEWEST);
    let newest = losses().rev().take(count).sum::<f64>() / count as f64;
    !newest.is_finite() || newest > EXPLODED * best
}

/// What is said where a sweep has more steps than there are batches.
fn repeats(samples: usize, trial: &Trial) -> Option<String> {
    let (batches, steps) = (samples.div_ceil(trial.batch_size.max(1)), trial.rates.len());
    (batches < steps).then(|| {
        format!(
            "a sweep of {} has only {}, of {}: the same samples come again and again, and it says little; use more samples, \
             or a smaller `training.batch_size`",
            counted(steps, "step"),
            counted(batches, "batch"),
            counted(samples, "training sample")
        )
    })
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
                "a sweep cannot go from {from} to {to} in {}: begin above 0, end above the beginning, \
                 and make 2 steps or more",
                counted(steps, "step")
            )));
        }
        let trial = Trial {
            batch_size: self.config.batch_size,
            rates: range.rates(),
        };
        let data = erase_data(data);
        let samples = self.data_of_trials(&data).train.len();
        if let Some(warning) = repeats(samples, &trial).filter(|_| self.group.rank() == 0) {
            tracing::warn!("{warning}");
        }
        let model = AnyModel::new(model).materialize();
        let made = self.try_steps(&model, &data, &trial, has_exploded)?;
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
        // The smoothed loss is still low.
        let after = |loss: f64| lines(&[[2.0; 60].as_slice(), &[loss]].concat());
        assert!(has_exploded(&after(30.0)) && !has_exploded(&after(9.0)));
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
    #[test]
    fn a_rate_at_which_the_training_has_diverged_is_not_suggested() {
        let rates = LearningRateRange::default().rates();
        // Diverged, with batches that are easy by chance: they fall more steeply than all before.
        let diverged = |step: usize| if step % 4 < 2 { 6.0 } else { 0.0 };
        let loss = |step: usize| match step {
            0..50 => 2.0,
            50..70 => 2.0 - 0.08 * (step - 49) as f64,
            70..76 => 6.0,
            _ => diverged(step),
        };
        let losses: Vec<f64> = (0..100).map(loss).collect();
        let sweep = LearningRateSweep::of(&lines(&losses), false);
        let suggested = sweep.suggestion().unwrap();
        assert!(
            suggested > rates[55] && suggested < rates[70],
            "{suggested}"
        );
        // It never falls before it rises.
        let loss = |step: usize| match step {
            0..50 => 2.0 + 0.01 * step as f64,
            50..60 => 6.0,
            _ => diverged(step),
        };
        let losses: Vec<f64> = (0..100).map(loss).collect();
        let sweep = LearningRateSweep::of(&lines(&losses), false);
        assert_eq!(sweep.suggestion(), None);
    }

    #[test]
    fn a_sweep_with_more_steps_than_batches_is_warned_of() {
        let trial = Trial {
            batch_size: 10,
            rates: LearningRateRange::default().rates(),
        };
        assert_eq!(repeats(991, &trial), None);
        let warning = repeats(990, &trial).unwrap();
        let told = "a sweep of 100 steps has only 99 batches, of 990 training samples: ";
        assert!(warning.starts_with(told), "{warning}");
    }
}
