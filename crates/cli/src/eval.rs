//! `everburn eval`

use std::fmt::Display;
use std::process::ExitCode;
use std::time::Duration;

use everburn::burn::module::Module;
use everburn::prelude::*;
use everburn::train::{Tally, load_safetensors};
use everburn_datasets::LoadedData;
use everburn_launch::RankEnvironment;
use everburn_models::registry::{self, Forward, Init, ModelInfo, ModelVisitor};

use crate::arguments::EvalArguments;
use crate::config::RunConfig;
use crate::error::CliError;
use crate::{data, devices, launching, rank};

/// Measures a run's model, as a rank, as the only rank, or by launching ranks.
pub(crate) fn run(
    arguments: &EvalArguments,
    environment: Option<&RankEnvironment>,
) -> Result<ExitCode, CliError> {
    let run = RunDirectory::open(&arguments.run_dir)?;
    let config = run.read_config::<RunConfig>()?;
    let config = config.for_evaluation(&arguments.data, &arguments.ranks)?;
    if environment.is_none() {
        devices::check(&config.ranks.devices, config.ranks.ranks)?;
    }
    if environment.is_none() && config.world_size() > 1 {
        let log_dir = run.logs().join("eval");
        let mut ranks_arguments = std::env::args_os().skip(1).collect::<Vec<_>>();
        // Ranks print lines; nothing of an evaluation is drawn.
        ranks_arguments.push("--no-dashboard".into());
        let mut flags = arguments.ranks.clone();
        flags.no_dashboard = true;
        return launching::run(&config.ranks, &flags, ranks_arguments, log_dir);
    }
    let local_rank = environment.map_or(0, |environment| environment.local_rank);
    let loaded = data::load(&config.data)?;
    let trainer = Trainer {
        device: devices::of_rank(&config.ranks.devices, local_rank)?,
        ..Trainer::new(
            config.training.clone(),
            rank::join(environment, Duration::from_secs(config.ranks.timeout))?,
        )
    };
    let visitor = Evaluate {
        trainer: &trainer,
        run: &run,
        loaded: &loaded,
    };
    let tally = registry::visit(&config.model, visitor).ok_or(CliError::NoModel)??;
    if trainer.group.rank() == 0 {
        print(
            arguments,
            &config,
            &loaded,
            &tally,
            trainer.group.world_size(),
        );
    }
    trainer.group.destroy()?;
    Ok(ExitCode::SUCCESS)
}

fn print(
    arguments: &EvalArguments,
    config: &RunConfig,
    loaded: &LoadedData,
    tally: &Tally,
    world_size: usize,
) {
    let dataset = &loaded.description.name;
    let (accuracy, loss) = (tally.accuracy(), tally.mean_loss());
    if arguments.json {
        let result = serde_json::json!({
            "model": config.model,
            "dataset": dataset,
            "test_accuracy": accuracy,
            "test_loss": loss,
            "test_samples": tally.samples,
            "world_size": world_size,
        });
        println!("{result}");
        return;
    }
    println!("{}", loaded.description);
    println!(
        "test accuracy {:.2} % ({} of {})  loss {loss:.4}  {} on {dataset}  {world_size} ranks",
        100.0 * accuracy,
        tally.correct,
        tally.samples,
        config.model
    );
}

struct Evaluate<'a> {
    trainer: &'a Trainer,
    run: &'a RunDirectory,
    loaded: &'a LoadedData,
}

impl ModelVisitor for Evaluate<'_> {
    type Output = Result<Tally, CliError>;

    fn visit<M: Module + Display + Sync + 'static>(
        self,
        info: ModelInfo,
        init: Init<M>,
        forward: Forward<M>,
    ) -> Self::Output {
        let model = load_safetensors(init(&self.trainer.device), self.run)?;
        let data = data::for_training(self.loaded, info.pixels);
        Ok(self
            .trainer
            .evaluate(&Classifier::new(model, forward), &data)?)
    }
}
