//! burn-train's dashboard, fed with what another process has recorded.

use burn_train::metric::Metric;
use burn_train::renderer::MetricsRenderer;
use everburn_monitor::Update;
use everburn_record::{MetricKind, MetricLine, Settings, plain};

use crate::metrics::step_report::StepReport;
use crate::metrics::sums::{ACCURACY, MetricSums};
use crate::metrics::{NewestReport, RankMetric};
use crate::renderer::NamedMetrics;

/// Feeds a renderer with the lines of a run's `metrics.jsonl`, through the metrics of the training itself: what it shows
/// is what the training's own dashboard shows, of the steps that were logged, and of each whole epoch.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn_monitor::Update;
/// use everburn_record::MetricLine;
/// use everburn::train::renderer::{Lines, Replay};
///
/// let mut replay = Replay::on(Box::new(Lines::new(Box::new(std::io::sink()))));
/// let line = MetricLine { epoch: 1, step: 10, loss: 2.0, ..MetricLine::default() };
/// replay.take(&[Update::Metric(line)]);
/// ```
pub struct Replay {
    renderer: Box<dyn MetricsRenderer>,
    metrics: [RankMetric; 5],
    epochs: usize,
    /// How many samples each step and each epoch has; 0 while that is not known.
    batch_size: u64,
    epoch_samples: u64,
    label: String,
    begun: bool,
    split: Split,
    epoch: usize,
    /// The sums of the split's lines.
    so_far: MetricSums,
    /// The newest step of each kind: what is told again is shown once.
    shown: [usize; 3],
}

/// How many of the metrics, the first, the means of an epoch and of a validation have: the others are of single steps.
const OF_MEANS: usize = 1;

/// How many metrics of an objective are shown, and how much of their names, whatever a file says.
const MOST_METRICS: usize = 32;
const LONGEST_NAME: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Split {
    None,
    Train,
    Validation,
}

impl Replay {
    /// Feeds `renderer`.
    pub fn on(renderer: Box<dyn MetricsRenderer>) -> Self {
        let newest = NewestReport::default();
        let metrics = [
            RankMetric::loss().telling(&newest),
            RankMetric::samples_per_second(),
            RankMetric::waiting(),
            RankMetric::exposed_communication(),
            RankMetric::peak_memory(),
        ];
        Self {
            renderer: Box::new(NamedMetrics::on(renderer, &newest)),
            metrics,
            epochs: 0,
            batch_size: 0,
            epoch_samples: 0,
            label: String::new(),
            begun: false,
            split: Split::None,
            epoch: 0,
            so_far: MetricSums::default(),
            shown: [0; 3],
        }
    }

    /// Shows what is new.
    pub fn take(&mut self, updates: &[Update]) {
        // How many samples there are comes after the steps themselves where a run is read from its beginning.
        for update in updates {
            match update {
                Update::Run { name, config } => {
                    let settings: Settings = config.parse().unwrap_or_default();
                    let model = settings.get("model").unwrap_or("a model");
                    self.label = format!("{model} in {name}");
                    let size = settings.get("training.batch_size");
                    self.batch_size = size.and_then(|size| size.parse().ok()).unwrap_or(0);
                }
                Update::Live(live) if live.epochs > 0 => {
                    self.epochs = live.epochs as usize;
                    self.epoch_samples = live.epoch_samples.unwrap_or(0);
                }
                _ => {}
            }
        }
        for update in updates {
            if let Update::Metric(line) = update {
                self.show(line);
            }
        }
    }

    fn show(&mut self, line: &MetricLine) {
        let (place, split) = match line.kind {
            MetricKind::Step => (0, Split::Train),
            MetricKind::Validation => (1, Split::Validation),
            MetricKind::Train => (2, Split::Train),
            MetricKind::Test => return,
        };
        if line.step <= self.shown[place] {
            return;
        }
        self.shown[place] = line.step;
        self.enter(split, line);
        let sums = sums_of(line);
        let is_step = line.kind == MetricKind::Step;
        if !is_step {
            // It has the steps that were not logged, too.
            self.so_far = MetricSums::default();
        }
        let before = self.so_far.clone();
        self.so_far += &sums;
        let report = StepReport::OfAllRanks {
            sums,
            cost: line.cost,
            before,
        };
        let shown = if is_step {
            self.metrics.len()
        } else {
            OF_MEANS
        };
        for metric in &mut self.metrics[..shown] {
            // A report of numbers has nothing to read from a device.
            match (metric.add(&report), split) {
                (None, _) => {}
                (Some(state), Split::Validation) => self.renderer.update_valid(state),
                (Some(state), _) => self.renderer.update_train(state),
            }
        }
        let done = match split {
            Split::Validation => line.samples,
            _ => self.samples_done(line),
        };
        self.renderer.update_split(done as usize);
        if split == Split::Validation {
            // Its one line is the mean of all.
            self.enter(Split::None, line);
        }
    }

    /// How many samples of its epoch have been learned from after the step of `line`: as the training's own dashboard counts.
    fn samples_done(&self, line: &MetricLine) -> u64 {
        let steps = self.epoch_samples.div_ceil(self.batch_size.max(1));
        let before = (line.epoch as u64).saturating_sub(1).saturating_mul(steps);
        let done = (line.step as u64).saturating_sub(before);
        done.saturating_mul(self.batch_size).min(self.epoch_samples)
    }

    /// The metrics of each epoch and split begin anew.
    fn enter(&mut self, split: Split, line: &MetricLine) {
        if !std::mem::replace(&mut self.begun, true) {
            for metric in &self.metrics {
                self.renderer.register_metric(metric.definition());
            }
            let epochs = self.epochs.max(line.epoch);
            self.renderer.start(epochs, 0, None, Some(&self.label));
        }
        if self.split == split && self.epoch == line.epoch {
            return;
        }
        if self.split != Split::None {
            self.renderer.end_split();
        }
        for metric in &mut self.metrics {
            metric.clear();
        }
        self.so_far = MetricSums::default();
        if self.epoch != line.epoch {
            self.renderer.update_epoch(line.epoch.saturating_sub(1));
        }
        (self.split, self.epoch) = (split, line.epoch);
        let (name, samples) = match split {
            Split::None => return,
            Split::Train => ("train", self.epoch_samples),
            Split::Validation => ("valid", line.samples),
        };
        self.renderer.start_split(name, samples as usize);
    }
}

/// The sums that a line is the means of, as far as it says.
fn sums_of(line: &MetricLine) -> MetricSums {
    let samples = line.samples;
    let predictions = line.predictions.max(samples).max(1);
    let weight = predictions as f64;
    let mut sums = MetricSums {
        loss_sum: line.loss * weight,
        predictions,
        samples,
        ..MetricSums::default()
    };
    let accuracy = line.accuracy.map(|accuracy| (ACCURACY, accuracy));
    let others = line.metrics.iter().map(|(name, mean)| (&**name, *mean));
    for (name, mean) in accuracy.into_iter().chain(others.take(MOST_METRICS)) {
        let name = plain::line(name, LONGEST_NAME);
        sums = sums.with_metric(name, mean * weight, weight);
    }
    sums
}

#[cfg(test)]
mod tests {
    use everburn_record::{Live, StepCost};

    use super::*;
    use crate::renderer::Lines;
    use crate::renderer::lines::tests::Written;

    fn line(kind: MetricKind, epoch: usize, step: usize, loss: f64) -> Update {
        Update::Metric(MetricLine {
            kind,
            epoch,
            step,
            loss,
            accuracy: Some(0.5),
            metrics: [("mae".to_string(), loss / 2.0)].into(),
            samples: 64,
            predictions: 64,
            cost: StepCost {
                seconds: 0.5,
                ..StepCost::default()
            },
            ..MetricLine::default()
        })
    }

    #[test]
    fn a_recorded_run_is_shown_as_one_that_goes_on() {
        let shown = Written::default();
        let mut replay = Replay::on(Box::new(Lines::new(Box::new(shown.clone()))));
        let live = Live {
            epochs: 3,
            epoch_samples: Some(1270),
            ..Live::default()
        };
        let run = Update::Run {
            name: "a".into(),
            config: "model = 'mlp'\n[training]\nbatch_size = 64\n".into(),
        };
        let updates = [
            line(MetricKind::Step, 1, 10, 4.0),
            line(MetricKind::Step, 1, 20, 2.0),
            // Of all steps, and not of those alone that were logged.
            line(MetricKind::Train, 1, 20, 3.5),
            line(MetricKind::Validation, 1, 20, 1.5),
            line(MetricKind::Step, 2, 30, 1.0),
            // The file was written anew.
            line(MetricKind::Step, 1, 10, 9.0),
            line(MetricKind::Validation, 2, 40, 0.5),
            // No step of this epoch was logged.
            line(MetricKind::Train, 3, 60, 0.25),
            line(MetricKind::Validation, 3, 60, 0.125),
            Update::Live(live),
            run,
        ];
        replay.take(&updates);
        let text = shown.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 6, "{text}");
        for (line, parts) in lines.iter().zip([
            [
                "epoch 1/3  train  1270/1270",
                "loss 3.5000  accuracy 50.00 %  mae 1.7500  ",
            ],
            [
                "epoch 1/3  valid  64/64",
                "loss 1.5000  accuracy 50.00 %  mae 0.7500",
            ],
            [
                "epoch 2/3  train  640/1270",
                "loss 1.0000  accuracy 50.00 %  mae 0.5000  ",
            ],
            [
                "epoch 2/3  valid  64/64",
                "loss 0.5000  accuracy 50.00 %  mae 0.2500",
            ],
            [
                "epoch 3/3  train  1270/1270",
                "loss 0.2500  accuracy 50.00 %  mae 0.1250",
            ],
            [
                "epoch 3/3  valid  64/64",
                "loss 0.1250  accuracy 50.00 %  mae 0.0625",
            ],
        ]) {
            assert!(parts.iter().all(|part| line.contains(part)), "{text}");
            // What is of single steps is there where one was logged.
            let has_steps = line.contains("  train  ") && !line.contains("epoch 3");
            assert_eq!(line.contains(" samples/s"), has_steps, "{text}");
            assert!(line.len() <= 100 && !line.contains("waiting"), "{text}");
        }
    }
}
