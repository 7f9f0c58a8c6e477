//! What a resolved configuration cannot be.

use everburn_train::SyncInterval;

use super::RunConfig;
use crate::arguments::{Strategy, TrainArguments};
use crate::error::CliError;
use crate::{elastic, model_parallel};

impl RunConfig {
    /// Refuses low-rank adaptation of weights that are not pretrained, or are on several devices.
    pub(super) fn check_lora(&self, over_ranks: bool) -> Result<(), CliError> {
        let Some(_) = &self.training.lora else {
            return Ok(());
        };
        if self.init_from.is_none() {
            return Err(CliError::usage_with_help(
                "--lora adapts pretrained weights, and there are none",
                "add --init-from, or leave --lora away to train all parameters",
            ));
        }
        match over_ranks || self.ranks.strategy == Strategy::ModelParallel {
            true => Err(CliError::usage_with_help(
                "--lora and a model over several devices do not go together",
                "train with ranks that each have the whole model",
            )),
            false => Ok(()),
        }
    }

    pub(super) fn validate_ranks(&self) -> Result<(), CliError> {
        if self.ranks.ranks == 0 {
            return Err(CliError::usage_with_help(
                "--ranks 0 leaves no rank to train",
                "use --ranks 1 or more",
            ));
        }
        if self.ranks.nodes == 0 {
            return Err(CliError::usage("--nodes must be at least 1"));
        }
        if self.ranks.nodes > 1 && self.ranks.strategy == Strategy::DataParallel {
            return Err(CliError::usage_with_help(
                "--strategy data-parallel is for one machine",
                "on several machines, use --strategy ddp",
            ));
        }
        model_parallel::check_devices(&self.ranks)?;
        if self.ranks.threads_per_rank == Some(0) {
            return Err(CliError::usage("--threads-per-rank must be at least 1"));
        }
        elastic::check(self)?;
        if self.ranks.timeout == 0 {
            return Err(CliError::usage("--timeout must be at least 1 second"));
        }
        Ok(())
    }
}

/// Flags that a file may hold for another run, but that nobody gives where ranks become equal in each step.
pub(super) fn refuse_flags_of_rounds(
    config: &RunConfig,
    arguments: &TrainArguments,
) -> Result<(), CliError> {
    match arguments.training.sync.of_rounds() {
        Some(flag) if config.training.sync == SyncInterval::Step => Err(CliError::usage_with_help(
            format!("{flag} is for local steps"),
            "add --local-steps, as in --local-steps 50, or leave it away",
        )),
        _ => Ok(()),
    }
}
