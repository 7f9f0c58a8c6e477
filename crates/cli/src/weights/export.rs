//! `everburn export`: weights for other programs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use burn::prelude::Device;
use clap::{Args, ValueEnum};
use everburn_train::{
    Adapter, AnyTask, ConfiguredTask, StateDictFile, StateDictLayout, save_pretrained,
    save_state_dict, with_parameters,
};
use toml::Value;

use crate::arguments::keys::get;
use crate::config::RunConfig;
use crate::error::CliError;
use crate::prelude::*;
use crate::pretrained::is_pretrained;
use crate::trained::{load_checkpoint, load_parameters};
use crate::{missing_run, tasks};

/// What is exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// A safetensors file with PyTorch's names and layouts
    Safetensors,
    /// A state dict that `torch.load` opens
    #[value(name = "pytorch", alias = "pt-names")]
    PyTorch,
    /// A folder for `from_pretrained` of Hugging Face's transformers
    HuggingFace,
    /// Refused with what to do.
    #[value(hide = true)]
    Onnx,
}

/// How the model comes to ONNX.
const BY_PYTORCH: &str = "export to a .pt file, load it into the same model in PyTorch by load_state_dict, and write that by \
                          torch.onnx.export";

#[derive(Debug, Clone, Args)]
pub(crate) struct ExportArguments {
    /// The folder of the run.
    pub(crate) run_dir: PathBuf,

    /// safetensors: a file for safetensors.torch.load_file; pytorch: one for torch.load. Both have
    /// PyTorch's names and layouts, for load_state_dict. hugging-face: a folder for from_pretrained of transformers.
    /// Not needed if the ending of --output decides it.
    #[arg(long, value_name = "FORMAT")]
    pub(crate) to: Option<ExportFormat>,

    /// Export only what `--lora` has learned, as a folder that Hugging Face's PEFT loads on top of the pretrained model.
    #[arg(long, conflicts_with_all = ["to", "ema"])]
    pub(crate) adapter: bool,

    #[arg(long, value_name = "FILE", help = format!(
        "The file or folder to write [default: state-dict.safetensors, state-dict.pt, hugging-face or adapter in the run's \
         folder]. A file ends in {}",
        StateDictFile::endings()
    ))]
    pub(crate) output: Option<PathBuf>,

    /// Replace the file of --output, if it exists.
    #[arg(long)]
    pub(crate) force: bool,

    /// With hugging-face: the most bytes of weights in one file; larger models are written as several, with an index. Units
    /// are KB, MB and GB, powers of 1000.
    #[arg(long, value_name = "SIZE", default_value = "5GB", value_parser = size)]
    pub(crate) max_shard_size: u64,

    /// Export a checkpoint instead of the trained model: `best`, or the number of an epoch.
    #[arg(long, value_name = "EPOCH")]
    pub(crate) checkpoint: Option<String>,

    /// Export the averaged parameters, of a run that was trained with --ema.
    #[arg(long)]
    pub(crate) ema: bool,
}

impl ExportArguments {
    /// The format that --to names, or the ending of --output.
    fn format(&self) -> Result<ExportFormat, CliError> {
        let output = self.output.as_deref();
        if let Some(output) = output.filter(|output| StateDictFile::is_onnx(output)) {
            return Err(CliError::usage_with_help(
                format!("--output {}: ONNX is not written", output.display()),
                BY_PYTORCH,
            ));
        }
        let by_ending = output.and_then(StateDictFile::of);
        match (self.to, by_ending) {
            (Some(ExportFormat::Onnx), _) => Err(CliError::usage_with_help(
                "--to onnx: ONNX is not written",
                BY_PYTORCH,
            )),
            (Some(format), _) => Ok(format),
            (None, Some(StateDictFile::Safetensors)) => Ok(ExportFormat::Safetensors),
            (None, Some(StateDictFile::PyTorch)) => Ok(ExportFormat::PyTorch),
            (None, None) => Err(CliError::usage_with_help(
                "export to which format?",
                format!(
                    "--to safetensors: a file for safetensors.torch.load_file; --to pytorch: one for torch.load; \
                     --to hugging-face: a folder for transformers; --adapter: only what --lora has learned; or an --output \
                     that ends in {}",
                    StateDictFile::endings()
                ),
            )),
        }
    }

    /// Refuses what is there already: a folder in the place of a file, anything in the place of a folder, and a file that
    /// --output names without --force: it may be of somebody else. Those in the run's folder are its own.
    fn refuse_what_is_there(&self, output: &Path) -> Result<(), CliError> {
        let shown = output.display();
        let writes_folder = self.adapter || self.to == Some(ExportFormat::HuggingFace);
        let (what, help) = match writes_folder {
            true if output.exists() => (
                format!("--output {shown}: there is something already"),
                "name another folder, or remove it".to_owned(),
            ),
            false if output.is_dir() => (
                format!("--output {shown} is a folder"),
                format!(
                    "name a file in it, such as {}; only --to hugging-face and --adapter write a folder, and make it",
                    output.join("state-dict.safetensors").display()
                ),
            ),
            false if self.output.is_some() && output.exists() && !self.force => (
                format!("--output {shown} is there already"),
                "--force replaces it; or name another file".to_owned(),
            ),
            _ => return Ok(()),
        };
        Err(CliError::usage_with_help(what, help))
    }

    /// Refuses a file whose ending is not one of the format's.
    fn check_ending(&self, format: Option<ExportFormat>) -> Result<(), CliError> {
        let Some(output) = &self.output else {
            return Ok(());
        };
        let by_ending = StateDictFile::of(output);
        let endings = match format {
            Some(ExportFormat::Safetensors) if by_ending != Some(StateDictFile::Safetensors) => {
                ".safetensors".to_owned()
            }
            Some(ExportFormat::PyTorch) if by_ending != Some(StateDictFile::PyTorch) => {
                ".pt, .pth, .pth.tar, .ckpt or .bin".to_owned()
            }
            _ => return Ok(()),
        };
        let what = format!("{} does not end in {endings}", output.display());
        Err(match by_ending {
            Some(_) => CliError::usage_with_help(
                what,
                "leave --to out: the ending of --output says the format",
            ),
            None => CliError::usage(what),
        })
    }
}

/// Bytes, as in `20000`, `20KB` or `5GB`: what transformers take as `max_shard_size`.
fn size(text: &str) -> Result<u64, String> {
    let units = [("KB", 1_000), ("MB", 1_000_000), ("GB", 1_000_000_000)];
    let unit = units
        .iter()
        .find_map(|(name, factor)| Some((text.strip_suffix(name)?, *factor)));
    let (digits, factor) = unit.unwrap_or((text, 1));
    let bytes = digits.parse::<u64>().ok();
    let bytes = bytes.and_then(|number| number.checked_mul(factor));
    bytes
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| format!("`{text}` is not a size: write bytes, or 20KB, 500MB, 5GB"))
}

/// Writes a run's model as a state dict.
pub(crate) fn export(arguments: &ExportArguments) -> Result<ExitCode, CliError> {
    let run = missing_run::open(&arguments.run_dir)?;
    if let Some(output) = &arguments.output {
        arguments.refuse_what_is_there(output)?;
    }
    let format = match arguments.adapter {
        true => None,
        false => Some(arguments.format()?),
    };
    arguments.check_ending(format)?;
    let output = arguments.output.clone().unwrap_or_else(|| {
        run.path().join(match format {
            Some(ExportFormat::Safetensors) => "state-dict.safetensors",
            Some(ExportFormat::PyTorch) => "state-dict.pt",
            Some(ExportFormat::HuggingFace) => "hugging-face",
            // It was refused.
            Some(ExportFormat::Onnx) => "onnx",
            None => "adapter",
        })
    });
    arguments.refuse_what_is_there(&output)?;
    let folder = output
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        return Err(CliError::usage_with_help(
            format!(
                "--output {}: there is no folder {}",
                output.display(),
                folder.display()
            ),
            "make it first, or name another file",
        ));
    }
    let Some(to) = format else {
        return export_adapter(arguments, &run, &output);
    };
    let config = RunConfig::of_run(&run)?;
    let device = Device::flex();
    let task = config.task()?;
    let files = match to {
        ExportFormat::HuggingFace => Some(pretrained_files(&*task)?),
        _ => None,
    };
    let (model, checkpoint) = (task.model(&device)?, arguments.checkpoint.as_deref());
    let model = load_parameters(model, &run, checkpoint, arguments.ema)?;
    if let Some(files) = files {
        let layout = task.layout();
        save_pretrained(&model, &layout, &files, &output, arguments.max_shard_size)?;
        say!("wrote {} ({})", output.display(), config.model);
        if let Some(line) = without_tokenizer(&config, &files) {
            say!("{line}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    // A run that was imported, or has not ended, has no report.
    let batches = run.read_report().map_or(0, |report| report.steps);
    save_state_dict(&model, batches as u64, &output)?;
    say!("wrote {} ({})", output.display(), config.model);
    Ok(ExitCode::SUCCESS)
}

/// The files beside the weights for transformers.
fn pretrained_files(task: &dyn ConfiguredTask) -> Result<Vec<(String, Vec<u8>)>, CliError> {
    task.pretrained_files().map_err(|error| match error.help() {
        Some(_) => error.into(),
        None => CliError::usage_with_help(
            error.to_string(),
            format!(
                "--to safetensors and --to pytorch write its weights by the model's own names{}",
                models_of_transformers()
            ),
        ),
    })
}

/// Which models of this program transformers have.
fn models_of_transformers() -> String {
    let has_form = |task: &&AnyTask| {
        let configured = task.configure(&toml::Table::new());
        configured.is_ok_and(|task| task.pretrained_files().is_ok())
    };
    let names = tasks::tasks().iter().filter(has_form).map(AnyTask::name);
    match names.collect::<Vec<_>>().join(", ") {
        none if none.is_empty() => {
            "; of a task of your own, `Task::pretrained` says how transformers have it".to_owned()
        }
        names => format!("; transformers have {names}"),
    }
}

/// What is said of an exported text model whose folder has no tokenizer.
fn without_tokenizer(config: &RunConfig, files: &[(String, Vec<u8>)]) -> Option<String> {
    let is_there = files.iter().any(|(name, _)| name == "tokenizer.json");
    if is_there || !config.sections.contains_key("text") {
        return None;
    }
    let named = get(&config.sections, "text.tokenizer").and_then(Value::as_str);
    let has_shards = get(&config.sections, "text.shards").is_some();
    let used = match named.unwrap_or("char") {
        "byte" => "its tokens are the bytes of UTF-8, from 0 to 255".to_owned(),
        "char" if has_shards => {
            "it learned from files of tokens, whose tokenizer is not known".to_owned()
        }
        "char" => {
            "its tokens are characters, in the order of text.alphabet in the run's config.toml"
                .to_owned()
        }
        file => format!("the run's, {file}, is not there any more"),
    };
    Some(format!("no tokenizer.json in it: {used}"))
}

/// Writes what a run with low-rank adaptation has learned, for PEFT.
fn export_adapter(
    arguments: &ExportArguments,
    run: &RunDirectory,
    output: &Path,
) -> Result<ExitCode, CliError> {
    let config = RunConfig::of_run(run)?;
    let Some(lora) = &config.training.lora else {
        return Err(CliError::usage_with_help(
            format!("{} was trained without --lora", run.path().display()),
            "--to exports all weights of a run",
        ));
    };
    if lora.modules_to_save.iter().next().is_some() {
        return Err(CliError::usage_with_help(
            format!(
                "{} was trained whole beside the factors, and an adapter has the factors alone",
                lora.modules_to_save
            ),
            "export the merged model: --to hugging-face, or an --output that ends in .safetensors",
        ));
    }
    let task = config.task()?;
    let adapter = match &arguments.checkpoint {
        None => Adapter::read(run)?,
        Some(name) => {
            let device = Device::flex();
            let model = lora.adapt(task.model(&device)?)?;
            Adapter::of(&with_parameters(model, &load_checkpoint(run, name)?)?)
        }
    };
    let base = config
        .init_from
        .as_deref()
        .filter(|base| is_pretrained(base));
    let layout = task.layout();
    // PEFT has no type for a classifier of images.
    let is_text = config.sections.contains_key("text") && layout != StateDictLayout::default();
    let kind = is_text.then_some("CAUSAL_LM");
    adapter.save_peft(lora, &layout, kind, base, output)?;
    say!("wrote {} ({})", output.display(), config.model);
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests;
