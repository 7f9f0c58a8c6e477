//! The losses of the first steps of a training on a device, by the loop that trains everything.

use std::fmt::Display;

use everburn::burn::module::Module;
use everburn::burn::prelude::Device;
use everburn::nn::{Activation, InBlocks};
use everburn::prelude::*;
use everburn::train::{KernelCache, Objective, OptimizerConfig, OptimizerKind};

use super::models::{Visitor, rounded};
use crate::failure::Failure;
use crate::gpu_check::apart::read;
use crate::gpu_check::order::{CheckedModel, SEED};

/// How many samples per step has.
pub(super) fn batch_size(model: CheckedModel) -> usize {
    match model {
        CheckedModel::GptNano => 32,
        CheckedModel::Mnist | CheckedModel::MnistBn => 64,
    }
}

/// As the model's preset has it, but for what changes within an epoch.
fn optimizer(model: CheckedModel) -> OptimizerConfig {
    match model {
        CheckedModel::Mnist => OptimizerConfig::default(),
        CheckedModel::MnistBn => OptimizerConfig {
            learning_rate: 0.003,
            ..OptimizerConfig::default()
        },
        CheckedModel::GptNano => OptimizerConfig {
            kind: OptimizerKind::AdamW,
            learning_rate: 0.003,
            beta_2: Some(0.99),
            weight_decay: 0.1,
            ..OptimizerConfig::default()
        },
    }
}

/// Trains for this many steps; returns the loss of each.
pub(super) struct Losses {
    pub(super) model: CheckedModel,
    pub(super) device: Device,
    pub(super) steps: usize,
    /// By how much of themselves the first weights are off.
    pub(super) rounding: Option<f64>,
}

impl Visitor for Losses {
    type Output = Vec<f64>;

    fn visit<M, O, I>(
        self,
        model: M,
        data: TrainingData<I, (O::Input, O::Targets)>,
    ) -> Result<Vec<f64>, Failure>
    where
        M: InBlocks<Input = O::Input, Output = O::Output> + Module + Display + Sync + 'static,
        O: Objective<Input: Activation, Output: Activation>,
        I: Send + Sync + Clone + 'static,
    {
        let folder = tempfile::tempdir()?;
        let run = RunDirectory::create(folder.path())?;
        let config = TrainingConfig {
            // A text may have fewer samples than the steps read.
            epochs: self.steps,
            steps: Some(self.steps),
            batch_size: batch_size(self.model),
            seed: SEED,
            validation_samples: Some(0),
            log_every: 1,
            optimizer: optimizer(self.model),
            ..TrainingConfig::default()
        };
        // The check of a device, which comes before a training, is kept there.
        let kernels = std::env::var_os(everburn::kernels::VARIABLE).map(Into::into);
        let kernels = kernels.map_or_else(
            || KernelCache::Nowhere("the check named no folder".to_string()),
            KernelCache::Folder,
        );
        let trainer = Trainer {
            device: self.device,
            kernels,
            run: Some(run),
            ..Trainer::new(config, ProcessGroup::alone(GroupOptions::default()))
        };
        let model = match self.rounding {
            Some(rounding) => rounded(model, rounding, SEED),
            None => model,
        };
        let trained = trainer.fit(Supervised::<M, O>::of_blocks(model), &data);
        trained.map(drop)?;
        read(folder.path())
    }
}
