//! Who measures: a process that times the rows of its orders.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use everburn::launch::{Children, WorkerPool, forget_ranks, keep_freed_memory};
use everburn_record::units::counted;
use serde_json::{Value, json};

use super::layer::{Answer, Order};
use super::options::Row;
use crate::failure::Failure;

/// What the peers run.
pub(super) const SCRIPT: &str = "pytorch_layers.py";

/// A process that measures with a fixed number of threads, and stands still else.
pub(super) struct Side<'a> {
    pub(super) name: String,
    threads: usize,
    pool: WorkerPool<'a>,
}

impl<'a> Side<'a> {
    pub(super) fn start(
        children: &'a Children,
        name: &str,
        mut command: Command,
        threads: usize,
        folder: &Path,
    ) -> Result<Self, Failure> {
        forget_ranks(&mut command);
        // All sides keep what they free: what is compared is arithmetic, not the allocator.
        keep_freed_memory(&mut command);
        command.arg("--threads").arg(threads.to_string());
        let name = format!("{name} with {}", counted(threads, "thread"));
        let pool = WorkerPool::start(children, name.clone(), vec![command], folder)?;
        pool.pause();
        Ok(Self {
            name,
            threads,
            pool,
        })
    }

    pub(super) fn measure(
        &mut self,
        row: &Row,
        order: &Order,
        patience: Duration,
    ) -> Result<Answer, Failure> {
        self.pool.resume();
        let answers = self.pool.ask(&json!(order), patience);
        self.pool.pause();
        let answers = answers.map_err(|error| match error.into() {
            Failure::Failed(what) => Failure::Failed(format!("{}: {what}", row.full_name())),
            other => other,
        })?;
        let answer = answers.first().unwrap_or(&Value::Null);
        read(answer, self.threads).map_err(|what| {
            Failure::new(format!(
                "{}, {}: {what}: {answer}",
                self.name,
                row.full_name()
            ))
        })
    }

    pub(super) fn finish(self, patience: Duration) -> Result<(), Failure> {
        self.pool.resume();
        self.pool.finish(patience)?;
        Ok(())
    }
}

/// An answer that is a measurement with this many threads.
fn read(answer: &Value, threads: usize) -> Result<Answer, String> {
    let read: Answer = serde_json::from_value(answer.clone()).map_err(|error| error.to_string())?;
    match read {
        _ if read.threads != threads => Err("it has measured with other threads".to_owned()),
        _ if !(read.microseconds.is_finite() && read.microseconds > 0.0) => {
            Err("`microseconds` is not positive".to_owned())
        }
        _ => Ok(read),
    }
}

impl Answer {
    /// A layer that computes something else may be fast: both sides' results must agree.
    pub(super) fn compare(&self, other: &Self, row: &Row) -> Result<(), Failure> {
        let near =
            |(a, b): (&f64, &f64)| (a - b).abs() <= row.layer.tolerance() * a.abs().max(b.abs());
        let [ours, theirs] = [self, other].map(|side| side.check.as_deref().unwrap_or_default());
        if ours.len() == theirs.len() && ours.iter().zip(theirs).all(near) {
            return Ok(());
        }
        Err(Failure::new(format!(
            "{}: the two sides compute different things; the mean sizes of output and gradients are {:?} \
             and {:?}",
            row.full_name(),
            ours,
            theirs
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::super::layer::{Layer, Pass};
    use super::*;
    use crate::peers::script;

    #[test]
    fn an_answer_is_of_the_threads_that_were_asked_for() {
        let line = json!({ "microseconds": 5.5, "threads": 2, "check": [1.0, 0.5] });
        let answer = read(&line, 2).unwrap();
        assert_eq!(
            (answer.microseconds, answer.check),
            (5.5, Some(vec![1.0, 0.5]))
        );
        assert!(read(&line, 1).is_err());
        for wrong in [
            json!({ "threads": 1 }),
            json!({ "threads": 1, "microseconds": 0 }),
            json!({ "threads": 1, "microseconds": 1, "check": ["NaN"] }),
        ] {
            assert!(read(&wrong, 1).is_err(), "{wrong}");
        }
    }

    #[test]
    fn results_that_differ_by_more_than_rounding_are_no_measurement() {
        let row = |layer| Row {
            model: "mnist",
            batch: Some(64),
            layer,
            pass: Pass::Backward,
            count: 1,
        };
        let answer = |check: &[f64]| Answer {
            microseconds: 1.0,
            threads: 1,
            check: Some(check.to_vec()),
        };
        let relu = row(Layer::Relu { shape: vec![50] });
        let ours = answer(&[1.0, 0.5]);
        assert_eq!(ours.compare(&answer(&[1.0001, 0.5]), &relu), Ok(()));
        let complaint = ours.compare(&answer(&[1.01, 0.5]), &relu).unwrap_err();
        assert!(
            complaint
                .to_string()
                .starts_with("mnist, batch 64, relu on 50, forward + backward: the two sides"),
            "{complaint}"
        );
        assert!(ours.compare(&answer(&[1.0]), &relu).is_err());
        assert!(ours.compare(&answer(&[f64::NAN, 0.5]), &relu).is_err());
        let dropout = row(Layer::Dropout {
            shape: vec![256],
            share: 0.5,
        });
        assert_eq!(ours.compare(&answer(&[1.01, 0.5]), &dropout), Ok(()));
    }

    #[test]
    fn the_script_is_there_and_knows_the_layers() {
        let text = std::fs::read_to_string(script(SCRIPT)).unwrap();
        for network in &super::super::networks::NETWORKS {
            for used in network.layers() {
                let kind = json!(used.layer)["kind"].to_string();
                assert!(text.contains(&format!("{kind}:")), "{kind}");
                for pass in used.passes() {
                    assert!(text.contains(&json!(pass).to_string()), "{pass}");
                }
            }
        }
    }
}
