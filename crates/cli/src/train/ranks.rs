//! What a process trains: one rank, or each of its threads one.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use crate::prelude::*;
use burn::module::Module;
use burn::prelude::Device;
use everburn_distributed::{ShardStage, is_gpu};
use everburn_launch::PanicPlaces;
use everburn_train::{AnyModel, Patterns, WithInitialValues, open_state_dict_except};

use super::RankJob;
use crate::config::RunConfig;
use crate::error::CliError;
use crate::{devices, gradient_backend, rank};

/// This process is one rank. `false` if the user has stopped it.
pub(super) fn train_one_rank(job: &RankJob<'_>, trainer: Trainer) -> Result<bool, CliError> {
    trainer.seed();
    if let Some((model, values)) = job.opened(&trainer)? {
        let initial_values = Some(values);
        let trainer = Trainer {
            initial_values,
            ..trainer
        };
        return job.fit_task(trainer, model);
    }
    let model = job.begun(&trainer.device, trainer.group.rank())?;
    job.fit_task(trainer, model)
}

impl RankJob<'_> {
    /// What ranks must have in common of `--init-from`: each may have the file elsewhere.
    pub(super) fn begins_with(&self) -> String {
        match self.resume {
            true => String::new(), // a checkpoint has the weights
            false => first_weights(self.config),
        }
    }

    /// The model and the weights of `--init-from`, of which each rank reads and keeps its part: where parameters are
    /// sharded and all ranks have a file, and in meshes whose ranks have the same one.
    fn opened(&self, trainer: &Trainer) -> Result<Option<WithInitialValues<AnyModel>>, CliError> {
        let (config, skip) = (self.config, &self.config.init_skip);
        let shards = config.training.ddp.shard == Some(ShardStage::Parameters);
        // Weights that are drawn for GPUs are drawn on the processor, all together.
        let draws = *skip != Patterns::default();
        let whole = self.resume || self.finder.is_some() || config.training.lora.is_some();
        let meshes = self.parallelism.is_some();
        if !(shards || meshes)
            || whole
            || trainer.group.world_size() == 1
            || draws && is_gpu(&trainer.device)
        {
            return Ok(None);
        }
        let Some(path) = &config.init_from else {
            return Ok(None);
        };
        // Which file it is: shards are compared once they are read.
        let file = std::fs::metadata(path).ok();
        let file = file.map_or([0; 2], |file| [file.dev() + 1, file.ino()]);
        let file = file.map(u64::to_le_bytes).concat();
        let files = trainer.group.all_gather::<u8>(file).wait();
        let files = files.map_err(TrainError::from)?;
        let missing = files.iter().any(|file| file.iter().all(|byte| *byte == 0));
        if missing || meshes && files.iter().any(|file| *file != files[0]) {
            return Ok(None);
        }
        let model = self.task.model(&trainer.device)?;
        let draws = draws && trainer.group.rank() == 0;
        let layout = self.task.layout();
        Ok(Some(open_state_dict_except(
            model, path, skip, &layout, draws,
        )?))
    }
}

/// What the first weights are, in words that a library shows, which knows no flags; empty if they are drawn.
fn first_weights(config: &RunConfig) -> String {
    match &config.init_from {
        Some(_) if config.init_skip == Patterns::default() => "pretrained".to_owned(),
        Some(_) => format!("pretrained, without {}", config.init_skip),
        None => String::new(),
    }
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
    let places = PanicPlaces::watch();
    let finished = data_parallel(
        devices,
        rank::group_options(&config.ranks),
        |group, device| {
            let run = (group.rank() == 0).then(|| run.clone());
            let name = devices::name_of_rank(&config.ranks.devices, group.rank());
            let own = gradient_backend::connector(config, name)
                .map_err(|error| TrainError::Config(error.to_string()))?;
            let trainer = Trainer {
                connector: Some(Arc::new(own)),
                ..job.trainer(group, device.clone(), run)
            };
            match job.fit_task(trainer, model.clone().fork(&device)) {
                Err(CliError::Train(error)) => Err(error),
                Err(error) => Err(TrainError::Config(error.to_string())),
                Ok(finished) => Ok(finished),
            }
        },
    );
    finished.map_err(|error| match error {
        TrainError::Panicked(text) => {
            let more = places.of(&text).map(|more| format!("\n{more}"));
            TrainError::Panicked(text + &more.unwrap_or_default()).into()
        }
        error => error.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_weights_are_named_without_flags() {
        let of = |path: Option<&str>, skip: Patterns| {
            first_weights(&RunConfig {
                init_from: path.map(Into::into),
                init_skip: skip,
                ..RunConfig::default()
            })
        };
        assert_eq!(of(Some("a.pt"), Patterns::default()), "pretrained");
        let skipped = of(Some("a.pt"), Patterns::from("fc.*"));
        assert_eq!(skipped, "pretrained, without fc.*");
        assert_eq!(of(None, Patterns::default()), "");
    }
}
