//! `everburn train ... --warmup`: kernels are compiled, tuned and kept, and nothing is trained.

use std::process::ExitCode;

use everburn::burn::prelude::Device;
use everburn::collectives::group::GroupOptions;
use everburn::prelude::*;
use everburn::train::{
    Classification, KernelCache, NextToken, Supervised, WarmUp, renderer::Display,
};
use everburn_models::gpt::GptConfig;
use everburn_models::registry::{self, ImageModel, Init, ModelVisitor, PixelRange, TextModel};

use super::evaluation_batch;
use crate::config::RunConfig;
use crate::data::Loaded;
use crate::error::CliError;
use crate::{devices, mesh};

/// Compiles what the first rank of a job would; the others have the same to do.
pub(super) fn run(
    config: &RunConfig,
    loaded: &Loaded,
    kernels: KernelCache,
) -> Result<ExitCode, CliError> {
    let over_devices = config.ranks.strategy == crate::arguments::Strategy::ModelParallel;
    if over_devices || mesh::check(config)?.is_some() {
        return Err(CliError::usage_with_help(
            "--warmup is for models that a rank holds as a whole",
            "train without it: kernels are compiled in the first steps, and kept all the same",
        ));
    }
    let job = WarmUpJob {
        config,
        loaded,
        kernels,
        device: devices::of_rank(&config.ranks.devices, 0)?,
    };
    registry::visit(&config.model, &config.model_options(), job)?.ok_or(CliError::NoModel)??;
    Ok(ExitCode::SUCCESS)
}

struct WarmUpJob<'a> {
    config: &'a RunConfig,
    loaded: &'a Loaded,
    kernels: KernelCache,
    device: Device,
}

impl WarmUpJob<'_> {
    /// Of rank 0 among as many as there will be: it has a share of each batch. Nobody speaks to the others.
    fn on_trainer(
        &self,
        run: impl FnOnce(&Trainer) -> Result<WarmUp, TrainError>,
    ) -> Result<WarmUp, CliError> {
        let world_size = self.config.world_size();
        let mut ranks = ProcessGroup::over_threads(world_size, GroupOptions::default());
        let first = ranks.remove(0);
        let trainer = Trainer {
            device: self.device.clone(),
            display: Display::Lines,
            model_name: self.config.model.clone(),
            evaluation_batch: evaluation_batch(self.config),
            kernels: self.kernels.clone(),
            ..Trainer::new(self.config.training.clone(), first)
        };
        Ok(run(&trainer)?)
    }

    fn free_memory(&self) -> Option<u64> {
        let ranks = &self.config.ranks;
        devices::free_memory(&ranks.devices, 0, ranks.ranks)
    }
}

impl ModelVisitor for WarmUpJob<'_> {
    type Output = Result<WarmUp, CliError>;

    fn visit_images<M: ImageModel>(self, pixels: PixelRange, init: Init<M>) -> Self::Output {
        let data = self.loaded.images(pixels)?;
        let checkpointing = self.config.training.activation_checkpointing;
        let model = Supervised::<M, Classification<4>>::of_checkpointed_blocks(
            init(&self.device),
            checkpointing,
        );
        self.on_trainer(|trainer| match self.config.training.input.on_device {
            true => trainer.warm_up(model, &trainer.on_device(data, self.free_memory())?),
            false => trainer.warm_up(model, &data),
        })
    }

    fn visit_text<M: TextModel>(self, _config: GptConfig, init: Init<M>) -> Self::Output {
        let (_, data) = self.loaded.text()?;
        let checkpointing = self.config.training.activation_checkpointing;
        let model =
            Supervised::<M, NextToken>::of_checkpointed_blocks(init(&self.device), checkpointing);
        self.on_trainer(|trainer| match self.config.training.input.on_device {
            true => trainer.warm_up(model, &trainer.on_device(data, self.free_memory())?),
            false => trainer.warm_up(model, &data),
        })
    }
}
