//! The weights in the files of a run, compared with its record.

use std::path::PathBuf;

use everburn_train::{RunDirectory, StateHashes};

use super::record::{CheckpointChain, Record};
use crate::commands::{ToolError, failed};
use crate::config::RunConfig;
use crate::legible;

/// A file that has the trained parameters after a step.
struct Weights {
    name: String,
    path: PathBuf,
    /// If it is known.
    step: Option<usize>,
}

/// Those of the checkpoints, and of the model of a run that has ended.
fn weights_of(
    run: &RunDirectory,
    config: &RunConfig,
    checkpoints: &[CheckpointChain],
) -> Vec<Weights> {
    let mut all = Vec::new();
    for CheckpointChain { place, step, .. } in checkpoints {
        let folder = place.found_in(&run.checkpoints());
        // A training that continues meanwhile removes old ones.
        if folder.is_dir() {
            all.push(Weights {
                name: place.to_string(),
                path: folder.join("model.safetensors"),
                step: Some(*step),
            });
        }
    }
    let path = run.model_path();
    if path.exists() {
        let newest = checkpoints.iter().map(|checkpoint| checkpoint.step).max();
        let ended_after = run.read_report().ok().map(|report| report.steps);
        // With low-rank adaptation, the factors are part of the weights there. Of a run that was resumed and has not ended, the
        // model is of an earlier step.
        let is_of_end = config.training.lora.is_none() && ended_after >= newest;
        all.push(Weights {
            name: "model.safetensors".to_owned(),
            path,
            step: ended_after.filter(|_| is_of_end),
        });
    }
    all
}

/// Compares the trained parameters in the checkpoints and in the model of a run with the lines of their steps: which were
/// compared, in words.
pub(super) fn compare(
    run: &RunDirectory,
    config: &RunConfig,
    checkpoints: &[CheckpointChain],
    record: &Record,
) -> Result<Vec<String>, ToolError> {
    let (mut same, mut left) = (Vec::new(), Vec::new());
    for Weights { name, path, step } in weights_of(run, config, checkpoints) {
        let recorded = step.filter(|step| record.has(*step));
        let Some(step) = recorded else {
            left.push(name);
            continue;
        };
        let line = record.line(step)?;
        let difference = match line.first_difference_in(&path) {
            // A training that still runs has removed the checkpoint.
            Err(_) if !path.exists() => {
                left.push(name);
                continue;
            }
            other => other.map_err(failed)?,
        };
        match difference {
            None => same.push(name),
            Some(tensor) => {
                return Err(failed(format!(
                    "{} has other values of `{}` than step {step} of {}: the file or the record was changed",
                    legible(path.display()),
                    legible(tensor),
                    StateHashes::FILE
                )));
            }
        }
    }
    let of = |names: &[String], what: &str| {
        (!names.is_empty()).then(|| format!("trained parameters {what}: {}", names.join(", ")))
    };
    let said = [of(&same, "as recorded"), of(&left, "not compared")];
    Ok(said.into_iter().flatten().collect())
}
