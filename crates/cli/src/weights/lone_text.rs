//! The tokens of a text model that is imported from a file of weights alone, which has no word of them.

use everburn_train::{AnyTask, ConfiguredTask};
use toml::Value;

use super::import::{data_are_named, of_another_architecture};
use super::shown_sizes::sizes_as_flags;
use crate::arguments::TrainArguments;
use crate::arguments::keys::get;
use crate::config::{RunConfig, key_of};
use crate::error::CliError;
use crate::tasks;

/// Whether the vocabulary and the tokenizer of a text model are named, so that no text has to decide them. Other models
/// have none.
///
/// # Errors
/// If neither a tokenizer nor data are named: the characters of any text would be its tokens. Also if it has no tokenizer
/// of that name.
pub(super) fn tokens_are_named(
    task: &dyn ConfiguredTask,
    config: &RunConfig,
    arguments: &TrainArguments,
) -> Result<bool, CliError> {
    let data_are_named =
        arguments.config.is_some() || data_are_named(&arguments.keys, &arguments.set);
    if data_are_named || !reads_text(config) {
        return Ok(false);
    }
    if !tokenizer_is_named(config, arguments) {
        return Err(unknown_tokens(config));
    }
    if vocabulary(config).is_none() {
        return Ok(false);
    }
    match task.language() {
        Ok(_) => Ok(true),
        Err(error) => Err(CliError::usage_with_help(
            error.to_string(),
            "name the tokenizer that the model learned with; characters are those of the --data that it learned from, or of \
             the config.toml of its run: --config FILE",
        )),
    }
}

/// Refuses a model of more tokens than its text has characters, where no tokenizer is named: it has learned from others.
pub(super) fn refuse_few_characters(
    config: &RunConfig,
    arguments: &TrainArguments,
) -> Result<(), CliError> {
    let alphabet = get(&config.sections, "text.alphabet").and_then(Value::as_str);
    let (Some(alphabet), Some(vocabulary)) = (alphabet, vocabulary(config)) else {
        return Ok(());
    };
    let is_asked_for = arguments.config.is_some() || is_set(arguments, "text.tokenizer");
    match !is_asked_for && (alphabet.chars().count() as i64) < vocabulary {
        true => Err(unknown_tokens(config)),
        false => Ok(()),
    }
}

pub(super) fn reads_text(config: &RunConfig) -> bool {
    let of_text = |task: &AnyTask| task.sections().contains(&"text");
    tasks::find(&config.model).is_some_and(of_text)
}

fn is_set(arguments: &TrainArguments, key: &str) -> bool {
    let mut set = arguments.set.iter();
    arguments.keys.has(key) || set.any(|assignment| key_of(assignment) == key)
}

/// Whether the flags name a tokenizer, or the run whose weights these are has one.
fn tokenizer_is_named(config: &RunConfig, arguments: &TrainArguments) -> bool {
    let of_run = ["text.tokenizer_hash", "text.alphabet", "text.shards"];
    let is_other = |kind: &Value| kind.as_str() != Some("char");
    is_set(arguments, "text.tokenizer")
        || get(&config.sections, "text.tokenizer").is_some_and(is_other)
        || of_run
            .iter()
            .any(|key| get(&config.sections, key).is_some())
}

/// How many tokens the model has, if that is known before there are data.
fn vocabulary(config: &RunConfig) -> Option<i64> {
    let mut sections = config.sections.iter();
    sections.find_map(|(_, section)| section.get("vocabulary")?.as_integer())
}

/// The error of a file alone that nobody has named the tokens of, unless its weights are of another architecture.
fn unknown_tokens(config: &RunConfig) -> CliError {
    if let Some(error) = of_another_architecture(config) {
        return error;
    }
    let (unknown, sizes) = match vocabulary(config) {
        Some(_) => ("the tokens", String::new()),
        None => {
            let path = config.init_from.as_deref();
            let flags = path.and_then(|path| sizes_as_flags(config, path));
            let flags = flags.unwrap_or_else(|| "--set".to_owned());
            (
                "the sizes and the tokens",
                format!(", and the sizes with {flags}"),
            )
        }
    };
    CliError::usage_with_help(
        format!(
            "{unknown} of this {} are not known: a state dict does not have them",
            config.model
        ),
        format!(
            "name the tokenizer that the model learned with, --tokenizer PATH/tokenizer.json (byte, or char with the --data that it \
             learned from, only where its tokens were these){sizes}; or --config FILE takes all from the config.toml of the run \
             that the weights are from. Of a folder of transformers all is known: import that"
        ),
    )
}
