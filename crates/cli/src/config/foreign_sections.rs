//! Keys that neither a run nor its task has.

use everburn_record::invocation;
use everburn_train::{AnyTask, nearest_name};
use toml::{Table, Value};

use super::RunConfig;
use crate::arguments::keys::{nearest_key, with_flags};
use crate::error::CliError;

/// At most this many settings of a task are listed.
const MOST_LISTED: usize = 24;

/// What is said of a task without settings.
pub(super) const NO_SETTINGS: &str =
    "the task has no settings: its data are named in its code, in `Task::data`";

impl RunConfig {
    /// Refuses what neither a run nor its task has.
    pub(super) fn refuse_foreign_sections(&self, task: &AnyTask) -> Result<(), CliError> {
        let (model, own) = (&self.model, task.sections());
        let mut foreign = self.sections.keys();
        let foreign = foreign.find(|name| !own.contains(&name.as_str()));
        match foreign.map(String::as_str) {
            None => Ok(()),
            Some("text" | "gpt") => Err(CliError::usage_with_help(
                format!("{model} does not read text"),
                "--tokenizer, --sample-every, [text] and [gpt] are for text models; --list shows \
                 which these are",
            )),
            Some("data") => {
                let listed = listed(task).map_or(String::new(), |keys| format!(" of {keys}"));
                let settings = match has_no_settings(task) {
                    true => NO_SETTINGS.to_owned(),
                    false => format!(
                        "its settings are in [{}], and --set {}.KEY=VALUE sets one{listed}",
                        own.join("], ["),
                        own.first().unwrap_or(&"")
                    ),
                };
                Err(CliError::usage_with_help(
                    format!("{model} has data of its own"),
                    format!(
                        "--data, --data-dir, --train-samples, --test-samples and [data] are not for it; {settings}"
                    ),
                ))
            }
            Some(other) => {
                let keys = self.sections.get(other).and_then(Value::as_table);
                let meant = match keys {
                    Some(keys) => meant_section(other, keys, task),
                    None => meant(other, task),
                };
                let help = match meant {
                    Some(nearest) => format!("did you mean `{nearest}`?"),
                    None => format!(
                        "{model} has [{}] besides [ranks], [training] and [parallel]",
                        own.join("], [")
                    ),
                };
                let listed = listed(task).map(|keys| {
                    format!(
                        "the settings of {model} are {keys}; `{} train --help` shows the flags of all others",
                        invocation::name()
                    )
                });
                let none = || has_no_settings(task).then(|| NO_SETTINGS.to_owned());
                Err(CliError::Usage {
                    help: listed.or_else(none),
                    message: with_flags(&format!("unknown key `{other}`; {help}")),
                })
            }
        }
    }
}

/// Whether a task has no settings: each of its sections refuses every key.
pub(super) fn has_no_settings(task: &AnyTask) -> bool {
    let refuses = |section: &str| {
        // No key is empty.
        let nameless = Table::from_iter([(String::new(), Value::Boolean(true))]);
        let sections = Table::from_iter([(section.to_owned(), Value::Table(nameless))]);
        task.configure(&sections).is_err()
    };
    task.settings().is_empty() && task.sections().into_iter().all(refuses)
}

/// The section or setting that `key` may be meant for: a setting of the task of that name first.
pub(super) fn meant(key: &str, task: &AnyTask) -> Option<String> {
    let settings = task.settings();
    if let Some(own) = settings.iter().find(|path| last(path) == key) {
        return Some(own.clone());
    }
    if let Some(section) = near_section(key, task) {
        return Some(section);
    }
    let near = nearest_name(key, settings.iter().map(|path| last(path)));
    let of_task = settings.iter().find(|path| Some(last(path)) == near);
    match (nearest_key(key), of_task) {
        (Some(of_run), Some(of_task)) => {
            let nearest = nearest_name(key, [last(&of_run), last(of_task)]);
            Some(match nearest == Some(last(&of_run)) {
                true => of_run,
                false => of_task.clone(),
            })
        }
        (of_run, of_task) => of_run.or(of_task.cloned()),
    }
}

/// The section that `name` with these keys may be meant for, or the setting of the task with the name of one of them.
fn meant_section(name: &str, keys: &Table, task: &AnyTask) -> Option<String> {
    let is_set = |path: &String| keys.contains_key(last(path));
    near_section(name, task).or_else(|| task.settings().into_iter().find(is_set))
}

/// The section of a run or of the task whose name is most like `name`.
fn near_section(name: &str, task: &AnyTask) -> Option<String> {
    let of_task = task.sections().into_iter();
    let sections = of_task.chain(["ranks", "training", "parallel"]);
    nearest_name(name, sections).map(str::to_owned)
}

/// The settings of a task, if it has any: all, or the first of many.
fn listed(task: &AnyTask) -> Option<String> {
    let keys = task.settings();
    let shown = keys.iter().take(MOST_LISTED).cloned();
    let shown = shown.collect::<Vec<_>>().join(", ");
    match keys.len().saturating_sub(MOST_LISTED) {
        0 => (!keys.is_empty()).then_some(shown),
        more => Some(format!("{shown} and {more} more")),
    }
}

/// The last part of a path.
fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::prelude::*;
    use everburn_train::{Loss, NoSettings, Task, TaskData, TaskError};

    use super::*;
    use crate::config::layers::fault;

    /// A task whose data are named in its code.
    struct Flowers;

    impl Task for Flowers {
        type Config = NoSettings;
        type Model = Linear;
        type Item = ();
        type Batch = Tensor<2>;

        fn model(&self, _: &NoSettings, device: &Device) -> Result<Linear, TaskError> {
            Ok(LinearConfig::new(1, 1).init(device))
        }

        fn data(&self, _: &mut NoSettings) -> Result<TaskData<(), Tensor<2>>, TaskError> {
            Err(TaskError::new("no data"))
        }

        fn loss(&self, _: &NoSettings, model: &Linear, batch: Tensor<2>) -> Loss {
            Loss::new(model.forward(batch).mean(), 1_usize)
        }
    }

    #[test]
    fn a_setting_of_a_task_without_settings_is_answered_with_where_its_data_are_named() {
        let task = AnyTask::new("flowers", Flowers);
        let config = |sections: &str| RunConfig {
            model: "flowers".to_owned(),
            sections: sections.parse().unwrap(),
            ..RunConfig::default()
        };
        let refused = |sections: &str| {
            let refused = config(sections).refuse_foreign_sections(&task);
            refused.unwrap_err()
        };
        let of_own = config("[flowers]\nsize = 3");
        of_own.refuse_foreign_sections(&task).unwrap();
        let of_own = task.configure(&of_own.sections).err().unwrap().to_string();
        let set = ["flowers.size=3".to_owned()];
        for error in [
            refused("[data]\nname = 'pics'"),
            refused("[flower]\nsize = 3"),
            fault(&of_own, Some(&task), &set, None),
        ] {
            let help = miette::Diagnostic::help(&error).unwrap().to_string();
            assert!(help.ends_with(NO_SETTINGS), "{error}; {help}");
            assert!(!help.contains("KEY=VALUE"), "{help}");
        }
    }

    #[test]
    fn a_task_that_has_settings_is_none_without() {
        let table = crate::tasks::find("table").unwrap();
        assert!(!has_no_settings(table));
    }
}
