//! The metrics as TensorBoard shows them.

use std::borrow::Cow;

use everburn_record::{MetricKind, MetricLine};
use everburn_tensorboard::EventFile;

use crate::metrics::sums::{ACCURACY, LOSS};
use crate::record::run_directory::RunDirectory;

const MIB: f64 = (1 << 20) as f64;

/// The event file of a run, in its folder `tensorboard`.
#[derive(Debug)]
pub(crate) struct TensorBoard {
    events: Option<EventFile>,
}

impl TensorBoard {
    /// Begins a file of a run that has come to `step`. What cannot be written is told, and stops nothing.
    pub(crate) fn open(run: &RunDirectory, step: usize) -> Option<Self> {
        let host = everburn_record::proc::host_name().unwrap_or_default();
        let folder = run.path().join("tensorboard");
        let events = EventFile::create(&folder, &host, step as u64, now());
        match events {
            Ok(events) => Some(Self {
                events: Some(events),
            }),
            Err(error) => {
                let folder = folder.display();
                tracing::warn!("there is nothing for TensorBoard in {folder}: {error}");
                None
            }
        }
    }

    /// Writes what a line of `metrics.jsonl` says.
    pub(crate) fn write(&mut self, line: &MetricLine) {
        let Some(events) = &mut self.events else {
            return;
        };
        let scalars = scalars(line);
        let scalars = scalars.iter().map(|(tag, number)| (&**tag, *number));
        let scalars: Vec<(&str, f64)> = scalars.collect();
        let written = events.scalars(line.step as u64, now(), &scalars);
        if let Err(error) = written {
            let path = events.path().display();
            tracing::warn!("{path} is not written from now on: {error}");
            self.events = None;
        }
    }
}

/// Seconds since 1970.
fn now() -> f64 {
    everburn_record::unix_time().as_secs_f64()
}

fn scalars(line: &MetricLine) -> Vec<(Cow<'static, str>, f64)> {
    let kind = match line.kind {
        MetricKind::Step => "step",
        MetricKind::Train => "train",
        MetricKind::Validation => "validation",
        MetricKind::Test => "test",
    };
    let measured = std::iter::once((LOSS, line.loss))
        .chain(line.accuracy.map(|accuracy| (ACCURACY, accuracy)))
        .chain(line.metrics.iter().map(|(name, mean)| (&**name, *mean)));
    let mut scalars: Vec<_> = measured
        .map(|(name, mean)| (Cow::Owned(format!("{name}/{kind}")), mean))
        .collect();
    if line.kind == MetricKind::Step {
        let cost = &line.cost;
        let rate = line.samples as f64 / cost.seconds;
        let memory = cost.peak_memory.map(|bytes| bytes as f64 / MIB);
        let costs = [
            ("speed/samples_per_second", Some(rate)),
            ("speed/seconds_per_step", Some(cost.seconds)),
            ("speed/waited", Some(cost.waited)),
            ("speed/exposed_communication", Some(cost.exposed)),
            ("memory/peak_mib", memory),
            ("learning_rate", line.learning_rate),
            ("gradient_norm", line.gradient_norm),
            ("loss_scale", line.loss_scale),
        ];
        let there = costs
            .into_iter()
            .filter_map(|(tag, number)| Some((tag.into(), number?)));
        scalars.extend(there);
    }
    scalars
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::sums::MetricSums;

    #[test]
    fn each_kind_of_line_has_curves_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::create(folder.path().join("a")).unwrap();
        let mut tensor_board = TensorBoard::open(&run, 0).unwrap();
        let sums = MetricSums {
            loss_sum: 1.0,
            predictions: 2,
            samples: 2,
            ..MetricSums::default()
        };
        let sums = sums
            .with_metric(ACCURACY, 1.0, 2.0)
            .with_metric("mae", 3.0, 2.0);
        for kind in [MetricKind::Step, MetricKind::Validation] {
            tensor_board.write(&sums.line(kind, 1, 10));
        }
        let path = tensor_board.events.unwrap().path().to_path_buf();
        assert!(path.starts_with(run.path().join("tensorboard")));
        let bytes = std::fs::read(path).unwrap();
        for tag in [
            "loss/step",
            "accuracy/validation",
            "mae/step",
            "speed/waited",
        ] {
            let there = bytes.windows(tag.len()).any(|part| part == tag.as_bytes());
            assert!(there, "{tag}");
        }
    }
}
