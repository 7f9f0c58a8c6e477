//! Weights that come from elsewhere or go there: `everburn export`, `everburn import` and `--init-from`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::devices;
use crate::prelude::*;
use burn::module::Module;
use clap::{Args, ValueEnum};
use everburn_train::{
    Patterns, load_safetensors, load_state_dict_except, save_safetensors, save_state_dict,
};

use crate::arguments::{DataFlags, TrainArguments};
use crate::config::RunConfig;
use crate::error::CliError;
use crate::train::prepare_run_directory;
use crate::trained::{Which, load_parameters};

/// What is exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// A safetensors file by PyTorch's names, in its layouts
    Safetensors,
    /// A state dict that `torch.load` opens
    PtNames,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ExportArguments {
    /// The folder of the run.
    pub(crate) run_dir: PathBuf,

    /// safetensors: a file for safetensors.torch.load_file; pt-names: one for torch.load. Both have
    /// PyTorch's names and layouts, for load_state_dict.
    #[arg(long, value_name = "FORMAT")]
    pub(crate) to: ExportFormat,

    /// Where it is written [default: state-dict.safetensors or state-dict.pt in the run's folder]. With
    /// pt-names it may end in .pt, .pth or .safetensors.
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Export a checkpoint instead of the trained model: `best`, or the number of an epoch.
    #[arg(long, value_name = "EPOCH")]
    pub(crate) checkpoint: Option<String>,

    /// Export the averaged parameters, of a run that was trained with --ema.
    #[arg(long)]
    pub(crate) ema: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ImportArguments {
    /// A state dict of PyTorch: .safetensors, .pt or .pth.
    pub(crate) file: PathBuf,

    /// The model, one of `train --list`.
    pub(crate) model: Option<String>,

    /// Take the model and its numbers from this file, a run's config.toml say.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Where the run is made that `eval`, `generate` and `export` take [default: runs/<model>-<number>].
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) data: DataFlags,
}

/// Writes a run's model as a state dict.
pub(crate) fn export(arguments: &ExportArguments) -> Result<ExitCode, CliError> {
    let run = RunDirectory::open(&arguments.run_dir)?;
    let output = arguments.output.clone().unwrap_or_else(|| {
        run.path().join(match arguments.to {
            ExportFormat::Safetensors => "state-dict.safetensors",
            ExportFormat::PtNames => "state-dict.pt",
        })
    });
    let is_safetensors = output
        .extension()
        .is_some_and(|ending| ending == "safetensors");
    if arguments.to == ExportFormat::Safetensors && !is_safetensors {
        return Err(CliError::usage_with_help(
            format!("{} does not end in .safetensors", output.display()),
            "--to pt-names writes .pt, .pth and .safetensors, as the name of --output ends",
        ));
    }
    let config = run.read_config::<RunConfig>()?;
    let which = Which {
        checkpoint: arguments.checkpoint.as_deref(),
        ema: arguments.ema,
    };
    let device = devices::of_rank(&["flex".to_string()], 0)?;
    let model = load_parameters(config.task()?.model(&device)?, &run, which)?;
    // A run that was imported, or has not ended, has no report.
    let batches = run.read_report().map_or(0, |report| report.steps);
    save_state_dict(&model, batches as u64, &output)?;
    say!("{} of {} written", output.display(), config.model);
    Ok(ExitCode::SUCCESS)
}

/// Makes a run of a state dict.
pub(crate) fn import(arguments: &ImportArguments) -> Result<ExitCode, CliError> {
    let arguments = TrainArguments {
        model: arguments.model.clone(),
        config: arguments.config.clone(),
        run_dir: arguments.run_dir.clone(),
        data: arguments.data.clone(),
        init_from: Some(arguments.file.clone()),
        ..TrainArguments::default()
    };
    let mut config = RunConfig::resolve(&arguments, None)?;
    let mut task = config.task()?;
    if task.data_decide_model() {
        // A text decides how many tokens there are, and what they stand for.
        task.load()?;
        config.sections = task.sections()?;
    }
    // Before there is a folder.
    check(&config)?;
    let (run, _lock) = prepare_run_directory(&config, &arguments)?;
    load_into(&config, Some(&run))?;
    say!("{} holds {} now", run.path().display(), config.model);
    Ok(ExitCode::SUCCESS)
}

/// Checks that the weights of `--init-from`, if it is given, are the model's, before anything is started.
pub(crate) fn check(config: &RunConfig) -> Result<(), CliError> {
    load_into(config, None)
}

/// Loads the weights of `--init-from`, and saves them in `run`.
fn load_into(config: &RunConfig, run: Option<&RunDirectory>) -> Result<(), CliError> {
    let Some(path) = &config.init_from else {
        return match config.init_skip == Patterns::default() {
            true => Ok(()),
            false => Err(CliError::usage_with_help(
                "--init-skip leaves out tensors of --init-from, which is not given",
                "add --init-from, or leave --init-skip away",
            )),
        };
    };
    let device = devices::of_rank(&["flex".to_string()], 0)?;
    let model = initialised(config.task()?.model(&device)?, path, &config.init_skip)?;
    if let Some(run) = run {
        save_safetensors(&model, run)?;
    }
    Ok(())
}

/// The model with the weights of `path`, a state dict of PyTorch or the folder of a run, but for those to `skip`.
pub(crate) fn initialised<M: Module>(
    model: M,
    path: &Path,
    skip: &Patterns,
) -> Result<M, CliError> {
    if !path.is_dir() {
        return Ok(load_state_dict_except(model, path, skip)?);
    }
    if *skip != Patterns::default() {
        return Err(CliError::usage_with_help(
            format!(
                "--init-skip is for state dicts, and {} is a run's folder",
                path.display()
            ),
            "export the run first, with `export RUN --to safetensors`, and name that file",
        ));
    }
    Ok(load_safetensors(model, &RunDirectory::open(path)?)?)
}
