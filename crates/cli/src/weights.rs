//! Weights that come from elsewhere or go there: `everburn export`, `everburn import` and `--init-from`.

mod export;
mod fitting;
mod lone_text;
mod other_size;
mod shown_sizes;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use burn::prelude::Device;
use clap::Args;
use everburn_datasets::{Tokenizer, TokenizerKind};
use everburn_record::invocation;
use everburn_record::plain::word;
use everburn_record::units::counted;
use everburn_train::{
    AnyModel, ConfiguredTask, Patterns, StateDictFile, TrainError, WeightsMismatch,
    load_state_dict_except, missing_keys, save_safetensors, state_dict_names, state_dict_shapes,
};
use toml::{Table, Value};

pub(crate) use self::export::{ExportArguments, export};
use self::fitting::help_to_fit;
use self::other_size::{settings_of_model, with_sizes};
pub(crate) use self::shown_sizes::check_sizes;
use self::shown_sizes::help_to_size;
use crate::arguments::keys::{get, put};
use crate::arguments::{Given, OfImport, OfTraining, TrainArguments};
use crate::config::{RunConfig, key_of};
use crate::error::CliError;
use crate::pretrained::{
    adopt, adopt_run, described_by, folder_of, is_pretrained, require_tokenizer,
};
use crate::train::{Replaced, prepare_run_directory};

/// The most tensors that are named.
const MOST_NAMED: usize = 6;

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

    /// Set a setting of the model that the file does not show, as in `MODEL.blocks=[3,4,6,3]`. The value is TOML, or
    /// else a string; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,

    /// Leave these tensors of the file out, by their names, which the model has no place for: 'criterion.*'.
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
    say!(
        "{} has the weights now: a run of {}",
        run.path().display(),
        config.model
    );
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

/// Whether weights have neither a run nor a `config.json` beside them, which would say what no shape shows.
fn is_alone(weights: &Path) -> bool {
    !is_pretrained(weights) && !described_by(weights).join("config.toml").is_file()
}

/// A line about the settings that a file of weights does not show and that are not among those `given`, if there are any.
fn assumed(config: &RunConfig, given: &Table, weights: &Path) -> Result<Option<String>, CliError> {
    if !is_alone(weights) {
        return Ok(None);
    }
    let unshown = config.task()?.layout().unshown.into_iter();
    let unset = unshown.filter(|(key, _)| get(given, key).is_none());
    let unset: Vec<String> = unset
        .map(|(key, value)| format!("{key} = {value}"))
        .collect();
    Ok((!unset.is_empty()).then(|| {
        format!(
            "{}: a file of weights does not show these; set them by --set if the model has others",
            unset.join(", ")
        )
    }))
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
    let model = loaded(config, path).map_err(|error| {
        let help = help_to_fit(&error, config, path);
        match help.or_else(|| help_to_size(&error, config, path)) {
            Some(help) => CliError::usage_with_help(error.to_string(), help),
            None => with_sizes(error, config, path, || settings_of_model(config, path)),
        }
    })?;
    let skipped = skipped(config, path)?;
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
    let assumed = assumed(config, &config.sections, path)?;
    let assumed = assumed.map_or_else(String::new, |line| format!("\n{line}"));
    Ok(Some(format!(
        "weights: {}: {taken}{new}{assumed}",
        path.display()
    )))
}

/// The names of the model's tensors that --init-skip leaves out.
fn skipped(config: &RunConfig, path: &Path) -> Result<Vec<String>, CliError> {
    let device = Device::flex();
    let task = config.task()?;
    let (model, skip) = (task.model(&device)?, &config.init_skip);
    Ok(missing_keys(&model, path, skip, &task.layout())?)
}

/// Refuses data of more tokens than the pretrained model has, whose numbers its embedding has no rows for. `before` and
/// `now` are the settings before and after the data were read.
pub(crate) fn check_vocabulary(
    before: &BTreeMap<String, String>,
    now: &BTreeMap<String, String>,
) -> Result<(), CliError> {
    let tokens =
        |settings: &BTreeMap<String, String>, path: &str| settings.get(path)?.parse::<usize>().ok();
    let mut paths = before.keys().filter(|path| path.ends_with(".vocabulary"));
    let more = paths.find_map(|path| {
        let (has, given) = (tokens(before, path)?, tokens(now, path)?);
        (given > has).then_some((has, given))
    });
    match more {
        None => Ok(()),
        Some((has, given)) => Err(CliError::usage_with_help(
            format!("the tokenizer of the data has {given} tokens, and the pretrained model {has}"),
            "name the tokenizer that the model learned with (--tokenizer FILE), or leave --tokenizer out where the model's folder \
             has one; or train a model from its first weights, without --init-from",
        )),
    }
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

fn loaded(config: &RunConfig, path: &Path) -> Result<AnyModel, CliError> {
    let device = Device::flex();
    let task = config.task()?;
    let (model, skip) = (task.model(&device)?, &config.init_skip);
    Ok(load_state_dict_except(model, path, skip, &task.layout())?)
}
