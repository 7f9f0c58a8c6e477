//! `everburn generate`

use std::path::PathBuf;
use std::process::ExitCode;

use crate::devices;
use crate::prelude::*;
use clap::Args;
use everburn_train::Generation;

use crate::config::RunConfig;
use crate::error::CliError;
use crate::sampling::Writer;
use crate::trained::{Which, load_parameters};

#[derive(Debug, Clone, Args)]
pub(crate) struct GenerateArguments {
    /// The folder of the run.
    pub(crate) run_dir: PathBuf,

    /// The beginning of the text [default: a new line].
    #[arg(long, default_value = "\n", hide_default_value = true)]
    pub(crate) prompt: String,

    /// The number of tokens to generate.
    #[arg(long, default_value_t = 200)]
    pub(crate) tokens: usize,

    /// The sampling temperature; 0 is greedy.
    #[arg(long, default_value_t = 0.8, allow_negative_numbers = true)]
    pub(crate) temperature: f64,

    /// The seed of the sampling.
    #[arg(long, default_value_t = 42)]
    pub(crate) seed: u64,

    /// Use a checkpoint instead of the trained model: `best`, or the number of an epoch.
    #[arg(long, value_name = "EPOCH")]
    pub(crate) checkpoint: Option<String>,

    /// Use the averaged parameters of a run with --ema.
    #[arg(long)]
    pub(crate) ema: bool,

    /// The device: flex, cuda:0, vulkan:0, ...
    #[arg(long, default_value = "flex")]
    pub(crate) device: String,
}

/// Prints what the model of a run writes after the prompt.
pub(crate) fn run(arguments: &GenerateArguments) -> Result<ExitCode, CliError> {
    let run = RunDirectory::open(&arguments.run_dir)?;
    let config = run.read_config::<RunConfig>()?;
    let names = [arguments.device.clone()];
    devices::check(&names, 1)?;
    let device = devices::of_rank(&names, 0)?;
    let task = config.task()?;
    let Some(writer) = Writer::of(&*task, device.clone())? else {
        return Err(CliError::usage_with_help(
            format!("{} does not write text", config.model),
            "generate is for models of text, such as gpt-nano",
        ));
    };
    let which = Which {
        checkpoint: arguments.checkpoint.as_deref(),
        ema: arguments.ema,
    };
    let model = load_parameters(task.model(&device)?, &run, which)?;
    let prompt = writer.prompt(&arguments.prompt)?;
    let generation = Generation {
        tokens: arguments.tokens,
        temperature: arguments.temperature,
        seed: arguments.seed,
    };
    let written = writer.write(&model, &prompt, generation)?;
    let prompt = arguments.prompt.trim_start_matches('\n');
    say!("{prompt}{written}");
    Ok(ExitCode::SUCCESS)
}
