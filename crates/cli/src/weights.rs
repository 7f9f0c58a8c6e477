//! Weights that come from elsewhere or go there: `everburn export`, `everburn import` and `--init-from`.

mod other_size;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::devices;
use crate::prelude::*;
use clap::{Args, ValueEnum};
use everburn_datasets::{Tokenizer, TokenizerKind};
use everburn_record::invocation;
use everburn_train::{
    Adapter, AnyModel, ConfiguredTask, Patterns, StateDictLayout, TrainError, WeightsMismatch,
    load_state_dict_except, missing_keys, save_pretrained, save_safetensors, save_state_dict,
    state_dict_names, state_dict_shapes, with_parameters,
};
use toml::Value;

use self::other_size::{settings_of_model, with_sizes};
use crate::arguments::keys::{get, put};
use crate::arguments::{Given, OfImport, OfTraining, TrainArguments};
use crate::config::{RunConfig, key_of};
use crate::error::CliError;
use crate::pretrained::{folder_of, is_pretrained, require_tokenizer};
use crate::summary::counted;
use crate::train::prepare_run_directory;
use crate::trained::{Which, load_checkpoint, load_parameters};

/// The most tensors that are named.
const MOST_NAMED: usize = 6;

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
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ExportArguments {
    /// The folder of the run.
    pub(crate) run_dir: PathBuf,

    /// safetensors: a file for safetensors.torch.load_file; pytorch: one for torch.load. Both have
    /// PyTorch's names and layouts, for load_state_dict. hugging-face: a folder for from_pretrained of transformers.
    /// Not needed where --output ends in .safetensors, .pt or .pth.
    #[arg(long, value_name = "FORMAT")]
    pub(crate) to: Option<ExportFormat>,

    /// Export only what `--lora` has learned, as a folder that Hugging Face's PEFT loads on top of the pretrained model.
    #[arg(long, conflicts_with_all = ["to", "ema"])]
    pub(crate) adapter: bool,

    /// The file or folder to write [default: state-dict.safetensors, state-dict.pt, hugging-face or adapter in the run's
    /// folder]. With pytorch it may end in .pt, .pth or .safetensors.
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

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
        let ending = self.output.as_deref().and_then(Path::extension);
        match (self.to, ending.and_then(|ending| ending.to_str())) {
            (Some(format), _) => Ok(format),
            (None, Some("safetensors")) => Ok(ExportFormat::Safetensors),
            (None, Some("pt" | "pth")) => Ok(ExportFormat::PyTorch),
            (None, _) => Err(CliError::usage_with_help(
                "export to which format?",
                "--to safetensors: a file for safetensors.torch.load_file; --to pytorch: one for torch.load; \
                 --to hugging-face: a folder for transformers; --adapter: only what --lora has learned; or an --output that ends in .safetensors, .pt or .pth",
            )),
        }
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ImportArguments {
    /// A state dict of PyTorch (.safetensors, .pt, .pth, .ckpt, .bin), or a folder of Hugging Face's transformers.
    pub(crate) file: PathBuf,

    /// The model, one of `train --list`.
    pub(crate) model: Option<String>,

    /// Read the model and its settings from this file, such as a run's config.toml.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// The folder of the new run, for `eval`, `generate` and `export` [default: runs/<model>-<number>].
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,

    /// The tokenizer of a language model, as `train --tokenizer` takes it [default: that of the folder].
    #[arg(long, value_name = "char|byte|FILE")]
    pub(crate) tokenizer: Option<TokenizerKind>,

    /// Set a setting of the model that the file has no word of, as in `resnet18.blocks=[3,4,6,3]`. The value is TOML, or
    /// else a string; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,

    /// Flags that are keys of the configuration.
    #[command(flatten)]
    pub(crate) keys: Given<OfImport>,
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
    let run = RunDirectory::open(&arguments.run_dir)?;
    let format = match arguments.adapter {
        true => None,
        false => Some(arguments.format()?),
    };
    let output = arguments.output.clone().unwrap_or_else(|| {
        run.path().join(match format {
            Some(ExportFormat::Safetensors) => "state-dict.safetensors",
            Some(ExportFormat::PyTorch) => "state-dict.pt",
            Some(ExportFormat::HuggingFace) => "hugging-face",
            None => "adapter",
        })
    });
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
    let is_safetensors = output
        .extension()
        .is_some_and(|ending| ending == "safetensors");
    if to == ExportFormat::Safetensors && !is_safetensors {
        return Err(CliError::usage_with_help(
            format!("{} does not end in .safetensors", output.display()),
            "--to pytorch writes .pt, .pth and .safetensors, as the name of --output ends",
        ));
    }
    let config = run.read_config::<RunConfig>()?;
    let which = Which {
        checkpoint: arguments.checkpoint.as_deref(),
        ema: arguments.ema,
    };
    let device = devices::of_rank(&["flex".to_string()], 0)?;
    let task = config.task()?;
    let model = load_parameters(task.model(&device)?, &run, which)?;
    if to == ExportFormat::HuggingFace {
        let (layout, files) = (task.layout(), task.pretrained_files()?);
        save_pretrained(&model, &layout, &files, &output, arguments.max_shard_size)?;
        say!("{} of {} written", output.display(), config.model);
        if let Some(line) = without_tokenizer(&config, &files) {
            say!("{line}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    // A run that was imported, or has not ended, has no report.
    let batches = run.read_report().map_or(0, |report| report.steps);
    save_state_dict(&model, batches as u64, &output)?;
    say!("{} of {} written", output.display(), config.model);
    Ok(ExitCode::SUCCESS)
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
    let config = run.read_config::<RunConfig>()?;
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
            let device = devices::of_rank(&["flex".to_string()], 0)?;
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
    say!("{} of {} written", output.display(), config.model);
    Ok(ExitCode::SUCCESS)
}

/// Makes a run of a state dict.
pub(crate) fn import(arguments: &ImportArguments) -> Result<ExitCode, CliError> {
    let mut keys = arguments.keys.clone().into_sections();
    if let Some(tokenizer) = &arguments.tokenizer {
        let tokenizer = tokenizer.to_string().into();
        put(&mut keys.table, "text.tokenizer", tokenizer).map_err(CliError::usage)?;
    }
    let weights = folder_of(&arguments.file);
    let arguments = TrainArguments {
        keys: keys.clone(),
        model: arguments.model.clone(),
        config: arguments.config.clone(),
        run_dir: arguments.run_dir.clone(),
        init_from: Some(weights.clone()),
        set: arguments.set.clone(),
        ..TrainArguments::default()
    };
    let mut config = RunConfig::resolve(&arguments, None)?;
    let mut task = config.task()?;
    let folder = config.init_from.as_deref();
    if folder.is_some_and(is_pretrained) {
        // The folder says how many tokens there are; a tokenizer, what they stand for.
        if let Err(error) = task.language() {
            if let Some(folder) = folder.filter(|_| !keys.has("text.tokenizer")) {
                require_tokenizer(folder)?;
            }
            let help = "name its tokenizer with --tokenizer";
            return Err(CliError::usage_with_help(error.to_string(), help));
        }
    } else if !data_are_named(&keys, &arguments.set) && adopt_shapes(&mut *task, &weights)? {
        config.sections = task.sections()?;
    } else if task.data_decide_model() {
        // A text decides both.
        task.load()
            .map_err(|error| without_data(error.into(), &config, &arguments))?;
        config.sections = task.sections()?;
    }
    // Before there is a folder.
    check(&config).map_err(|error| of_import(error, &config, &weights))?;
    let prepared = prepare_run_directory(&config, &arguments)?;
    let run = &prepared.run;
    save_safetensors(&loaded(&config, &weights)?, run)?;
    say!(
        "{} has the weights now: a run of {}",
        run.path().display(),
        config.model
    );
    Ok(ExitCode::SUCCESS)
}

fn data_are_named(keys: &Given<OfTraining>, set: &[String]) -> bool {
    let is_set = |key: &str| set.iter().any(|assignment| key_of(assignment) == key);
    let keys_of_data = ["data.name", "data.folder"];
    keys_of_data.iter().any(|key| keys.has(key) || is_set(key))
}

/// Takes from the shapes in the file what data would decide; whether all is decided.
fn adopt_shapes(task: &mut dyn ConfiguredTask, weights: &Path) -> Result<bool, CliError> {
    let is_run = weights.join("config.toml").is_file();
    if !task.data_decide_model() || is_run {
        return Ok(false);
    }
    let shapes = state_dict_shapes(weights, &task.layout())?;
    Ok(task.adopt_shapes(&shapes)?)
}

/// The error of an import whose data cannot be loaded. Who has named none does not know that they decide what tokens there
/// are.
fn without_data(error: CliError, config: &RunConfig, arguments: &TrainArguments) -> CliError {
    if let Some(error) = of_another_architecture(config) {
        return error;
    }
    let named = data_are_named(&arguments.keys, &arguments.set);
    let is_known = named || arguments.keys.has("text.tokenizer");
    if is_known || !config.sections.contains_key("text") {
        return error;
    }
    CliError::usage_with_help(
        format!(
            "the sizes and the tokens of this {} are not known: a state dict does not have them",
            config.model
        ),
        "--config FILE takes them from the config.toml of the run that the weights are from; or name the --tokenizer and the \
         --data that the model learned from, and the sizes with --set. Of a folder of transformers all is known: import that",
    )
}

/// That the weights are of another architecture, whatever the data are: the cause of an import that has none.
fn of_another_architecture(config: &RunConfig) -> Option<CliError> {
    let error = check(config).err()?;
    matches!(
        error,
        CliError::Train(TrainError::Weights {
            mismatch: WeightsMismatch::OtherArchitecture,
            ..
        })
    )
    .then_some(error)
}

/// The error of an import, with the command that replaces a head: `import` has no --init-skip.
fn of_import(error: CliError, config: &RunConfig, weights: &Path) -> CliError {
    let CliError::Train(TrainError::Weights {
        mismatch: WeightsMismatch::OtherHead { skip },
        ..
    }) = &error
    else {
        return error;
    };
    let help = format!(
        "a head for other classes has to be trained: `{} train {} --init-from {} --init-skip '{skip}' --data ...`",
        invocation::name(),
        config.model,
        weights.display()
    );
    CliError::usage_with_help(error.to_string(), help)
}

/// Checks that the weights of `--init-from` are the model's, before anything is started. Returns a line about them, if
/// it is given.
pub(crate) fn check(config: &RunConfig) -> Result<Option<String>, CliError> {
    let Some(path) = &config.init_from else {
        return match config.init_skip == Patterns::default() {
            true => Ok(None),
            false => Err(CliError::usage_with_help(
                "--init-skip leaves out tensors of --init-from, which is not given",
                "add --init-from, or leave --init-skip away",
            )),
        };
    };
    let model = loaded(config, path)
        .map_err(|error| with_sizes(error, config, path, || settings_of_model(config, path)))?;
    let layout = config.task()?.layout();
    let skipped = missing_keys(&model, path, &config.init_skip, &layout)?;
    let taken = state_dict_names(&model).len() - skipped.len();
    if taken == 0 {
        return Err(CliError::usage_with_help(
            format!("--init-skip leaves out all tensors of {}", path.display()),
            "name those of the head only, or leave --init-from away",
        ));
    }
    let taken = counted(taken, "tensor");
    let new = match &*skipped {
        [] => String::new(),
        [one] => format!("; {one} begins with new weights"),
        some if some.len() <= MOST_NAMED => {
            format!("; {} begin with new weights", some.join(", "))
        }
        many => format!("; {} others begin with new weights", many.len()),
    };
    Ok(Some(format!("weights: {}: {taken}{new}", path.display())))
}

/// Refuses to train a pretrained text model on the characters of the data, because its folder has no tokenizer and none
/// was named; or on the tokens of another tokenizer than the one in its folder.
pub(crate) fn check_tokenizer(
    config: &RunConfig,
    arguments: &TrainArguments,
) -> Result<(), CliError> {
    let folder = config.init_from.as_deref();
    let Some(folder) = folder.filter(|folder| is_pretrained(folder)) else {
        return Ok(());
    };
    if !arguments.keys.has("text.tokenizer") {
        return match get(&config.sections, "text.alphabet") {
            Some(_) => require_tokenizer(folder),
            None => Ok(()),
        };
    }
    let named = get(&config.sections, "text.tokenizer").and_then(Value::as_str);
    match (named, TokenizerKind::of_pretrained(folder)) {
        (Some(named), Some(TokenizerKind::File(own))) => refuse_another_tokenizer(named, &own),
        _ => Ok(()),
    }
}

/// Refuses the tokenizer file `named` where a number stands for one text there, and for another in the file `own`. One
/// that only has more tokens is none such.
fn refuse_another_tokenizer(named: &str, own: &Path) -> Result<(), CliError> {
    // What cannot be read is refused with the data, or is unknown here.
    let (Ok(others), Ok(ours)) = (Tokenizer::from_file(named), Tokenizer::from_file(own)) else {
        return Ok(());
    };
    if others.file_hash() == ours.file_hash() {
        return Ok(());
    }
    let shared = others.vocabulary().min(ours.vocabulary()) as u32;
    let mut differing =
        (0..shared).map(|token| (token, [&ours, &others].map(|it| it.decode(&[token]))));
    match differing.find(|(_, [ours, others])| ours != others) {
        None => Ok(()),
        Some((token, [ours, others])) => Err(CliError::usage_with_help(
            format!(
                "the model learned from the tokens of {}, where token {token} is {ours:?}, and in --tokenizer {named} it is \
                 {others:?}",
                own.display()
            ),
            "leave --tokenizer out, or train a model from its first weights",
        )),
    }
}

/// The model with the weights of `path`.
fn loaded(config: &RunConfig, path: &Path) -> Result<AnyModel, CliError> {
    let device = devices::of_rank(&["flex".to_string()], 0)?;
    let task = config.task()?;
    let (model, skip) = (task.model(&device)?, &config.init_skip);
    Ok(load_state_dict_except(model, path, skip, &task.layout())?)
}

#[cfg(test)]
mod tests;
