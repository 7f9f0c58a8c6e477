//! What `--init-from FOLDER` says of the model: the folder of Hugging Face's transformers, or of a run.

use std::path::{Path, PathBuf};

use everburn_datasets::TokenizerKind;
use everburn_record::plain::word;
use everburn_record::{Settings, invocation};
use everburn_train::checkpoint::CheckpointFolder;
use everburn_train::{AnyTask, PRETRAINED_CONFIG, Patterns, TaskError, weights_of};
use toml::{Table, Value};

use crate::arguments::keys::get;
use crate::config::read_table;
use crate::error::CliError;
use crate::{legible, tasks};

/// The keys of `[text]` that belong to a trained model: how it reads.
const OF_TOKENIZER: [&str; 3] = ["tokenizer", "tokenizer_hash", "alphabet"];

/// The keys of `[text]` that belong to its weights, whatever the tokenizer: the numbers of special tokens, and as many
/// tokens as it has seen at once.
const OF_WEIGHTS: [&str; 3] = ["special_tokens", "generation_tokens", "window"];

/// The keys of `[data]` that belong to a trained model: what its images are like.
const OF_IMAGES: [&str; 5] = ["size", "stem", "channels", "mean", "std"];

/// How the error of a task begins whose numbers make no model.
const CANNOT_BE_BUILT: &str = "the model cannot be built";

/// The longest `config.json` that is read, in bytes.
const LONGEST_CONFIG: u64 = 16 << 20;

/// Whether `path` is such a folder.
pub(crate) fn is_pretrained(path: &Path) -> bool {
    path.join(PRETRAINED_CONFIG).is_file()
}

/// What is read of `path`: the folder of the run or of the pretrained model whose weights are in the file, the model of the
/// checkpoint in the folder, or else what is there.
pub(crate) fn folder_of(path: &Path) -> PathBuf {
    let model = path.join(MODEL);
    if CheckpointFolder::is_checkpoint(path) && model.is_file() {
        return model;
    }
    let folder = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return path.to_path_buf(),
    };
    // Other machines than the first may have no weights.
    let has_its_weights = || match weights_of(folder) {
        Some(weights) => weights.file_name() == path.file_name(),
        None => path.ends_with(MODEL),
    };
    let is_its = match path.ends_with(MODEL) && is_run(folder) {
        true => true,
        false => has_its_weights() && is_built(folder),
    };
    if is_its { folder } else { path }.to_path_buf()
}

/// Whether a task builds the model whose configuration is in `folder`, or none can say it.
fn is_built(folder: &Path) -> bool {
    if !is_pretrained(folder) {
        return false;
    }
    let skip = Patterns::default();
    let is_its = |json: &serde_json::Value| {
        let mut tasks = tasks::tasks().iter();
        tasks.any(|task| !matches!(task.adopt(folder, json, &skip), Ok(None)))
    };
    read_config(folder).map_or(true, |json| is_its(&json))
}

/// The folder whose configuration says what the model is whose weights are in `path`: of a checkpoint's, that of its run.
pub(crate) fn described_by(path: &Path) -> &Path {
    let checkpoint = path.parent().filter(|_| path.ends_with(MODEL));
    let checkpoint = checkpoint.filter(|folder| CheckpointFolder::is_checkpoint(folder));
    let run = checkpoint.and_then(|folder| folder.parent()?.parent());
    run.filter(|folder| is_run(folder)).unwrap_or(path)
}

/// The file of parameters of a run, and of a checkpoint.
const MODEL: &str = "model.safetensors";

fn is_run(folder: &Path) -> bool {
    everburn_record::is_run(folder) && !is_pretrained(folder)
}

/// Refuses the folder of a text model that has no tokenizer.
///
/// # Errors
/// [`CliError`] with what to do.
pub(crate) fn require_tokenizer(folder: &Path) -> Result<(), CliError> {
    if TokenizerKind::of_pretrained(folder).is_some() {
        return Ok(());
    }
    Err(CliError::usage_with_help(
        format!(
            "{} has no tokenizer.json, nor merges.txt with vocab.json",
            folder.display()
        ),
        "copy the tokenizer.json of the model into the folder, or name it: --tokenizer PATH/tokenizer.json; --tokenizer byte or \
         char only for a model that learned from bytes or characters",
    ))
}

/// Why `--init-from PATH` or `import PATH` does not say which model is meant.
pub(crate) fn without_model(path: &Path) -> CliError {
    let shown = legible(path.display());
    let program = invocation::name();
    if !path.exists() {
        return CliError::usage_with_help(
            format!("{shown}: there is no such file or folder"),
            "name a folder with config.json, the folder of a run, or a file of weights with its model. Nothing is fetched from a \
             hub: give the folder that `hf download NAME --local-dir FOLDER` (or `huggingface-cli download`) has made",
        );
    }
    let folder = if path.is_dir() {
        Some(path)
    } else {
        path.parent()
    };
    if folder.is_some_and(|folder| folder.join("adapter_config.json").is_file()) {
        return CliError::usage_with_help(
            format!("{shown} is an adapter of PEFT, the factors alone"),
            "merge it into its pretrained model in Python, by `model.merge_and_unload().save_pretrained(\"merged\")`, and name \
             the folder `merged`; a LoRA run of Everburn is continued with --resume",
        );
    }
    if path.is_dir() {
        let model = match path.join("tokenizer.json").is_file() {
            true => "llama --tokenizer tokenizer.json",
            false => "resnet18",
        };
        return CliError::usage_with_help(
            format!(
                "{shown} has no {PRETRAINED_CONFIG}, which says which model is in it, and no config.toml of a run"
            ),
            format!(
                "copy the {PRETRAINED_CONFIG} of the model into it; or name the model and a file of weights, as in `{program} import \
                 FILE {model}`"
            ),
        );
    }
    let folder = path.parent().filter(|folder| is_pretrained(folder));
    let help = match folder {
        Some(folder) => {
            let folder = legible(folder.display());
            format!(
                "give its folder, {folder}, whose {PRETRAINED_CONFIG} says it; or name the model"
            )
        }
        None => format!(
            "name the model, as in `{program} train resnet18 --init-from {file}` or `{program} import {file} resnet18` \
             (`{program} train --list` shows all), or give a folder with {PRETRAINED_CONFIG}",
            file = word(&shown)
        ),
    };
    CliError::usage_with_help(
        format!("{shown} is a file of weights, and has no name of a model"),
        help,
    )
}

/// The model of the run in `folder`, and the sections that belong to it: its sizes, those of its images, and its
/// tokenizer. Its data and how it was trained are left out. `None` if the folder is none of a run, or no model has the
/// name `named`.
///
/// # Errors
/// [`CliError`] if the configuration of the run cannot be read, or it trained another model than the one `named`.
pub(crate) fn adopt_run(
    folder: &Path,
    named: Option<&str>,
) -> Result<Option<(String, Table)>, CliError> {
    if !is_run(folder) {
        return Ok(None);
    }
    let mut table = read_table(&folder.join(Settings::FILE))?;
    let Some(Value::String(model)) = table.remove("model") else {
        return Ok(None);
    };
    if let Some(named) = named {
        let Some(task) = tasks::find(named) else {
            return Ok(None);
        };
        if tasks::find(&model).is_none_or(|own| own.name() != task.name()) {
            return Err(of_another_model(folder, &model, named));
        }
    }
    table.retain(|name, value| {
        value.is_table() && !matches!(name, "ranks" | "training" | "parallel")
    });
    if let Some(Value::Table(data)) = table.get_mut("data") {
        data.retain(|key, _| OF_IMAGES.contains(&key));
    }
    if let Some(Value::Table(text)) = table.get_mut("text") {
        text.retain(|key, _| OF_TOKENIZER.contains(&key) || OF_WEIGHTS.contains(&key));
    }
    Ok(Some((model, table)))
}

/// Refuses the weights of a run that trained `model` for the model `named`.
fn of_another_model(folder: &Path, model: &str, named: &str) -> CliError {
    let folder = legible(folder.display());
    let model = legible(model);
    let help = match tasks::find(&model) {
        Some(_) => format!(
            "leave the model's name out: the run says it. To try its weights in another model, write them into a file: \
             `{} export {} --to safetensors`, and --init-from takes that",
            invocation::name(),
            word(&folder)
        ),
        None => format!(
            "this program has no {model}: `export {} --to safetensors` of the one that trained it writes the weights into \
             a file, and --init-from takes that",
            word(&folder)
        ),
    };
    CliError::usage_with_help(
        format!("{folder} is a run of {model}, and its weights are not those of {named}"),
        help,
    )
}

/// Leaves out the tokenizer of `adopted` where `layers` name another.
///
/// # Errors
/// [`CliError`] if the other cannot be that of the run in `folder`, with whose tokens the model computes.
pub(crate) fn forget_tokenizer(
    adopted: &mut Table,
    layers: &[&Table],
    folder: &Path,
) -> Result<(), CliError> {
    let mut named = layers.iter().rev();
    let named = named.find_map(|layer| get(layer, "text.tokenizer")?.as_str());
    let (Some(named), Some(Value::Table(text))) = (named, adopted.get_mut("text")) else {
        return Ok(());
    };
    // A folder of transformers may have none.
    let has_one = !is_pretrained(folder) || TokenizerKind::of_pretrained(folder).is_some();
    let own = text.get("tokenizer").and_then(Value::as_str);
    if let Some(own) = own.filter(|_| has_one)
        && own != named
        && ["char", "byte"]
            .iter()
            .any(|kind| [own, named].contains(kind))
    {
        return Err(CliError::usage_with_help(
            format!(
                "the model of {} reads tokens of the tokenizer {own}, and --tokenizer is {named}",
                folder.display()
            ),
            "leave --tokenizer out, or train a model from its first weights",
        ));
    }
    text.retain(|key, _| !OF_TOKENIZER.contains(&key));
    Ok(())
}

fn read_config(folder: &Path) -> Result<serde_json::Value, CliError> {
    let path = folder.join(PRETRAINED_CONFIG);
    let size = std::fs::metadata(&path).map_or(0, |file| file.len());
    if size > LONGEST_CONFIG {
        let reason = format!("it has {size} bytes, and at most {LONGEST_CONFIG} are read");
        return Err(unreadable(&path, &reason));
    }
    let refuse = |error: &dyn std::fmt::Display| unreadable(&path, &error.to_string());
    let text = std::fs::read(&path).map_err(|error| refuse(&error))?;
    serde_json::from_slice(&text).map_err(|error| refuse(&error))
}

/// The error of a `config.json` that says nothing.
fn unreadable(path: &Path, reason: &str) -> CliError {
    CliError::usage_with_help(
        format!("{} cannot be read: {reason}", path.display()),
        "it is not as transformers wrote it: copy or download the folder again",
    )
}

/// The model in `folder`, and the sections of its settings: the task `named`, or else the first whose kind it is. `None`
/// if the folder is none of a pretrained model. Parameters that match `skip` are not taken.
///
/// # Errors
/// [`CliError`] if no task builds the model.
pub(crate) fn adopt(
    folder: &Path,
    named: Option<&str>,
    skip: &Patterns,
) -> Result<Option<(String, Table)>, CliError> {
    if !is_pretrained(folder) {
        return Ok(None);
    }
    let json = read_config(folder)?;
    let named_task = named.and_then(tasks::find);
    let tasks = tasks::tasks().iter();
    let mut tasks = tasks.filter(|task| {
        let is_it = |named: &AnyTask| named.name() == task.name();
        named.is_none() || named_task.is_some_and(is_it)
    });
    let found = tasks.find_map(|task| match task.adopt(folder, &json, skip) {
        Ok(None) => None,
        Ok(Some(sections)) => {
            // What flags may still set right is refused with them.
            let fault = task.configure(&sections).err();
            let fault = fault.filter(|error| error.to_string().starts_with(CANNOT_BE_BUILT));
            Some(match fault {
                None => Ok((task.name().to_owned(), sections)),
                Some(error) => Err(with_sizes_of(&json, &error)),
            })
        }
        Err(error) => Some(Err(error)),
    });
    if let Some(found) = found {
        // The message begins with the file's name.
        let found = found.map_err(|error| {
            let message = format!("{}: {error}", folder.display());
            match error.help() {
                Some(help) => TaskError::new(message).with_help(help),
                None => TaskError::new(message),
            }
        });
        return Ok(Some(found?));
    }
    let Some(kind) = json["model_type"].as_str() else {
        let reason = "it has no model_type, which says what the model is";
        return Err(unreadable(&folder.join(PRETRAINED_CONFIG), reason));
    };
    let kind: String = kind.chars().take(80).collect();
    let kind = kind.escape_debug();
    Err(match named {
        Some(name) => CliError::usage_with_help(
            format!(
                "{} has a model of type `{kind}`, and {name} is another",
                folder.display()
            ),
            "leave out the name of the model: the type says which it is",
        ),
        None => CliError::usage_with_help(
            format!(
                "{} has a model of type `{kind}`, which no model here is",
                folder.display()
            ),
            "types that are built: gpt2; llama, mistral, qwen2; vit; resnet",
        ),
    })
}

/// The error of a model that cannot be built, with the sizes in the `config.json` that it comes from.
fn with_sizes_of(json: &serde_json::Value, error: &TaskError) -> TaskError {
    let all = json.as_object().into_iter().flatten();
    let sizes = all.filter(|(key, value)| value.is_u64() && !key.ends_with("_id"));
    let sizes: Vec<String> = sizes
        .map(|(key, value)| format!("{} = {value}", legible(key)))
        .collect();
    TaskError::new(format!("{PRETRAINED_CONFIG}: {error}")).with_help(format!(
        "the sizes of the model are those of {PRETRAINED_CONFIG}: {}; copy or download the folder again",
        sizes.join(", ")
    ))
}
