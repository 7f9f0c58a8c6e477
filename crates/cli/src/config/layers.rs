//! The layers of a configuration: the task's preset, what `--init-from` says of the model, the file, and the flags.

use std::path::Path;

use everburn_record::plain::word;
use everburn_record::{invocation, is_run};
use everburn_train::{AnyTask, Patterns, configuration_fault, nearest_name};
use serde::Deserialize;
use toml::{Table, Value};

use super::flags::{assign, flags_layer, key_of};
use super::foreign_sections::{NO_SETTINGS, has_no_settings, meant};
use super::no_model::without_model;
use super::of_run::task_of_run;
use super::{optimizer, unshown};
use crate::arguments::TrainArguments;
use crate::error::CliError;
use crate::summary::resume_of;
use crate::{legible, pretrained, tasks};

/// The task that is meant, and its configuration: the task's preset, then what `--init-from` says of the model, then the
/// file, then the flags.
pub(super) fn layered(
    arguments: &TrainArguments,
    mut file_layer: Table,
) -> Result<(&'static AnyTask, Table), CliError> {
    if arguments.init_from.is_some() && !arguments.resume && file_layer.contains_key("init_from") {
        // It is about the weights that the file names.
        file_layer.remove("init_skip");
    }
    let named = match (&arguments.model, file_layer.get("model")) {
        (Some(name), _) => Some(name.clone()),
        (None, Some(Value::String(name))) => Some(name.clone()),
        (None, _) => tasks::only().map(|task| task.name().to_owned()),
    };
    if let (Some(named), Some(Value::String(of_run))) = (&arguments.model, file_layer.get("model"))
        && arguments.resume
        && tasks::find(named).is_none_or(|task| task.name() != of_run)
    {
        return Err(CliError::usage_with_help(
            format!("the run is one of {of_run}, and {named} was named"),
            "leave the model's name out: --resume takes all from the run; or name another --run-dir",
        ));
    }
    let in_file = file_layer.get("init_from").and_then(Value::as_str);
    let init_from = arguments.init_from.as_deref().or(in_file.map(Path::new));
    let init_from = init_from.map(pretrained::folder_of);
    let init_from = init_from.as_deref();
    let adopted = match init_from {
        Some(folder) if !arguments.resume => {
            let skip = init_skip(arguments, &file_layer);
            match pretrained::adopt_run(pretrained::described_by(folder), named.as_deref())? {
                Some(found) => Some(found),
                None => pretrained::adopt(folder, named.as_deref(), &skip)?,
            }
        }
        _ => None,
    };
    let (model, mut adopted) = match (adopted, named) {
        (Some((model, layer)), _) => (model, layer),
        (None, Some(model)) => (model, Table::new()),
        (None, None) => {
            return Err(
                init_from.map_or_else(|| without_model(arguments), pretrained::without_model)
            );
        }
    };
    let task = match &arguments.run_dir {
        Some(folder) if arguments.resume => task_of_run(&model, folder)?,
        _ => tasks::find(&model).ok_or_else(|| unknown_model(&model))?,
    };
    let mut table = task.preset();
    leave_out_schedule_numbers(&mut table, &file_layer);
    let flags = flags_layer(arguments, &model)?;
    let folder = init_from.unwrap_or(Path::new(""));
    let stated = adopted.clone();
    let given = flags.clone();
    pretrained::forget_tokenizer(&mut adopted, &[&file_layer, &flags], folder)?;
    merge(&mut table, adopted);
    for mut layer in [file_layer, flags] {
        optimizer::lift(&mut layer)?;
        optimizer::leave_out_others(&mut table, &layer);
        merge(&mut table, layer);
    }
    if init_from.is_some() && !arguments.resume {
        match stated.is_empty() {
            false => unshown::refuse_contradictions(task, &stated, &table, folder)?,
            true => unshown::require_heads(task, &given, &table)?,
        }
    }
    if !arguments.resume {
        forget_shards(&mut table, arguments.keys.has("data.name"));
    }
    require_average(&table)?;
    Ok((task, table))
}

/// Takes the numbers of a schedule out of `preset` where the file names a schedule without any, as older runs did whose
/// schedule had none.
fn leave_out_schedule_numbers(preset: &mut Table, file: &Table) {
    let section = file.get("training").and_then(Value::as_table);
    let has = |key| section.is_some_and(|section| section.contains_key(key));
    if !has("schedule") || has("schedule_numbers") {
        return;
    }
    if let Some(Value::Table(training)) = preset.get_mut("training") {
        training.remove("schedule_numbers");
    }
}

/// What is wrong with a key of the configuration of `task`, by the `--set` or the file that has it.
pub(super) fn fault(
    reason: &str,
    task: Option<&AnyTask>,
    set: &[String],
    file: Option<&Path>,
) -> CliError {
    let (what, help) = reason.split_once("; ").unwrap_or((reason, ""));
    let key = what.strip_prefix("unknown key `");
    let key = key.and_then(|key| key.strip_suffix('`')?.rsplit('.').next());
    let elsewhere = key.filter(|_| !help.starts_with("did you mean"));
    let elsewhere = elsewhere.zip(task).and_then(|(key, task)| meant(key, task));
    let is_without = help.is_empty() && elsewhere.is_none() && task.is_some_and(has_no_settings);
    let has_no_key = key.is_some() && is_without;
    let reason = match elsewhere {
        Some(nearest) => format!("{what}; did you mean `{nearest}`?"),
        None => reason.to_owned(),
    };
    let is_it = |assignment: &&String| {
        let mut keys = key_of(assignment).split('.').map(str::trim);
        keys.any(|key| what.contains(&format!("{key}`")))
    };
    // Of a key that is set twice, the last value counts.
    match (set.iter().rev().find(is_it), file) {
        (Some(assignment), _) if what.contains("expected a string") => {
            let (key, value) = assignment.split_once('=').unwrap_or((assignment, ""));
            let items = list_of_texts(value).filter(|_| !what.contains("invalid type: sequence"));
            let help = match items {
                Some(items) => {
                    format!("quotation marks make each item a text: --set '{key}={items}'")
                }
                None => format!("quotation marks make it a text: --set '{key}=\"{value}\"'"),
            };
            CliError::usage_with_help(format!("--set {assignment}: {reason}"), help)
        }
        (Some(assignment), _) if what.contains("expected a sequence") => {
            let (key, value) = assignment.split_once('=').unwrap_or((assignment, ""));
            let plain = format!("[{value}]");
            let items = match what.contains("invalid type: string") {
                true => format!("[\"{}\"]", value.trim_matches('"')),
                false if task.is_some_and(|task| takes_texts(task, key, &plain)) => {
                    list_of_texts(&plain).unwrap_or(plain)
                }
                false => plain,
            };
            CliError::usage_with_help(
                format!("--set {assignment}: {reason}"),
                format!("a list is in brackets: --set '{key}={items}'"),
            )
        }
        (Some(assignment), _) if has_no_key => {
            CliError::usage_with_help(format!("--set {assignment}: {reason}"), NO_SETTINGS)
        }
        (Some(assignment), _) => CliError::usage(format!("--set {assignment}: {reason}")),
        (None, Some(path)) => CliError::Config {
            path: path.to_path_buf(),
            reason,
        },
        (None, None) => CliError::usage(reason),
    }
}

/// The list in `value`, TOML, with each item as a text; `None` if it is no list.
fn list_of_texts(value: &str) -> Option<String> {
    let table = format!("list = {value}").parse::<Table>().ok()?;
    let items = table.get("list")?.as_array()?.iter();
    let items = items.map(|item| match item {
        Value::String(text) => format!("\"{text}\""),
        other => format!("\"{other}\""),
    });
    Some(format!("[{}]", items.collect::<Vec<_>>().join(", ")))
}

/// Whether the setting `key` of `task` is a list of texts, and `list` has other items.
fn takes_texts(task: &AnyTask, key: &str, list: &str) -> bool {
    let mut sections = Table::new();
    let refusal = match assign(&mut sections, &format!("{key}={list}")) {
        Ok(()) => task.configure(&sections).err(),
        Err(_) => None, // the key is refused with the rest
    };
    refusal.is_some_and(|error| error.to_string().contains("expected a string"))
}

/// The tensors of `--init-from` that are left out, by the flags or else by the file. What is no pattern there is refused
/// with the rest of the file.
fn init_skip(arguments: &TrainArguments, file: &Table) -> Patterns {
    if !arguments.init_skip.is_empty() {
        return Patterns::from(arguments.init_skip.clone());
    }
    let in_file = file.get("init_skip").cloned();
    in_file
        .and_then(|patterns| Patterns::deserialize(patterns).ok())
        .unwrap_or_default()
}

/// The model that a folder of images is taken for.
const OF_IMAGES: &str = "resnet18";

/// Residual nets that are models of other names with these numbers of blocks.
const OF_OTHER_BLOCKS: [(&str, &str, &str); 3] = [
    ("resnet34", "resnet18", "[3,4,6,3]"),
    ("resnet101", "resnet50", "[3,4,23,3]"),
    ("resnet152", "resnet50", "[3,8,36,3]"),
];

/// The model with the settings by which it is the one called `name`, if this program has it.
fn of_other_blocks(name: &str) -> Option<String> {
    let plain = name.to_lowercase().replace(['-', '_'], "");
    let mut nets = OF_OTHER_BLOCKS.iter();
    let (_, model, blocks) = nets.find(|(own, ..)| *own == plain)?;
    tasks::find(model)?;
    Some(format!("{model} --set '{model}.blocks={blocks}'"))
}

pub(super) fn unknown_model(name: &str) -> CliError {
    let tasks = tasks::tasks();
    let nearest = nearest_name(name, tasks.iter().map(AnyTask::name));
    let sizes = tasks
        .iter()
        .map(AnyTask::name)
        .filter(|it| it.starts_with(name));
    let sizes: Vec<String> = sizes.map(|it| format!("`{it}`")).collect();
    let shown = legible(name);
    let hint = match (of_other_blocks(name), nearest) {
        _ if is_run(Path::new(name)) => format!(
            "{shown} is the folder of a run: `{}` continues it. ",
            resume_of(shown.as_ref())
        ),
        _ if tasks::find(OF_IMAGES).is_some() && Path::new(name).is_dir() => format!(
            "{shown} is a folder: `{} train {OF_IMAGES} --data {}` trains a model on the images in it. ",
            invocation::name(),
            word(name)
        ),
        (Some(meant), _) => format!("it is another model with other blocks: `{meant}`. "),
        _ if sizes.len() > 1 && !name.is_empty() => {
            format!("did you mean {}? ", sizes.join(" or "))
        }
        (None, Some(name)) => format!("did you mean `{name}`? "),
        (None, None) => String::new(),
    };
    CliError::UnknownModel { name: shown, hint }
}

pub(crate) fn read_table(path: &Path) -> Result<Table, CliError> {
    let refuse = |reason: String| CliError::Config {
        path: path.to_path_buf(),
        reason,
    };
    let text = std::fs::read_to_string(path).map_err(|error| refuse(error.to_string()))?;
    text.parse::<Table>()
        .map_err(|error| refuse(configuration_fault(&error, &text)))
}

/// Values of `upper` replace those of `lower`; tables are merged key by key.
pub(super) fn merge(lower: &mut Table, upper: Table) {
    for (key, value) in upper {
        match (lower.get_mut(&key), value) {
            (Some(Value::Table(below)), Value::Table(above)) => merge(below, above),
            (_, value) => drop(lower.insert(key, value)),
        }
    }
}

/// Forgets which files of tokens another run has read, where other data are named. A resumed run remembers its own.
pub(super) fn forget_shards(table: &mut Table, others_named: bool) {
    if !others_named {
        return;
    }
    for (section, key) in [("text", "shards"), ("data", "reason")] {
        if let Some(Value::Table(section)) = table.get_mut(section) {
            section.remove(key);
        }
    }
}

/// What is said of a moving average wants one.
fn require_average(table: &Table) -> Result<(), CliError> {
    let ema = table.get("training").and_then(|it| it.get("ema"));
    let ema = ema.and_then(Value::as_table);
    match ema.is_some_and(|ema| !ema.contains_key("decay")) {
        true => Err(CliError::usage_with_help(
            "--ema-sharded and --ema-validate are about a moving average of the parameters, and there is none",
            "add --ema, as in --ema 0.999",
        )),
        false => Ok(()),
    }
}
