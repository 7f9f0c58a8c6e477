//! Settings of a model that the shapes of its weights do not show: its number of heads, say.

use std::collections::BTreeMap;
use std::path::Path;

use everburn_train::AnyTask;
use toml::Table;

use crate::arguments::keys::get;
use crate::error::CliError;
use crate::legible;

/// Refuses a setting of `table` that contradicts the model of `folder`, whose settings are `stated`, where the weights fit
/// both.
pub(super) fn refuse_contradictions(
    task: &AnyTask,
    stated: &Table,
    table: &Table,
    folder: &Path,
) -> Result<(), CliError> {
    let values = |sections: &Table| -> BTreeMap<String, String> {
        // What cannot be configured is refused with the rest of the configuration.
        let configured = task.configure(sections);
        let unshown = configured.map_or_else(|_| Vec::new(), |task| task.layout().unshown);
        // New images may have others; an import refuses these itself.
        let of_model = |(key, _): &(String, String)| !key.starts_with("data.");
        unshown.into_iter().filter(of_model).collect()
    };
    let given = values(table);
    let differs = |(key, value): &(String, String)| given.get(key).is_some_and(|it| it != value);
    match values(stated).into_iter().find(differs) {
        None => Ok(()),
        Some((key, value)) => Err(CliError::usage_with_help(
            format!(
                "{key} is {value} in the model of {}, and {} was set: the weights fit both, and the results would be wrong",
                legible(folder.display()),
                given[&key]
            ),
            format!("leave {key} out: the settings of a model come with its weights"),
        )),
    }
}

/// Refuses to take the number of heads of a file of weights from the defaults where its width was set: no shape shows it.
/// `flags` are the settings that were given as flags, and `table` all of them.
pub(super) fn require_heads(task: &AnyTask, flags: &Table, table: &Table) -> Result<(), CliError> {
    let Ok(default) = task.configure(&Table::new()) else {
        return Ok(());
    };
    let unshown = default.layout().unshown;
    let heads = unshown.iter().find_map(|(key, value)| {
        let section = key.strip_suffix(".heads")?;
        Some((key, value, format!("{section}.width")))
    });
    match heads {
        Some((heads, default, width))
            if get(flags, &width).is_some() && get(table, heads).is_none() =>
        {
            Err(CliError::usage_with_help(
                format!(
                    "{width} is set and {heads} is not: the weights fit any number of heads, and with another one than \
                     theirs the results are wrong"
                ),
                format!(
                    "add --set {heads}=N (the default of {} is {default}), or name the folder with the config.json of the model",
                    task.name()
                ),
            ))
        }
        _ => Ok(()),
    }
}
