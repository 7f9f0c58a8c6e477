//! `everburn import`

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use everburn_datasets::TokenizerKind;
use everburn_record::plain::word;
use everburn_record::units::counted;
use everburn_record::{invocation, is_run};
use everburn_train::{
    ConfiguredTask, Patterns, StateDictFile, TrainError, WeightsMismatch, save_safetensors,
    state_dict_shapes,
};
use toml::Value;

use super::shown_sizes::check_sizes;
use super::{MOST_NAMED, assumed, check, loaded, lone_text, skipped};
use crate::arguments::keys::{get, put};
use crate::arguments::{Given, OfImport, OfTraining, TrainArguments};
use crate::config::{RunConfig, key_of};
use crate::error::CliError;
use crate::pretrained::{
    adopt, adopt_run, described_by, folder_of, is_pretrained, require_tokenizer,
};
use crate::train::{Replaced, prepare_run_directory};

#[derive(Debug, Clone, Args)]
pub(crate) struct ImportArguments {
    #[arg(help = format!(
        "A state dict of PyTorch ({}), or a folder of Hugging Face's transformers",
        StateDictFile::endings()
    ))]
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

    /// Choose a setting of the model that the file does not show, as in `MODEL.blocks=[3,4,6,3]`. The value is TOML, or
    /// else a string; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,

    /// Leave out these tensors of the file, by their names, for which the model has no place: 'criterion.*'; may be
    /// repeated.
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    pub(crate) init_skip: Vec<String>,

    /// Flags that are keys of the configuration.
    #[command(flatten)]
    pub(crate) keys: Given<OfImport>,
}

/// Makes a run of a state dict.
pub(crate) fn import(arguments: &ImportArguments) -> Result<ExitCode, CliError> {
    let mut keys = arguments.keys.clone().into_sections();
    if let Some(tokenizer) = &arguments.tokenizer {
        let tokenizer = match tokenizer {
            TokenizerKind::File(path) => std::path::absolute(path)
                .map_or_else(|_| tokenizer.to_string(), |path| path.display().to_string()),
            other => other.to_string(),
        };
        let tokenizer = tokenizer.into();
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
        init_skip: arguments.init_skip.clone(),
        ..TrainArguments::default()
    };
    let mut config = RunConfig::resolve(&arguments, None)?;
    let given = config.sections.clone();
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
        if data_are_named(&keys, &arguments.set) && !lone_text::reads_text(&config) {
            // Their classes must be the model's, or they name them.
            task.load()?;
            config.sections = task.sections()?;
        }
    } else if !data_are_named(&keys, &arguments.set) && adopt_shapes(&mut *task, &weights)? {
        config.sections = task.sections()?;
    } else if task.data_decide_model() && !lone_text::tokens_are_named(&*task, &config, &arguments)?
    {
        check_sizes(&config)?;
        // A text decides both.
        task.load()
            .map_err(|error| of_another_architecture(&config).unwrap_or_else(|| error.into()))?;
        config.sections = task.sections()?;
        lone_text::refuse_few_characters(&config, &arguments)?;
    }
    refuse_other_pixels(&config, &weights)?;
    // Before there is a folder.
    check(&config).map_err(|error| of_import(error, &config, &weights))?;
    require_all(&config, &weights)?;
    let prepared = prepare_run_directory(&config, &arguments, &Replaced::default())?;
    let run = &prepared.run;
    save_safetensors(&loaded(&config, &weights)?, run)?;
    say!("wrote {}, a run of {}", run.path().display(), config.model);
    if let Some((taken, others)) = StateDictFile::entries(&weights) {
        say!(
            "{}: these are the weights of its entry {taken}, not of {}",
            weights.display(),
            others.join(", ")
        );
    }
    if let Some(assumed) = assumed(&config, &given, &weights)? {
        say!("{assumed}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses to read images by another mean or deviation than the folder of the imported model, or its run, has
/// recorded. A training with new data may.
fn refuse_other_pixels(config: &RunConfig, weights: &Path) -> Result<(), CliError> {
    let named = Some(&*config.model);
    let stated = match adopt_run(described_by(weights), named)? {
        Some(found) => Some(found),
        None => adopt(weights, named, &config.init_skip)?,
    };
    let Some((_, stated)) = stated else {
        return Ok(());
    };
    let differs = |key: &str| {
        let own = get(&stated, key);
        own.is_some() && own != get(&config.sections, key)
    };
    let keys = ["data.mean", "data.std"];
    match keys.into_iter().find(|key| differs(key)) {
        None => Ok(()),
        Some(key) => Err(CliError::usage_with_help(
            format!(
                "{key} is {} for the model of {}, and another was set: it would predict from other pixels than it learned from",
                get(&stated, key).map(Value::to_string).unwrap_or_default(),
                weights.display()
            ),
            format!(
                "leave {key} out; a training with --init-from may have another, which the weights then learn"
            ),
        )),
    }
}

/// Refuses an import that would leave parameters of the model as they were drawn.
fn require_all(config: &RunConfig, weights: &Path) -> Result<(), CliError> {
    if config.init_skip == Patterns::default() {
        return Ok(());
    }
    let missing = skipped(config, weights)?;
    if missing.is_empty() {
        return Ok(());
    }
    let named: Vec<&str> = missing
        .iter()
        .take(MOST_NAMED)
        .map(String::as_str)
        .collect();
    let more = match missing.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let patterns = config.init_skip.iter();
    let patterns: Vec<String> = patterns
        .map(|it| format!("--init-skip {}", word(it)))
        .collect();
    let patterns = patterns.join(" ");
    Err(CliError::usage_with_help(
        format!(
            "{patterns} leaves out {} of the model: {}{more}; an import takes a whole model",
            counted(missing.len(), "tensor"),
            named.join(", ")
        ),
        format!(
            "leave out tensors that only the file has; or train the others anew: `{} train {} --init-from {} {patterns} --data ...`",
            invocation::name(),
            config.model,
            word(weights)
        ),
    ))
}

pub(super) fn data_are_named(keys: &Given<OfTraining>, set: &[String]) -> bool {
    let is_set = |key: &str| set.iter().any(|assignment| key_of(assignment) == key);
    let keys_of_data = ["data.name", "data.folder"];
    keys_of_data.iter().any(|key| keys.has(key) || is_set(key))
}

/// Takes from the shapes in the file what data would decide; whether all is decided.
fn adopt_shapes(task: &mut dyn ConfiguredTask, weights: &Path) -> Result<bool, CliError> {
    if !task.data_decide_model() || is_run(weights) {
        return Ok(false);
    }
    let shapes = state_dict_shapes(weights, &task.layout())?;
    Ok(task.adopt_shapes(&shapes)?)
}

/// That the weights are of another architecture, whatever the data are: the cause of an import that has none.
pub(super) fn of_another_architecture(config: &RunConfig) -> Option<CliError> {
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

/// The error of an import, with the command that replaces a head: an import takes a whole model.
fn of_import(error: CliError, config: &RunConfig, weights: &Path) -> CliError {
    let CliError::Train(TrainError::Weights {
        mismatch: WeightsMismatch::OtherHead { skip },
        ..
    }) = &error
    else {
        return error;
    };
    let help = format!(
        "a head for other classes has to be trained: `{} train {} --init-from {} --init-skip {} --data ...`",
        invocation::name(),
        config.model,
        word(weights),
        word(skip)
    );
    CliError::usage_with_help(error.to_string(), help)
}
