//! `model.safetensors` and `ema.safetensors`: a model's parameters by path.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::store::burn_pack::Tensor as PackedTensor;
use burn::store::{ModuleSnapshot, ModuleStore, SafetensorsStore};

use crate::checkpoint::adapter::{Adapter, write_adapter};
use crate::checkpoint::state_dict::{BURNS_TERMS, mismatch, why_not_safetensors};
use crate::checkpoint::{CheckpointFolder, Place};
use crate::error::TrainError;
use crate::record::run_directory::{RunDirectory, unread, write_file};

/// Why a run may not have its parameters, which are at `path`, and what to take instead.
fn why_none(path: &Path) -> &'static str {
    let checkpoints = CheckpointFolder::new(path.with_file_name("checkpoints"), 1);
    match checkpoints.places() {
        Ok(places) if !places.is_empty() => {
            "the training has not ended, or has failed. `eval`, `predict` and `export` take a checkpoint by `checkpoint`, and \
             `init_from` takes its folder, RUN/checkpoints/NAME"
        }
        _ => {
            "nor is there a checkpoint: the training has not come to its first one, has failed before it, or was a search for a \
             learning rate or a batch size. There is nothing to take: train again"
        }
    }
}

/// Writes the parameters by path, atomically: a run's `model.safetensors`.
///
/// # Errors
/// [`TrainError::Write`] if it cannot be written.
pub fn save_safetensors<M: Module>(model: &M, run: &RunDirectory) -> Result<(), TrainError> {
    let path = run.model_path();
    let bytes = to_safetensors(model).map_err(|reason| TrainError::write(&path, reason))?;
    write_file(&path, &bytes)
}

/// Writes what a training has learned: the weights, and the factors and the averaged weights that it has beside them.
pub(crate) fn write_trained<M: Module>(
    run: &RunDirectory,
    model: &M,
    adapter: Option<&Adapter>,
    averaged: Option<&Vec<u8>>,
) -> Result<(), TrainError> {
    save_safetensors(model, run)?;
    write_adapter(adapter, run)?;
    averaged.map_or(Ok(()), |averaged| write_file(&run.ema_path(), averaged))
}

/// The parameters by path, as a safetensors file has them.
pub(crate) fn to_safetensors<M: Module>(model: &M) -> Result<Vec<u8>, String> {
    // One entry of metadata: of several, a hash map, equal models would give different files.
    let (key, value) = BURNS_TERMS;
    let mut store = SafetensorsStore::from_bytes(None)
        .clear_metadata()
        .metadata(key, value);
    let collected = store.collect_from(model);
    collected.map_err(|error| error.to_string())?;
    store.get_bytes().map_err(|error| error.to_string())
}

/// The model with the parameters of a safetensors file.
pub(crate) fn with_safetensors<M: Module>(mut model: M, bytes: Vec<u8>) -> Result<M, String> {
    let mut store = SafetensorsStore::from_bytes(Some(bytes));
    let applied = store.apply_to(&mut model);
    applied.map_err(|error| error.to_string())?;
    Ok(model)
}

/// The model with the parameters of a run's `model.safetensors`.
///
/// # Errors
/// [`TrainError::File`] if the file is missing or damaged, and [`TrainError::Weights`] if it is of another model.
pub fn load_safetensors<M: Module>(model: M, run: &RunDirectory) -> Result<M, TrainError> {
    require_newest(run, &run.model_path())?;
    load(model, run, &run.model_path(), why_none(&run.model_path()))
}

/// Refuses the parameters of a run's end that the run has gone beyond: it was resumed since, and has not ended again.
pub(super) fn require_newest(run: &RunDirectory, path: &Path) -> Result<(), TrainError> {
    let newest = CheckpointFolder::new(run.checkpoints(), 1).newest_progress();
    let (Some(newest), Ok(report)) = (newest, run.read_report()) else {
        return Ok(());
    };
    if newest.step <= report.steps {
        return Ok(());
    }
    let reason = format!(
        "it is of step {}, and the run has come to step {} since, and has not ended: resume it to its end, or take its newest \
         checkpoint by `checkpoint = {}`, or the best by `checkpoint = best`",
        report.steps,
        newest.step,
        newest.place()
    );
    Err(unread(path, &reason))
}

/// The model with the averaged parameters of a run's `ema.safetensors`.
///
/// # Errors
/// [`TrainError::File`] if the file is missing or damaged, and [`TrainError::Weights`] if it is of another model.
pub fn load_averaged<M: Module>(model: M, run: &RunDirectory) -> Result<M, TrainError> {
    require_newest(run, &run.ema_path())?;
    load(
        model,
        run,
        &run.ema_path(),
        "the training has not ended, or was one without `training.ema.decay`",
    )
}

fn load<M: Module>(
    mut model: M,
    run: &RunDirectory,
    path: &Path,
    question: &str,
) -> Result<M, TrainError> {
    let applied = open(&model, path, question).and_then(|mut store| {
        let applied = store.apply_to(&mut model);
        applied.map_err(|error| unread(path, &error))
    });
    applied.map_err(|error| {
        with_good_checkpoint(error, run, |place, _| {
            format!("`checkpoint = {place}` takes it")
        })
    })?;
    Ok(model)
}

/// The error of a file of the run that is damaged, with its newest good checkpoint, and how `taken` says that is taken.
fn with_good_checkpoint(
    error: TrainError,
    run: &RunDirectory,
    taken: impl FnOnce(Place, PathBuf) -> String,
) -> TrainError {
    match error {
        TrainError::File { path, reason, .. } if path.is_file() => {
            let checkpoints = run.checkpoints();
            let advice = match CheckpointFolder::new(&checkpoints, 1).newest_good(None) {
                Some(place) => {
                    let folder = checkpoints.join(place.to_string());
                    format!(
                        "{place} is the newest good checkpoint: {}",
                        taken(place, folder)
                    )
                }
                None => "no checkpoint of this run is good".to_owned(),
            };
            unread(&path, &format!("{reason}; {advice}"))
        }
        error => error,
    }
}

/// A file of parameters that are those of `model`, none of them read yet.
fn open<M: Module>(model: &M, path: &Path, question: &str) -> Result<SafetensorsStore, TrainError> {
    let (store, theirs) = tensors_of(path, question)?;
    match mismatch(
        &model.collect(None, None, true),
        &theirs,
        "",
        &str::to_owned,
    ) {
        None => Ok(store),
        Some((mismatch, problems)) => Err(TrainError::Weights {
            path: path.to_path_buf(),
            mismatch,
            problems,
        }),
    }
}

/// A safetensors file and its tensors, none of them read yet.
fn tensors_of(path: &Path, question: &str) -> Result<(SafetensorsStore, Tensors), TrainError> {
    if !path.is_file() {
        return Err(unread(path, &format!("there is none; {question}")));
    }
    let mut store = SafetensorsStore::from_file(path);
    let tensors = store.get_all_tensors();
    let tensors = tensors.map_err(|error| {
        let reason = why_not_safetensors(path);
        unread(path, &reason.unwrap_or_else(|| error.to_string()))
    })?;
    let tensors = tensors.clone();
    Ok((store, tensors))
}

type Tensors = BTreeMap<String, PackedTensor>;

/// The tensors of the model of a run, none of them read yet, by its folder or a file in it.
pub(super) fn run_tensors(path: &Path) -> Result<Tensors, TrainError> {
    if !path.is_dir() {
        return Ok(tensors_of(path, why_none(path))?.1);
    }
    let run = RunDirectory::open(path)?;
    require_newest(&run, &run.model_path())?;
    let read = tensors_of(&run.model_path(), why_none(&run.model_path()));
    let read = read.map_err(|error| {
        with_good_checkpoint(error, &run, |_, folder| {
            format!("name it, {}", folder.display())
        })
    });
    Ok(read?.1)
}

#[cfg(test)]
mod tests {
    use burn::prelude::Device;

    use super::*;

    #[test]
    fn plain_burn_loads_what_a_run_has_learned() {
        let device = Device::flex();
        let trained = everburn_nn::LinearConfig::new(3, 3).init(&device);
        let folder = tempfile::tempdir().unwrap();
        let run = RunDirectory::create(folder.path().join("run")).unwrap();
        save_safetensors(&trained, &run).unwrap();
        let mut plain = burn::nn::LinearConfig::new(3, 3).init(&device);
        let mut store = SafetensorsStore::from_file(run.model_path());
        plain.load_from(&mut store).unwrap();
        assert_eq!(plain.weight.to_data(), trained.weight.to_data());
    }

    #[test]
    fn a_run_without_its_parameters_leads_to_a_checkpoint_if_there_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model.safetensors");
        let told = || {
            let read = tensors_of(&model, why_none(&model));
            read.err().unwrap().to_string()
        };
        let failed = "there is none; nor is there a checkpoint: the training has not come to its first one, has failed before it";
        assert!(told().contains(failed), "{}", told());
        let checkpoint = folder.path().join("checkpoints/epoch-0001");
        std::fs::create_dir_all(checkpoint).unwrap();
        let has_one = "there is none; the training has not ended, or has failed. `eval`, `predict` and `export` take a checkpoint";
        assert!(told().contains(has_one), "{}", told());
    }
}
