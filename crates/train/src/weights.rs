//! `model.safetensors`: a model's parameters by path.

use burn::module::Module;
use burn::store::{ModuleStore, SafetensorsStore};

use crate::error::TrainError;
use crate::run_directory::RunDirectory;

/// Writes the parameters by path, atomically: a run's `model.safetensors`.
///
/// # Errors
/// [`TrainError::File`] if it cannot be written.
pub fn save_safetensors<M: Module>(model: &M, run: &RunDirectory) -> Result<(), TrainError> {
    let path = run.model_path();
    let failed = |reason: String| TrainError::File {
        action: "writing",
        path: path.clone(),
        reason,
    };
    // Without metadata: it is a hash map, and equal models would give different files.
    let mut store = SafetensorsStore::from_bytes(None).clear_metadata();
    store
        .collect_from(model)
        .map_err(|error| failed(error.to_string()))?;
    let bytes = store
        .get_bytes()
        .map_err(|error| failed(error.to_string()))?;
    crate::atomic_file::write(&path, &bytes)
}

/// The model with the parameters of a run's `model.safetensors`.
///
/// # Errors
/// [`TrainError::File`] if the file is missing, damaged or of another model.
pub fn load_safetensors<M: Module>(mut model: M, run: &RunDirectory) -> Result<M, TrainError> {
    let path = run.model_path();
    let failed = |reason: String| TrainError::File {
        action: "reading",
        path: path.clone(),
        reason,
    };
    if !path.is_file() {
        return Err(failed("there is none; has the training ended?".to_string()));
    }
    let mut store = SafetensorsStore::from_file(&path);
    store
        .apply_to(&mut model)
        .map_err(|error| failed(error.to_string()))?;
    Ok(model)
}
