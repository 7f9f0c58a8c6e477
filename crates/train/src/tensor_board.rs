//! The metrics as TensorBoard shows them.

use everburn_tensorboard::EventFile;

use crate::run_directory::{MetricKind, MetricLine, RunDirectory};

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
        let written = events.scalars(line.step as u64, now(), &scalars(line));
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

fn scalars(line: &MetricLine) -> Vec<(&'static str, f64)> {
    let [loss, accuracy] = match line.kind {
        MetricKind::Step => ["loss/step", "accuracy/step"],
        MetricKind::Train => ["loss/train", "accuracy/train"],
        MetricKind::Validation => ["loss/validation", "accuracy/validation"],
        MetricKind::Test => ["loss/test", "accuracy/test"],
    };
    let mut scalars = vec![(loss, line.loss), (accuracy, line.accuracy)];
    if line.kind == MetricKind::Step {
        let cost = &line.cost;
        scalars.extend([
            (
                "speed/samples_per_second",
                line.samples as f64 / cost.seconds,
            ),
            ("speed/seconds_per_step", cost.seconds),
            ("speed/waited", cost.waited),
            ("speed/exposed_communication", cost.exposed),
        ]);
        let memory = cost.peak_memory.map(|bytes| bytes as f64 / MIB);
        scalars.extend(memory.map(|mebibytes| ("memory/peak_mib", mebibytes)));
        scalars.extend(line.learning_rate.map(|rate| ("learning_rate", rate)));
        scalars.extend(line.gradient_norm.map(|norm| ("gradient_norm", norm)));
        scalars.extend(line.loss_scale.map(|scale| ("loss_scale", scale)));
    }
    scalars
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tally::Tally;

    #[test]
    fn each_kind_of_line_has_curves_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::create(folder.path().join("a")).unwrap();
        let mut tensor_board = TensorBoard::open(&run, 0).unwrap();
        let tally = Tally {
            loss_sum: 1.0,
            correct: 1,
            predictions: 2,
            samples: 2,
        };
        for kind in [MetricKind::Step, MetricKind::Validation] {
            tensor_board.write(&MetricLine::new(kind, 1, 10, &tally));
        }
        let path = tensor_board.events.unwrap().path().to_path_buf();
        assert!(path.starts_with(run.path().join("tensorboard")));
        let bytes = std::fs::read(path).unwrap();
        for tag in ["loss/step", "accuracy/validation", "speed/waited"] {
            let there = bytes.windows(tag.len()).any(|part| part == tag.as_bytes());
            assert!(there, "{tag}");
        }
    }
}
