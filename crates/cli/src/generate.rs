//! `everburn generate`

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

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

    /// Sample from the K most likely tokens only.
    #[arg(long)]
    pub(crate) top_k: Option<usize>,

    /// Sample from the most likely tokens whose probabilities sum to P, as in 0.9.
    #[arg(long)]
    pub(crate) top_p: Option<f64>,

    /// Stop before this text; may be repeated.
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,

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
            "generate is for text models, such as gpt-nano",
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
        top_k: arguments.top_k,
        top_p: arguments.top_p,
        seed: arguments.seed,
    };
    let mut out = std::io::stdout().lock();
    let mut show = |text: &str| {
        // A reader that has gone away is told by the last line.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    };
    show(arguments.prompt.trim_start_matches('\n'));
    let begin = Instant::now();
    let drawn = writer.stream(&model, &prompt, generation, &arguments.stop, &mut show)?;
    let rate = drawn as f64 / begin.elapsed().as_secs_f64();
    drop(out);
    say!("");
    eprintln!("{drawn} tokens, {rate:.0} per second");
    Ok(ExitCode::SUCCESS)
}
