//! What a process trains: one rank, or each of its threads one.

use std::sync::Arc;

use crate::prelude::*;
use burn::module::Module;
use burn::prelude::Device;
use everburn_collectives::store::{HashStore, SharedStore};

use super::RankJob;
use crate::error::CliError;
use crate::{gradient_exchange, rank};

/// This process is one rank. `false` if the user has stopped it.
pub(super) fn train_one_rank(job: &RankJob<'_>, trainer: Trainer) -> Result<bool, CliError> {
    trainer.seed();
    let model = job.begun(&trainer.device, trainer.group.rank())?;
    job.fit_task(trainer, model)
}

/// Each thread of this process is a rank. `false` for each that the user has stopped.
pub(super) fn train_on_threads(
    job: &RankJob<'_>,
    devices: &[Device],
    run: &RunDirectory,
) -> Result<Vec<bool>, CliError> {
    // Threads may share a generator of random numbers, so the weights are drawn before there
    // are any: they are lazy, and taking a record draws them.
    job.config.training.seed_for_weights(&devices[0]);
    let model = job.begun(&devices[0], 0)?;
    let weights = model.clone().into_record();
    let model = model.load_record(weights);
    let config = job.config;
    let store: SharedStore = Arc::new(HashStore::new());
    let finished = data_parallel(
        devices,
        rank::group_options(&config.ranks),
        |group, device| {
            let run = (group.rank() == 0).then(|| run.clone());
            let names = &config.ranks.devices;
            let name = &names[group.rank() % names.len()];
            let own = gradient_exchange::connector(config, name, store.clone(), devices)
                .map_err(|error| TrainError::Config(error.to_string()))?;
            let trainer = Trainer {
                exchange: Some(Arc::new(own)),
                ..job.trainer(group, device.clone(), run)
            };
            match job.fit_task(trainer, model.clone().fork(&device)) {
                Err(CliError::Train(error)) => Err(error),
                Err(error) => Err(TrainError::Config(error.to_string())),
                Ok(finished) => Ok(finished),
            }
        },
    );
    Ok(finished?)
}
