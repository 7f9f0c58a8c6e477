//! The learning-rate range test (Smith 2017, "Cyclical Learning Rates for Training Neural Networks", section 3.3), as
//! fastai's and Lightning's `lr_find` do it: the learning rate grows by the same factor in each step until the loss explodes.
//!
//! The suggestion is a tenth of the rate at which the smoothed loss is lowest: fastai's `minimum`. The steepest point
//! (Lightning's suggestion, fastai's `steep`) and the middle of the longest fall (fastai's `valley`) depend on where the
//! model begins to learn anything: a text model has its steepest fall at 5e-5, where it learns how frequent tokens are, and
//! `mnist` at up to 9e-3, where it is close to divergence.
//!
//! Both libraries smooth by an exponential average of 0.98, over about 50 steps. Of a sweep of 100 steps that is half, and the
//! average follows the loss decades of the rate too late. Here each point is the mean of the steps around it, which does not lag.

use everburn_record::MetricLine;
use everburn_record::units::counted;
use serde::{Deserialize, Serialize};

use super::trial::Trial;
use super::{Trainer, TrainingData};
use crate::error::TrainError;
use crate::model::draw::draw_parameters;
use crate::model::erased::{AnyModel, Trainable, erase_data};

/// How many steps on each side a smoothed loss is the mean of: with its own 11, in the default range less than a factor of 6
/// of the rate. The loss of one batch varies by some 10 %, its mean by 3 %.
const AROUND: usize = 5;

/// The sweep ends when the mean of the newest losses is this many times the best smoothed one.
const EXPLODED: f64 = 4.0;

/// How many losses that mean has: one batch of three may be hard by chance.
const NEWEST: usize = 3;

/// The suggestion is the rate at which the smoothed loss is lowest, divided by this; fastai's.
const DISTANCE: f64 = 10.0;

/// How many steps at the beginning say nothing, as in fastai and Lightning.
const FIRST: usize = 10;

/// The same at the end, where the loss explodes, and points are the mean of fewer losses; fastai's.
const LAST: usize = AROUND;

/// A fall of less than this part of the loss is rounding.
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
    /// The mean of this loss and those of the steps around it.
    pub smoothed: f64,
}

/// What a sweep has found: [`Trainer::find_learning_rate`]. The same on all ranks.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{LearningRateSweep, SweepPoint};
///
/// // The loss is lowest at 1e-1.
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
        // JSON has no number for another one, and a plot no place.
        let lines_with_loss = lines.iter().filter(|line| line.loss.is_finite());
        let losses: Vec<f64> = lines_with_loss.clone().map(|line| line.loss).collect();
        let points = lines_with_loss.zip(smoothed(&losses));
        let points = points.map(|(line, smoothed)| SweepPoint {
            learning_rate: line.learning_rate.unwrap_or(0.0),
            loss: line.loss,
            smoothed,
        });
        Self {
            points: points.collect(),
            exploded: !lines.is_empty() && has_exploded(lines),
            interrupted,
        }
    }

    /// A tenth of the rate at which the smoothed loss is lowest; `None` if it never falls before it rises, or there are too few
    /// points.
    pub fn suggestion(&self) -> Option<f64> {
        let count = self.points.len();
        // Of few points, none can be left out.
        let (first, last) = match count > 2 * (FIRST + LAST) {
            true => (FIRST, count - LAST),
            false => (0, count),
        };
        let points = &self.points[first..last];
        let begin = points.first()?.smoothed;
        let lowest = points
            .iter()
            .min_by(|a, b| a.smoothed.total_cmp(&b.smoothed))?;
        let falls = begin - lowest.smoothed > ROUNDING * begin.abs();
        falls.then_some(lowest.learning_rate / DISTANCE)
    }
}

/// Each loss as the mean of it and of as many before as after it: [`AROUND`] or, at the ends, what there is on both sides. So
/// the curve follows the losses neither late nor early.
fn smoothed(losses: &[f64]) -> Vec<f64> {
    let mean_around = |at: usize| {
        let around = AROUND.min(at).min(losses.len() - 1 - at);
        mean(&losses[at - around..=at + around])
    };
    (0..losses.len()).map(mean_around).collect()
}

fn mean(losses: &[f64]) -> f64 {
    losses.iter().sum::<f64>() / losses.len() as f64
}

/// Whether the newest loss ends a sweep.
fn has_exploded(lines: &[MetricLine]) -> bool {
    let losses: Vec<f64> = lines.iter().map(|line| line.loss).collect();
    let newest = mean(&losses[losses.len().saturating_sub(NEWEST)..]);
    // A mean of what came before: one batch that is easy by chance must not end the sweep.
    let before = |end: usize| mean(&losses[end.saturating_sub(2 * AROUND + 1)..end]);
    let best = (1..=losses.len()).map(before).fold(f64::INFINITY, f64::min);
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
        let model = AnyModel::new(model);
        draw_parameters(&model);
        let made = self.try_steps(&model, &data, &trial, has_exploded)?;
        Ok(LearningRateSweep::of(&made.lines, made.interrupted))
    }
}

#[cfg(test)]
mod tests {
    use everburn_record::MetricKind;

    use super::*;
    use crate::metrics::sums::MetricSums;

    fn lines(losses: &[f64]) -> Vec<MetricLine> {
        let rates = LearningRateRange::default().rates();
        let line = |(step, loss): (usize, &f64)| {
            let mut line = MetricSums::default().line(MetricKind::Step, 1, step + 1);
            (line.loss, line.learning_rate) = (*loss, Some(rates[step]));
            line
        };
        losses.iter().enumerate().map(line).collect()
    }

    #[test]
    fn smoothing_follows_the_losses_neither_late_nor_early() {
        assert!(smoothed(&[]).is_empty());
        assert_eq!(smoothed(&[2.0, 1.0, 3.0]), [2.0, 2.0, 3.0]);
        // A line stays as it is, up to its ends, and a step in the losses is halfway down where it is.
        let line: Vec<f64> = (0..30).map(f64::from).collect();
        assert_eq!(smoothed(&line), line);
        let step: Vec<f64> = (0..31)
            .map(|step| if step < 15 { 2.0 } else { 0.0 })
            .collect();
        let smooth = smoothed(&step);
        assert_eq!((smooth[9], smooth[20]), (2.0, 0.0));
        assert!((smooth[14] + smooth[15] - 2.0).abs() < 1e-12, "{smooth:?}");
    }

    #[test]
    fn a_noisy_sweep_suggests_a_rate_at_a_distance_from_where_it_diverges() {
        // As that of `mnist` with Adam: nothing learned below 1e-4, lowest at 1e-2, at 3e-2 diverged. Batches are harder and
        // easier by a tenth, by a generator of its own.
        let loss = |rate: f64| match rate.log10() {
            ..-4.0 => 2.3,
            log @ ..-2.0 => 2.3 - 0.9 * (log + 4.0),
            log @ ..-1.5 => 0.5 + 3.6 * (log + 2.0),
            _ => 2.3,
        };
        let rates = LearningRateRange::default().rates();
        for seed in 0..50_u64 {
            let mut state = crate::seeds::mix(seed);
            let noisy = |rate: &f64| {
                state = crate::seeds::mix(state);
                let uniform = (state >> 11) as f64 / (1_u64 << 53) as f64;
                loss(*rate) * (0.9 + 0.2 * uniform)
            };
            let losses: Vec<f64> = rates.iter().map(noisy).collect();
            let suggested = LearningRateSweep::of(&lines(&losses), false).suggestion();
            let suggested = suggested.unwrap();
            assert!((3e-4..=2e-3).contains(&suggested), "{seed}: {suggested}");
        }
    }

    #[test]
    fn a_sweep_ends_when_the_loss_explodes() {
        assert!(!has_exploded(&lines(&[2.0])));
        assert!(!has_exploded(&lines(&[2.0, 1.9, 7.0])));
        assert!(has_exploded(&lines(&[2.0, 1.9, 30.0])));
        // One batch of three is not enough, however low the losses were.
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
    fn a_tenth_of_the_lowest_is_suggested_and_none_where_nothing_falls() {
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
            suggested > rates[55] && suggested < rates[71],
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
            suggested > rates[45] && suggested < rates[60],
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
