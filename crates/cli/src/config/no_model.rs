//! What to do where no model was named: the run directory or the data may say which is meant.

use std::path::Path;

use everburn_datasets::detect;
use everburn_record::plain::word;
use everburn_record::{Settings, invocation};
use toml::Value;

use super::layers::read_table;
use crate::arguments::TrainArguments;
use crate::error::CliError;
use crate::summary::resume_of;
use crate::{legible, tasks};

pub(super) fn without_model(arguments: &TrainArguments) -> CliError {
    let of_run = arguments.run_dir.as_deref().and_then(of_run);
    of_run
        .or_else(|| of_data(arguments.keys.get("data.name")?.as_str()?))
        .unwrap_or(CliError::NoModel)
}

/// The error where the run directory contains a run.
fn of_run(folder: &Path) -> Option<CliError> {
    let table = read_table(&folder.join(Settings::FILE)).ok()?;
    let model = legible(table.get("model").and_then(Value::as_str)?);
    let shown = legible(folder.display());
    let program = invocation::name();
    Some(CliError::usage_with_help(
        format!("no model was named, and {shown} contains a run of {model}"),
        format!(
            "--resume continues it: `{}`; `{program} train {model} --run-dir {}` begins a new run there, and moves the one that \
             is there aside",
            resume_of(shown.as_ref()),
            word(&shown)
        ),
    ))
}

/// The error where models of this program learn from the data.
fn of_data(data: &str) -> Option<CliError> {
    let kind = detect(data).ok()??;
    let learn = kind.tasks();
    let mut models = learn.split([',', ' ']);
    let model = models.find(|word| tasks::find(word).is_some())?;
    let data = legible(data);
    Some(CliError::usage_with_help(
        format!("no model was named; {data} is {kind}"),
        format!(
            "{learn}: name one, as in `{} train {model} --data {}`",
            invocation::name(),
            word(data)
        ),
    ))
}
