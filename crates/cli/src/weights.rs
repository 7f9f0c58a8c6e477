//! Weights that come from elsewhere or go there: `everburn export`, `everburn import` and `--init-from`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use everburn::burn::module::Module;
use everburn::burn::prelude::Device;
use everburn::prelude::*;
use everburn::train::{load_safetensors, load_state_dict, save_safetensors, save_state_dict};
use everburn_models::gpt::GptConfig;
use everburn_models::registry::{self, ImageModel, Init, ModelVisitor, PixelRange, TextModel};

use crate::arguments::{DataFlags, TrainArguments};
use crate::config::RunConfig;
use crate::error::CliError;
use crate::eval::{Which, load_parameters};
use crate::train::prepare_run_directory;
use crate::{data, devices};

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
    let export = Export {
        run: &run,
        which: Which {
            checkpoint: arguments.checkpoint.as_deref(),
            ema: arguments.ema,
        },
        output: &output,
        device: devices::of_rank(&["flex".to_string()], 0)?,
    };
    registry::visit(&config.model, &config.model_options(), export)?.ok_or(CliError::NoModel)??;
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
    if config.gpt.config(&config.model).is_some() {
        // A text decides how many tokens there are, and what they stand for.
        data::pin_to(&mut config)?;
    }
    // Before there is a folder.
    check(&config)?;
    let (run, _lock) = prepare_run_directory(&config, &arguments)?;
    visit(&config, Some(&run))?;
    say!("{} holds {} now", run.path().display(), config.model);
    Ok(ExitCode::SUCCESS)
}

/// Checks that the weights of `--init-from`, if it is given, are the model's, before anything is started.
pub(crate) fn check(config: &RunConfig) -> Result<(), CliError> {
    visit(config, None)
}

/// Loads the weights of `--init-from`, and saves them in `run`.
fn visit(config: &RunConfig, run: Option<&RunDirectory>) -> Result<(), CliError> {
    let Some(path) = &config.init_from else {
        return Ok(());
    };
    let device = devices::of_rank(&["flex".to_string()], 0)?;
    let import = Import { path, run, device };
    registry::visit(&config.model, &config.model_options(), import)?.ok_or(CliError::NoModel)?
}

/// The model with the weights of `path`: a state dict of PyTorch, or the folder of a run.
pub(crate) fn initialised<M: Module>(model: M, path: &Path) -> Result<M, TrainError> {
    match path.is_dir() {
        true => load_safetensors(model, &RunDirectory::open(path)?),
        false => load_state_dict(model, path),
    }
}

struct Export<'a> {
    run: &'a RunDirectory,
    which: Which<'a>,
    output: &'a Path,
    device: Device,
}

impl Export<'_> {
    fn write<M: Module>(&self, model: M) -> Result<(), CliError> {
        let model = load_parameters(model, self.run, self.which)?;
        // A run that was imported, or has not ended, has no report.
        let batches = self.run.read_report().map_or(0, |report| report.steps);
        Ok(save_state_dict(&model, batches as u64, self.output)?)
    }
}

impl ModelVisitor for Export<'_> {
    type Output = Result<(), CliError>;

    fn visit_images<M: ImageModel>(self, _pixels: PixelRange, init: Init<M>) -> Self::Output {
        self.write(init(&self.device))
    }

    fn visit_text<M: TextModel>(self, _config: GptConfig, init: Init<M>) -> Self::Output {
        self.write(init(&self.device))
    }
}

struct Import<'a> {
    path: &'a Path,
    run: Option<&'a RunDirectory>,
    device: Device,
}

impl Import<'_> {
    fn load<M: Module>(&self, model: M) -> Result<(), CliError> {
        let model = initialised(model, self.path)?;
        if let Some(run) = self.run {
            save_safetensors(&model, run)?;
        }
        Ok(())
    }
}

impl ModelVisitor for Import<'_> {
    type Output = Result<(), CliError>;

    fn visit_images<M: ImageModel>(self, _pixels: PixelRange, init: Init<M>) -> Self::Output {
        self.load(init(&self.device))
    }

    fn visit_text<M: TextModel>(self, _config: GptConfig, init: Init<M>) -> Self::Output {
        self.load(init(&self.device))
    }
}
