//! What every rank of a process does.

use std::path::Path;

use crate::prelude::*;
use burn::module::Module;
use burn::prelude::Device;
use everburn_distributed::is_gpu;
use everburn_profile::Recorder;
use everburn_train::{
    AnyData, AnyModel, ConfiguredTask, KernelCache, LoadedData, Parallelism, Samples, StopSignal,
    load_state_dict_except, renderer,
};

use super::choose_display;
use crate::arguments::TrainArguments;
use crate::config::RunConfig;
use crate::error::CliError;
use crate::finders::Finder;
use crate::sampling::Writer;
use crate::summary::{print_report, told_at_least};
use crate::{devices, model_parallel, over_ranks, plan, tasks};

/// What every rank of this process does.
pub(super) struct RankJob<'a> {
    pub(super) config: &'a RunConfig,
    pub(super) task: &'a dyn ConfiguredTask,
    pub(super) loaded: &'a LoadedData,
    pub(super) resume: bool,
    pub(super) display: renderer::Display,
    pub(super) stop: StopSignal,
    /// The devices that the model is cut over, if it is.
    pub(super) model_devices: Option<Vec<(String, Device)>>,
    /// How ranks hold the model together, if they do.
    pub(super) parallelism: Option<Parallelism>,
    pub(super) kernels: KernelCache,
    /// Is told where the time goes.
    pub(super) recorder: Option<Recorder>,
    /// What is found in place of a training.
    pub(super) finder: Option<Finder>,
}

impl<'a> RankJob<'a> {
    pub(super) fn new(
        config: &'a RunConfig,
        arguments: &TrainArguments,
        task: &'a dyn ConfiguredTask,
        loaded: &'a LoadedData,
    ) -> Self {
        let finder = arguments.finders.wanted();
        Self {
            config,
            task,
            loaded,
            resume: arguments.resume,
            display: match finder {
                Some(_) => renderer::Display::Lines,
                None => choose_display(arguments),
            },
            stop: StopSignal::default(),
            model_devices: None,
            parallelism: None,
            kernels: KernelCache::Nowhere("no folder was given".to_string()),
            recorder: None,
            finder,
        }
    }

    /// The device of a rank: of several that hold its model, the first.
    pub(super) fn device(&self, local_rank: usize) -> Result<Device, CliError> {
        match self.model_devices.as_deref() {
            Some([(_, first), ..]) => Ok(first.clone()),
            _ => Ok(devices::of_rank(&self.config.ranks.devices, local_rank)?),
        }
    }

    /// The model of the task with the weights of `--init-from`, if there are any to begin with. Rank 0's are enough:
    /// the others are given its parameters.
    pub(super) fn begun(&self, device: &Device, rank: usize) -> Result<AnyModel, CliError> {
        let model = match is_gpu(device) {
            true => self.drawn_on_processor()?.fork(device),
            false => self.task.model(device)?,
        };
        // Any rank of an elastic job may become the first before the first step.
        let elastic = self.config.ranks.elastic.is_some();
        let first = |rank: usize, path: &Path| rank == 0 || (elastic && path.exists());
        match &self.config.init_from {
            Some(path) if first(rank, path) && !self.resume => {
                let layout = self.task.layout();
                let skip = &self.config.init_skip;
                Ok(load_state_dict_except(model, path, skip, &layout)?)
            }
            _ => Ok(model),
        }
    }

    /// The model with its first weights, which a seed makes the same on all kinds of devices: each has a generator of
    /// its own.
    fn drawn_on_processor(&self) -> Result<AnyModel, CliError> {
        let processor = Device::flex();
        self.config.training.seed_for_weights(&processor);
        let model = self.task.model(&processor)?;
        // Weights are drawn when they are needed.
        let drawn = model.clone().into_record();
        Ok(model.load_record(drawn))
    }

    pub(super) fn trainer(
        &self,
        group: ProcessGroup,
        device: Device,
        run: Option<RunDirectory>,
    ) -> Trainer {
        Trainer {
            device,
            run,
            resume: self.resume,
            display: self.display,
            stop: self.stop.clone(),
            model_name: self.config.model.clone(),
            evaluation_batch: self.task.evaluation_batch(),
            class_names: self.loaded.class_names.clone(),
            kernels: self.kernels.clone(),
            task: Some(self.task.shared()),
            recorder: self.recorder.clone(),
            hooks: tasks::hooks(),
            begins_with: self.begins_with(),
            ..Trainer::new(self.config.training.clone(), group)
        }
    }

    /// Trains, or finds what it is to find. `false` if the user has stopped it.
    pub(super) fn fit_task(&self, trainer: Trainer, model: AnyModel) -> Result<bool, CliError> {
        let data = match self.config.training.input.on_device {
            true => self
                .loaded
                .on_device(&trainer, self.free_memory(&trainer))?,
            false => self.loaded.for_training(),
        };
        // A model over ranks is put together in the memory of the host.
        let device = match self.parallelism {
            Some(_) => Device::flex(),
            None => trainer.device.clone(),
        };
        let samples = Writer::of(self.task, device)?
            .map(|writer| writer.samples(self.config.training.seed))
            .transpose()?;
        let checkpointing = self.config.training.activation_checkpointing;
        match (&self.parallelism, &self.model_devices) {
            (Some(parallelism), _) => over_ranks::fit(
                trainer,
                self.task,
                model,
                &data,
                parallelism,
                samples,
                || plan::automatic_stages(self.config),
            )
            .map(|report| report.finished),
            (None, Some(devices)) => {
                let model = model_parallel::place(self.task, model, devices, checkpointing)?;
                Ok(self.fit(&trainer, model, &data, samples)?)
            }
            (None, None) => {
                let model = self.task.checkpointed(model, checkpointing)?;
                Ok(self.fit(&trainer, model, &data, samples)?)
            }
        }
    }

    fn free_memory(&self, trainer: &Trainer) -> Option<u64> {
        let ranks = &self.config.ranks;
        devices::free_memory(&ranks.devices, trainer.group.local_rank(), ranks.ranks)
    }

    fn fit(
        &self,
        trainer: &Trainer,
        model: AnyModel,
        data: &AnyData,
        samples: Option<Samples<AnyModel>>,
    ) -> Result<bool, TrainError> {
        let finished = match self.finder {
            Some(finder) => finder.run(trainer, model, data, self.config)?,
            None => {
                let trained = trainer.fit_and_sample(model, data, samples);
                let (_model, report) = told_at_least(trained)?;
                if trainer.present_group().rank() == 0 {
                    print_report(&report, trainer.run.as_ref());
                }
                report.finished
            }
        };
        let group = trainer.present_group();
        if let Some(error) = trainer.elasticity.after_the_end(group.destroy())? {
            tracing::debug!("{error}");
        }
        Ok(finished)
    }
}
