//! What flags put into a configuration.

use std::path::{Path, PathBuf};

use serde::Serialize;
use toml::{Table, Value};

use super::layers::merge;
use crate::arguments::keys::{get, put};
use crate::arguments::{RankFlags, ScheduleFlag, TrainArguments};
use crate::devices;
use crate::error::CliError;
use crate::pretrained::folder_of;

/// The flags that were given, as a table of the same shape as the file. `model` is the model's name.
pub(super) fn flags_layer(arguments: &TrainArguments, model: &str) -> Result<Table, CliError> {
    let mut layer = arguments.keys.table.clone();
    set(&mut layer, "model", &model)?;
    // A resume keeps the run's.
    if let Some(weights) = arguments.init_from.as_deref().filter(|_| !arguments.resume) {
        set(&mut layer, "init_from", &first_weights(weights)?)?;
    }
    if !(arguments.init_skip.is_empty() || arguments.resume) {
        set(&mut layer, "init_skip", &arguments.init_skip)?;
    }
    add_schedules(&mut layer, &arguments.schedule)?;
    complete(&mut layer, &arguments.ranks)?;
    for assignment in &arguments.set {
        assign(&mut layer, assignment)?;
    }
    Ok(layer)
}

/// What `--init-from` names, as it is recorded.
pub(crate) fn first_weights(named: &Path) -> Result<PathBuf, CliError> {
    std::path::absolute(folder_of(named))
        .map_err(|error| CliError::usage(format!("--init-from: {error}")))
}

/// Adds the keys that follow from others in `layer` and from `flags`.
pub(super) fn complete(layer: &mut Table, flags: &RankFlags) -> Result<(), CliError> {
    if let Some(gpus) = flags.gpus {
        set(layer, "ranks.devices", &devices::first_gpus(gpus))?;
    }
    // One rank per device, unless --ranks says otherwise or the devices are one model's.
    let devices = get(layer, "ranks.devices").and_then(Value::as_array);
    let is_one_models =
        get(layer, "ranks.strategy").and_then(Value::as_str) == Some("model-parallel");
    let ranks = devices.map(|devices| if is_one_models { 1 } else { devices.len() });
    if let (Some(ranks), None) = (ranks, get(layer, "ranks.ranks")) {
        set(layer, "ranks.ranks", &ranks)?;
    }
    // A run that continues without shards has nothing to keep elsewhere.
    let is_whole = get(layer, "training.ddp.shard").and_then(Value::as_str) == Some("none");
    if is_whole && get(layer, "training.offload_optimizer").is_none() {
        set(layer, "training.offload_optimizer", &false)?;
    }
    Ok(())
}

/// The values of `--schedule`, the old name of two flags.
fn add_schedules(layer: &mut Table, old: &[ScheduleFlag]) -> Result<(), CliError> {
    for flag in old {
        let (name, path, value) = match *flag {
            ScheduleFlag::LearningRate(schedule) => (
                "--lr-schedule",
                "training.schedule",
                Value::try_from(schedule),
            ),
            ScheduleFlag::Pipeline(kind) => (
                "--pipeline-schedule",
                "parallel.schedule",
                Value::try_from(kind),
            ),
        };
        if get(layer, path).is_some() {
            return Err(CliError::usage_with_help(
                format!("{name} is given twice"),
                "--schedule is the old name of --lr-schedule and --pipeline-schedule",
            ));
        }
        let value = value.map_err(|error| CliError::usage(error.to_string()))?;
        put(layer, path, value).map_err(CliError::usage)?;
    }
    Ok(())
}

/// The key of `--set KEY=VALUE`.
pub(crate) fn key_of(assignment: &str) -> &str {
    assignment.split('=').next().unwrap_or_default().trim()
}

/// Does what `--set KEY=VALUE` says.
pub(super) fn assign(layer: &mut Table, assignment: &str) -> Result<(), CliError> {
    let (key, value) = assignment.split_once('=').ok_or_else(|| {
        CliError::usage_with_help(
            format!("--set {assignment}: there is no value"),
            "a key, dots between its parts, an equals sign and a value: --set training.epochs=5",
        )
    })?;
    let text = value.trim();
    // A word without quotation marks is a text.
    let parsed = format!("value = {text}").parse::<Table>().ok();
    let parsed = parsed.filter(|table| table.len() == 1);
    let value = parsed.and_then(|mut table| table.remove("value"));
    let mut value = value.unwrap_or_else(|| Value::String(text.to_owned()));
    // A table adds to what was set before.
    if let (Some(Value::Table(before)), Value::Table(more)) = (get(layer, key.trim()), &value) {
        let mut both = before.clone();
        merge(&mut both, more.clone());
        value = Value::Table(both);
    }
    put(layer, key.trim(), value).map_err(CliError::usage)
}

fn set<T: Serialize>(layer: &mut Table, path: &str, value: &T) -> Result<(), CliError> {
    let value =
        Value::try_from(value).map_err(|error| CliError::usage(format!("{path}: {error}")))?;
    put(layer, path, value).map_err(CliError::usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_adds_to_what_was_set_before() {
        let mut layer = Table::new();
        for set in [
            "llama.heads=4",
            "llama={heads=2, width=8}",
            "llama.width=16",
        ] {
            assign(&mut layer, set).unwrap();
        }
        assert_eq!(layer, "llama = { heads = 2, width = 16 }".parse().unwrap());
        assign(&mut layer, "llama={layers=1}").unwrap();
        let all = "llama = { heads = 2, layers = 1, width = 16 }";
        assert_eq!(layer, all.parse().unwrap());
    }
}
