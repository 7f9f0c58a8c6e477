//! Checkpoints of a run, and the model with the parameters of one.

use burn::module::Module;
use everburn_train::checkpoint::{Checkpoint, CheckpointFolder, Place, Progress};
use everburn_train::{load_averaged, load_safetensors, with_averaged_parameters, with_parameters};

use crate::config::RunConfig;
use crate::error::CliError;
use crate::prelude::*;

/// How far the newest checkpoint of a run had come, if there is one.
pub(crate) fn newest_progress(run: &RunDirectory) -> Option<Progress> {
    CheckpointFolder::new(run.checkpoints(), 1).newest_progress()
}

/// The checkpoint of an epoch, or of the best epoch.
pub(crate) fn load_checkpoint(run: &RunDirectory, which: &str) -> Result<Checkpoint, CliError> {
    let place = place_of(run, which)?;
    Ok(CheckpointFolder::new(run.checkpoints(), 1).load(place)?)
}

/// Where the training stood at the checkpoint of an epoch, or of the best epoch, if that can be read.
pub(crate) fn progress_at(run: &RunDirectory, which: &str) -> Result<Option<Progress>, CliError> {
    let place = place_of(run, which)?;
    Ok(CheckpointFolder::new(run.checkpoints(), 1).progress(place))
}

/// The place of the checkpoint of an epoch, or of the best epoch.
fn place_of(run: &RunDirectory, which: &str) -> Result<Place, CliError> {
    let folder = CheckpointFolder::new(run.checkpoints(), 1);
    let places = folder.places()?;
    let Some(newest) = places.last() else {
        let help = match run.model_path().is_file() {
            true => "leave --checkpoint out: the run has one set of weights, as an import has",
            false => "its training ended before the first one: start it again",
        };
        return Err(CliError::usage_with_help(
            format!(
                "--checkpoint {which}: {} has no checkpoints",
                run.path().display()
            ),
            help,
        ));
    };
    let place = match which {
        "best" => match folder.newest_progress() {
            Some(progress) => progress.best.map(|best| Place::from(best.epoch)),
            // All are damaged; the newest says how.
            None => Some(*newest),
        },
        name => {
            let epoch = name.parse::<usize>().map(Place::from);
            epoch.or(name.parse::<Place>()).ok()
        }
    };
    place.ok_or_else(|| {
        let what = match which {
            "best" => "no epoch of this run was finished and validated, so none is the best",
            _ => "there is no checkpoint of this name",
        };
        CliError::usage_with_help(
            format!("--checkpoint {which}: {what}"),
            format!(
                "--checkpoint takes best, the number of an epoch, or the name of a folder in {}",
                run.checkpoints().display()
            ),
        )
    })
}

/// The model with the parameters of a run's end, or of a checkpoint: of `best`, or the number of an epoch. With `ema` the
/// averaged ones.
pub(crate) fn load_parameters<M: Module>(
    model: M,
    run: &RunDirectory,
    checkpoint: Option<&str>,
    ema: bool,
) -> Result<M, CliError> {
    let lora = || Ok::<_, CliError>(run.read_config::<RunConfig>()?.training.lora);
    Ok(match (checkpoint, ema) {
        (None, false) => load_safetensors(model, run)?,
        (None, true) => load_averaged(model, run)?,
        (Some(name), false) => {
            let checkpoint = load_checkpoint(run, name)?;
            match lora()? {
                None => with_parameters(model, &checkpoint)?,
                Some(lora) => with_parameters(lora.adapt(model)?, &checkpoint)?.materialize(),
            }
        }
        (Some(name), true) => with_averaged_parameters(model, &load_checkpoint(run, name)?)?,
    })
}
