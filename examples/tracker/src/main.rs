//! Tells a tracker of experiments what a training does: a hook, here with a folder as the tracker.
//!
//! A hook for MLflow, Weights & Biases or a chat has the same shape: it sends what this one writes.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use everburn::prelude::*;
use everburn::tasks;
use serde_json::{Value, json};

// The tasks that come with Everburn, or your own, and a hook after every training.
fn main() -> ExitCode {
    App::new().task("mlp", tasks::mlp()).hook(|| Tracker { log: None, alarm: false }).main()
}

/// Writes what it is told, a line each. Each rank has one; that of rank 0 writes.
struct Tracker {
    log: Option<File>,
    alarm: bool,
}

impl Tracker {
    fn send(&mut self, event: &str, more: Value) -> Result<(), HookError> {
        if let Some(log) = &mut self.log {
            // Any error becomes a `HookError` by `?`. It ends the training on all ranks, after a checkpoint.
            writeln!(log, "{}", json!({ "event": event, "is": more }))?;
        }
        Ok(())
    }
}

impl Hook for Tracker {
    // Before the first step. A run that continues from a checkpoint has made some already.
    fn at_start(&mut self, run: &mut Run<'_>) -> Result<(), HookError> {
        if run.rank() == 0
            && let Some(folder) = run.directory()
        {
            let path = folder.join("tracker.jsonl");
            self.log = Some(OpenOptions::new().append(true).create(true).open(path)?);
        }
        let about = json!({ "ranks": run.world_size(), "step": run.step(), "epochs": run.config().epochs });
        self.send("start", about)
    }

    // After each step: the numbers are those of all ranks, and the same on each.
    fn after_step(&mut self, step: &MetricLine, run: &mut Run<'_>) -> Result<(), HookError> {
        // So all ranks come to the same decisions; one alone would do.
        if step.loss > 100.0 && !self.alarm {
            self.alarm = true;
            run.note(format!("the loss is {} after step {}", step.loss, step.step));
            run.save();
        }
        self.send("step", json!({ "step": step.step, "loss": step.loss, "rate": step.learning_rate }))
    }

    // After each epoch and its validation.
    fn after_epoch(&mut self, epoch: &EpochLines, run: &mut Run<'_>) -> Result<(), HookError> {
        let validation = epoch.validation.as_ref();
        let accuracy = validation.and_then(|line| line.accuracy);
        // A rule of your own for stopping: the run ends with its test and its report.
        if accuracy.is_some_and(|accuracy| accuracy > 0.999) {
            run.stop("the validation has next to no errors left");
        }
        self.send("epoch", json!({ "epoch": epoch.train.epoch, "validation": validation.map(|line| line.loss) }))
    }

    // After a checkpoint is written and verified: the moment to copy it elsewhere.
    fn after_checkpoint(&mut self, folder: &Path, _run: &mut Run<'_>) -> Result<(), HookError> {
        self.send("checkpoint", json!(folder.file_name().map(|name| name.to_string_lossy())))
    }

    // After others were lost, or this rank has failed.
    fn after_failure(&mut self, error: &TrainError, goes_on: bool) {
        // There is nobody left to tell of a failure to write.
        let _ = self.send("failure", json!({ "error": error.to_string(), "goes_on": goes_on }));
    }

    // When everything is written.
    fn at_end(&mut self, report: &TrainingReport) -> Result<(), HookError> {
        self.send("end", json!({ "steps": report.steps, "test_accuracy": report.test_accuracy }))
    }
}
