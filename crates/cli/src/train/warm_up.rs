//! `everburn train ... --warmup`: kernels are compiled, tuned and kept, and nothing is trained.

use std::process::ExitCode;

use crate::devices;
use crate::prelude::*;
use everburn_collectives::group::GroupOptions;
use everburn_train::{ConfiguredTask, KernelCache, LoadedData, renderer::Display};

use crate::config::RunConfig;
use crate::error::CliError;
use crate::mesh;

/// Compiles what the first rank of a job would; the others have the same to do.
pub(super) fn run(
    config: &RunConfig,
    task: &dyn ConfiguredTask,
    loaded: &LoadedData,
    kernels: KernelCache,
) -> Result<ExitCode, CliError> {
    let over_devices = config.ranks.strategy == crate::arguments::Strategy::ModelParallel;
    if over_devices || mesh::check(config)?.is_some() {
        return Err(CliError::usage_with_help(
            "--warmup is for models that are on one rank as a whole",
            "train without it: kernels are compiled in the first steps, and kept all the same",
        ));
    }
    // Rank 0 among as many as there will be: it has a share of each batch. Nobody speaks to the others.
    let mut ranks = ProcessGroup::over_threads(config.world_size(), GroupOptions::default());
    let trainer = Trainer {
        device: devices::of_rank(&config.ranks.devices, 0)?,
        display: Display::Lines,
        model_name: config.model.clone(),
        evaluation_batch: task.evaluation_batch(),
        kernels,
        task: Some(task.shared()),
        ..Trainer::new(config.training.clone(), ranks.remove(0))
    };
    let free = devices::free_memory(&config.ranks.devices, 0, config.ranks.ranks);
    let data = match config.training.input.on_device {
        true => loaded.on_device(&trainer, free)?,
        false => loaded.for_training(),
    };
    let checkpointing = config.training.activation_checkpointing;
    let model = task.checkpointed(task.model(&trainer.device)?, checkpointing)?;
    trainer.warm_up(model, &data)?;
    Ok(ExitCode::SUCCESS)
}
