//! `metrics.jsonl`, read line by line.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;

use everburn_record::{MetricKind, MetricLine, file, plain};

use super::{Note, json_lines};
use crate::decimation::Series;

/// A line has some 400 bytes.
const LONGEST_LINE: usize = 1 << 16;

/// How many metrics of an objective are kept, and how much of their names.
const MOST_NAMED: usize = 32;
const LONGEST_NAME: usize = 64;

/// How many of the last epochs are in a table.
const MOST_EPOCHS: usize = 50;

/// A quantity of the training, of each step, each epoch, and each validation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Curve {
    /// Of single training steps, as often as they were logged.
    pub step: Series,
    /// The mean over all training steps of an epoch.
    pub epoch: Series,
    /// Of the validation after an epoch.
    pub validation: Series,
}

impl Curve {
    fn is_empty(&self) -> bool {
        let all = [&self.step, &self.epoch, &self.validation];
        all.iter().all(|series| series.count() == 0)
    }
}

/// What an epoch came to.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct EpochMetrics {
    /// The epoch, from 1.
    pub epoch: u64,
    /// How many steps had been made at its end.
    pub step: u64,
    /// The mean loss of a training prediction.
    pub loss: Option<f64>,
    /// The share of training predictions that were correct.
    pub accuracy: Option<f64>,
    /// The mean loss of a validation prediction.
    pub validation_loss: Option<f64>,
    /// The share of validation predictions that were correct.
    pub validation_accuracy: Option<f64>,
    /// Seconds of training steps.
    pub seconds: Option<f64>,
    /// Samples of all ranks in a second of training.
    pub samples_per_second: Option<f64>,
}

/// What `metrics.jsonl` says: curves over steps, decimated. Costs are those of rank 0.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Metrics {
    /// The mean loss of a prediction, in nats.
    pub loss: Curve,
    /// The share of predictions that were correct.
    pub accuracy: Curve,
    /// The other metrics of the objective, by name.
    pub named: BTreeMap<String, Curve>,
    /// The loss over milliseconds since 1970, where lines have a time.
    pub loss_by_time: Curve,
    /// The learning rate.
    pub learning_rate: Series,
    /// The norm of all gradients together.
    pub gradient_norm: Series,
    /// Samples of all ranks in a second, of single steps.
    pub samples_per_second: Series,
    /// How long a step took, in seconds.
    pub seconds: Series,
    /// How long of that rank 0 stood still for others.
    pub waited: Series,
    /// How long gradients were being exchanged, hidden or not.
    pub communication: Series,
    /// Bytes of gradients that rank 0 handed to the exchange in a step.
    pub gradient_bytes: Series,
    /// The most memory that a rank has used, in bytes.
    pub peak_memory: Series,
    /// The last epochs.
    pub epochs: VecDeque<EpochMetrics>,
    /// The highest step of any line.
    pub last_step: u64,
    /// Seconds of training steps, of the epochs that have ended.
    pub train_seconds: f64,
    /// Bytes of gradients, of the epochs that have ended.
    pub total_gradient_bytes: f64,
    /// How many lines were read.
    pub lines: u64,
    /// How many others could not be read.
    pub damaged: u64,
}

impl Metrics {
    /// Reads the file of a run directory; what is wrong with it is noted.
    pub(super) fn read(folder: &Path, notes: &mut Vec<Note>) -> Self {
        const NAME: &str = MetricLine::FILE;
        let mut metrics = Self::default();
        let file = match file::open(&folder.join(NAME)) {
            Ok(file) => file,
            Err(error) => {
                let why = super::why(&error, "it is missing");
                notes.push(Note::new(NAME, format!("{why}: there are no curves")));
                return metrics;
            }
        };
        let damage = json_lines::each(file, NAME, LONGEST_LINE, notes, |line| metrics.take(&line));
        metrics.damaged = damage.lines;
        if damage.unfinished {
            let what = "its last line is cut off, as it is while a run writes it, or after a crash";
            notes.push(Note::new(NAME, what));
        }
        if metrics.loss.step.turns() > 0 {
            let what = "steps go back: where steps were made again, the later lines count";
            notes.push(Note::new(NAME, what));
        }
        if metrics.loss.step.no_numbers() > 0 {
            let count = metrics.loss.step.no_numbers();
            notes.push(Note::new(
                NAME,
                format!("in {count} of its lines the loss is not a number"),
            ));
        }
        metrics
    }

    fn take(&mut self, line: &MetricLine) {
        self.lines += 1;
        let step = line.step as u64;
        self.last_step = self.last_step.max(step);
        let series = |curve: &mut Curve, value: Option<f64>, at: u64| {
            let series = match line.kind {
                MetricKind::Step => &mut curve.step,
                MetricKind::Train => &mut curve.epoch,
                MetricKind::Validation => &mut curve.validation,
                MetricKind::Test => return,
            };
            series.push(at, value.unwrap_or(f64::NAN));
        };
        series(&mut self.loss, Some(line.loss), step);
        // What an objective never reports has no line.
        if line.accuracy.is_some() || !self.accuracy.is_empty() {
            series(&mut self.accuracy, line.accuracy, step);
        }
        for (name, mean) in &line.metrics {
            let name = plain::line(name, LONGEST_NAME);
            if self.named.contains_key(&name) || self.named.len() < MOST_NAMED {
                let curve = self.named.entry(name).or_default();
                series(curve, Some(*mean), step);
            }
        }
        if let Some(time) = line.unix_time_ms {
            series(&mut self.loss_by_time, Some(line.loss), time);
        }
        match line.kind {
            MetricKind::Step => self.take_step(line),
            MetricKind::Train => {
                self.train_seconds += line.cost.seconds.max(0.0);
                self.total_gradient_bytes += line.cost.gradient_bytes as f64;
                let seconds = Some(line.cost.seconds).filter(|seconds| *seconds > 0.0);
                let rate = line.samples_per_second();
                let epoch = self.epoch(line);
                (epoch.loss, epoch.accuracy) = (line.known_loss(), line.accuracy);
                (epoch.seconds, epoch.samples_per_second) = (seconds, rate);
            }
            MetricKind::Validation => {
                let epoch = self.epoch(line);
                (epoch.validation_loss, epoch.validation_accuracy) =
                    (line.known_loss(), line.accuracy);
            }
            MetricKind::Test => {}
        }
    }

    fn take_step(&mut self, line: &MetricLine) {
        // A line of an older version may have none.
        let cost = Some(&line.cost).filter(|cost| cost.seconds > 0.0);
        let numbers = [
            (&mut self.learning_rate, line.learning_rate),
            (&mut self.gradient_norm, line.gradient_norm),
            (&mut self.samples_per_second, line.samples_per_second()),
            (&mut self.seconds, cost.map(|cost| cost.seconds)),
            (&mut self.waited, cost.map(|cost| cost.waited)),
            (&mut self.communication, cost.map(|cost| cost.communication)),
            (
                &mut self.gradient_bytes,
                cost.map(|cost| cost.gradient_bytes as f64),
            ),
            (
                &mut self.peak_memory,
                line.cost.peak_memory.map(|bytes| bytes as f64),
            ),
        ];
        for (series, number) in numbers {
            if let Some(number) = number {
                series.push(line.step as u64, number);
            }
        }
    }

    /// The epoch of a line, which is one of the last. An epoch that was left early may have two training lines.
    fn epoch(&mut self, line: &MetricLine) -> &mut EpochMetrics {
        let number = line.epoch as u64;
        let mut epochs = self.epochs.iter();
        let known = epochs.rposition(|epoch| epoch.epoch == number);
        let at = known.unwrap_or_else(|| {
            if self.epochs.len() == MOST_EPOCHS {
                self.epochs.pop_front();
            }
            self.epochs.push_back(EpochMetrics::default());
            self.epochs.len() - 1
        });
        let epoch = &mut self.epochs[at];
        (epoch.epoch, epoch.step) = (number, line.step as u64);
        epoch
    }
}
