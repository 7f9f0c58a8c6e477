//! Weights that come from elsewhere or go there: `everburn export`, `everburn import` and `--init-from`.

mod export;
mod fitting;
mod import;
mod lone_text;
mod other_size;
mod shown_sizes;

use std::collections::BTreeMap;
use std::path::Path;

use burn::prelude::Device;
use everburn_datasets::{Tokenizer, TokenizerKind};
use everburn_record::is_run;
use everburn_record::units::counted;
use everburn_train::{AnyModel, Patterns, load_state_dict_except, missing_keys, state_dict_names};
use toml::{Table, Value};

pub(crate) use self::export::{ExportArguments, export};
use self::fitting::help_to_fit;
pub(crate) use self::import::{ImportArguments, import};
use self::other_size::{settings_of_model, with_sizes};
pub(crate) use self::shown_sizes::check_sizes;
use self::shown_sizes::help_to_size;
use crate::arguments::TrainArguments;
use crate::arguments::keys::get;
use crate::config::RunConfig;
use crate::error::CliError;
use crate::pretrained::{described_by, is_pretrained, require_tokenizer};

/// The most tensors that are named.
const MOST_NAMED: usize = 6;

/// Whether weights have neither a run nor a `config.json` beside them, which would say what no shape shows.
fn is_alone(weights: &Path) -> bool {
    !is_pretrained(weights) && !is_run(described_by(weights))
}

/// Lines about the settings that a file of weights does not show and that are not among those `given`, and about an input that
/// no setting changes, if there are any.
fn assumed(config: &RunConfig, given: &Table, weights: &Path) -> Result<Option<String>, CliError> {
    if !is_alone(weights) {
        return Ok(None);
    }
    let layout = config.task()?.layout();
    let unset = layout
        .unshown
        .into_iter()
        .filter(|(key, _)| get(given, key).is_none());
    let unset: Vec<String> = unset
        .map(|(key, value)| format!("{key} = {value}"))
        .collect();
    let unset = (!unset.is_empty()).then(|| {
        format!(
            "{}: a file of weights does not show these; set them by --set if the model has others",
            unset.join(", ")
        )
    });
    let fixed = layout.fixed_input.map(|input| {
        format!(
            "{} reads {input}; no setting changes that, and weights that learned from others give wrong results",
            config.model
        )
    });
    let lines: Vec<String> = unset.into_iter().chain(fixed).collect();
    Ok((!lines.is_empty()).then(|| lines.join("\n")))
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
