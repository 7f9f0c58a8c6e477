//! What a resolved configuration cannot be.

use everburn_train::{Mesh, Patterns, RunFeatures, SyncInterval};

use super::RunConfig;
use crate::arguments::{Strategy, TrainArguments};
use crate::error::CliError;
use crate::{elastic, model_parallel};

impl RunConfig {
    /// Refuses low-rank adaptation without pretrained weights. What they have no tensors for is trained beside the factors.
    pub(super) fn settle_lora(&mut self) -> Result<(), CliError> {
        if self.training.lora.is_none() {
            return Ok(());
        }
        if self.init_from.is_none() {
            return Err(CliError::usage_with_help(
                "--lora adapts pretrained weights, and there are none",
                "add --init-from, or leave --lora out to train all parameters",
            ));
        }
        let layout = self.task()?.layout();
        let skip = &self.init_skip;
        // Patterns are of names in the model, or of names in the file.
        let is_skipped =
            |source: &str| skip.fit(source) || skip.fit(&format!("{}{source}", layout.prefix));
        let by_source = layout.tensors.iter();
        let by_source = by_source.filter(|tensor| is_skipped(&tensor.source));
        let names = by_source.map(|tensor| tensor.name.clone());
        let names: Vec<String> = skip.iter().map(str::to_owned).chain(names).collect();
        if let Some(lora) = &mut self.training.lora {
            let mut all: Vec<String> = lora.modules_to_save.iter().map(str::to_owned).collect();
            for name in names {
                if !all.contains(&name) {
                    all.push(name);
                }
            }
            lora.modules_to_save = Patterns::from(all);
        }
        Ok(())
    }

    /// What the run does besides its `[training]`, on the ranks of `mesh`.
    pub(super) fn features(&self, mesh: Mesh, arguments: &TrainArguments) -> RunFeatures {
        RunFeatures {
            parallel_model: !mesh.is_data_only(),
            pipeline: mesh.pipeline > 1,
            tensor: mesh.tensor > 1,
            elastic: self.ranks.elastic.is_some(),
            profile: arguments.profile,
            threads: self.ranks.strategy == Strategy::DataParallel,
            split_model: self.ranks.strategy == Strategy::ModelParallel,
            own_optimizer: false,
            trial: arguments.finders.wanted().is_some(),
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
    if config.training.sync != SyncInterval::Step {
        return Ok(());
    }
    let is_of_rounds =
        |path: &str| path.starts_with("training.outer.") || path == "training.outer_patience";
    match arguments.keys.words(is_of_rounds).first() {
        Some(flag) => Err(CliError::usage_with_help(
            format!("{} is for local steps", flag.to_string_lossy()),
            "add --local-steps, as in --local-steps 50, or leave it away",
        )),
        None => Ok(()),
    }
}
