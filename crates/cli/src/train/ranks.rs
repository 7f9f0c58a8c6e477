//! What a process trains once the model's type is known: one rank, or each of its threads one.

use std::sync::Arc;

use everburn::burn::module::Module;
use everburn::burn::prelude::Device;
use everburn::collectives::store::{HashStore, SharedStore};
use everburn::distributed::ConnectExchange;
use everburn::prelude::*;
use everburn_models::gpt::GptConfig;
use everburn_models::registry::{ImageModel, Init, ModelVisitor, PixelRange, TextModel};

use super::RankJob;
use crate::error::CliError;
use crate::{gradient_exchange, rank};

/// This process is one rank.
pub(super) struct TrainOneRank<'a> {
    pub(super) job: &'a RankJob<'a>,
    pub(super) trainer: Trainer,
}

impl ModelVisitor for TrainOneRank<'_> {
    type Output = Result<TrainingReport, CliError>;

    fn visit_images<M: ImageModel>(self, pixels: PixelRange, init: Init<M>) -> Self::Output {
        self.trainer.seed();
        let model = init(&self.trainer.device);
        let model = self.job.begun(model, self.trainer.group.rank())?;
        self.job.fit_images(self.trainer, model, pixels)
    }

    fn visit_text<M: TextModel>(self, config: GptConfig, init: Init<M>) -> Self::Output {
        self.trainer.seed();
        let model = init(&self.trainer.device);
        let model = self.job.begun(model, self.trainer.group.rank())?;
        self.job.fit_text(self.trainer, model, &config)
    }
}

/// Each thread of this process is a rank.
pub(super) struct TrainOnThreads<'a> {
    pub(super) job: &'a RankJob<'a>,
    pub(super) devices: Vec<Device>,
    pub(super) run: RunDirectory,
}

impl TrainOnThreads<'_> {
    fn fit<M: Module + Sync + 'static>(
        &self,
        init: &Init<M>,
        fit: impl Fn(Trainer, M) -> Result<TrainingReport, CliError> + Sync,
    ) -> Result<Vec<TrainingReport>, CliError> {
        // Threads may share a generator of random numbers, so the weights are drawn before there
        // are any: they are lazy, and taking a record draws them.
        self.job.config.training.seed_for_weights(&self.devices[0]);
        let model = self.job.begun(init(&self.devices[0]), 0)?;
        let weights = model.clone().into_record();
        let model = model.load_record(weights);
        let config = self.job.config;
        let store: SharedStore = Arc::new(HashStore::new());
        let reports = data_parallel(
            &self.devices,
            rank::group_options(&config.ranks),
            |group, device| {
                let run = (group.rank() == 0).then(|| self.run.clone());
                let names = &config.ranks.devices;
                let name = &names[group.rank() % names.len()];
                let own = gradient_exchange::connector(config, name, store.clone(), &self.devices)
                    .map_err(|error| TrainError::Config(error.to_string()))?;
                let trainer = Trainer {
                    exchange: own.map(|own| Arc::new(own) as Arc<dyn ConnectExchange>),
                    ..self.job.trainer(group, device.clone(), run)
                };
                match fit(trainer, model.clone().fork(&device)) {
                    Err(CliError::Train(error)) => Err(error),
                    Err(error) => Err(TrainError::Config(error.to_string())),
                    Ok(report) => Ok(report),
                }
            },
        );
        Ok(reports?)
    }
}

impl ModelVisitor for TrainOnThreads<'_> {
    type Output = Result<Vec<TrainingReport>, CliError>;

    fn visit_images<M: ImageModel>(self, pixels: PixelRange, init: Init<M>) -> Self::Output {
        self.fit(&init, |trainer, model| {
            self.job.fit_images(trainer, model, pixels)
        })
    }

    fn visit_text<M: TextModel>(self, config: GptConfig, init: Init<M>) -> Self::Output {
        self.fit(&init, |trainer, model| {
            self.job.fit_text(trainer, model, &config)
        })
    }
}
