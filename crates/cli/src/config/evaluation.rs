//! The configuration of an evaluation: the run's own, on the data and the ranks that its flags name.

use std::path::{Path, PathBuf};

use everburn_datasets::{DataChoice, is_url};
use everburn_record::invocation;
use everburn_record::plain::word;
use everburn_train::{OtherClasses, TaskError};
use serde::Deserialize;
use toml::{Table, Value};

use super::RunConfig;
use super::flags::{assign, complete};
use super::foreign_sections::NO_SETTINGS;
use super::layers::{fault, forget_shards, merge, unknown_model};
use crate::arguments::keys::get;
use crate::arguments::{Given, OfEvaluation, RankFlags, Strategy};
use crate::error::CliError;
use crate::tasks;

impl RunConfig {
    /// The configuration of an evaluation: the run's own, but data, settings of the task (`set`) and ranks as the flags
    /// say; and whether the data may be others than the run's.
    ///
    /// # Errors
    /// [`CliError`] with the flag that cannot be used.
    pub(crate) fn for_evaluation(
        self,
        keys: &Given<OfEvaluation>,
        set: &[String],
        ranks: &RankFlags,
    ) -> Result<(Self, bool), CliError> {
        let mut table =
            Table::try_from(&self).map_err(|error| CliError::usage(error.to_string()))?;
        table.remove("ranks");
        // What trained on many ranks may be measured on one.
        table.remove("parallel");
        // Only training images are changed.
        if let Some(Value::Table(data)) = table.get_mut("data") {
            data.remove("augment");
        }
        let mut flags = keys.table.clone();
        complete(&mut flags, ranks)?;
        let settings = self.settings_of_task(set)?;
        let names_data = |layer| get(layer, "data.name").is_some();
        forget_shards(&mut table, names_data(&flags) || names_data(&settings));
        let own_data = named_data(&table);
        merge(&mut table, flags);
        let before = table.clone();
        merge(&mut table, settings);
        // What a flag sets and what `--set` sets count alike.
        let other_data =
            named_data(&table) != own_data || beside_data(&table) != beside_data(&before);
        let config = Self::deserialize(Value::Table(table))
            .map_err(|error| CliError::usage(error.to_string()))?;
        config.validate_ranks()?;
        if config.ranks.strategy == Strategy::ModelParallel {
            return Err(CliError::usage_with_help(
                "--strategy model-parallel is for training: an evaluation has its model on one device",
                "leave it out; what was trained on several devices is evaluated on one as well",
            ));
        }
        if config.ranks.elastic.is_some() {
            return Err(CliError::usage_with_help(
                "--elastic is for training: an evaluation that loses a rank has no result",
                "leave it out, and evaluate again after a loss",
            ));
        }
        if !set.is_empty() {
            config.task().map_err(|error| match &error {
                CliError::Usage { help: None, .. } => {
                    fault(&error.to_string(), tasks::find(&config.model), set, None)
                }
                _ => error,
            })?;
        }
        Ok((config, other_data))
    }

    /// The error of data that cannot be tested, with what to do.
    pub(crate) fn help_to_test(&self, error: TaskError) -> TaskError {
        match error.other_classes().map(OtherClasses::help_of_test) {
            Some(help) => error.with_help(help),
            None => self.help_to_name_data(error),
        }
    }

    /// The error of data with which the run in `run` cannot be resumed, with what to do.
    pub(crate) fn help_to_resume(&self, error: TaskError, run: &Path) -> TaskError {
        let Some(OtherClasses { needed, head }) = error.other_classes() else {
            return self.help_to_name_data(error);
        };
        let data = ["data.name", "data.folder"];
        let data = data
            .iter()
            .find_map(|key| get(&self.sections, key)?.as_str());
        let anew = match (head, data) {
            (Some(head), Some(data)) => format!(
                ". A new run begins with the run's weights and a new head: `{} train {} --data {} --init-from {} \
                 --init-skip {}`",
                invocation::name(),
                self.model,
                word(data),
                word(run),
                word(head)
            ),
            _ => String::new(),
        };
        let help = format!("a resume needs {needed}{anew}");
        error.with_help(help)
    }

    /// The error of data that cannot be read, with the flag that names others where they are not there. What is wrong with data
    /// that are there, the error says itself.
    pub(crate) fn help_to_name_data(&self, error: TaskError) -> TaskError {
        if error.help().is_some() {
            return error;
        }
        let sections = tasks::find(&self.model).map(|task| task.sections());
        let help = match sections.as_deref() {
            Some([section, ..]) if !sections.iter().flatten().any(|it| *it == "data") => {
                let settings = self.sections.get(*section).and_then(Value::as_table);
                if settings.is_none_or(Table::is_empty) {
                    return error.with_help(NO_SETTINGS);
                }
                let key = self.key_named_in(section, &error.to_string());
                let key = key.unwrap_or("KEY");
                format!(
                    "--set {section}.{key}=VALUE names another value; relative paths in config.toml are relative to the \
                     folder in which the command runs"
                )
            }
            _ if !self.names_absent_data() => return error,
            _ => "--data takes the path of a file or folder, as in `--data /path/to/data`, or the name of a known set (`train \
                  --help` lists those); a relative path begins at the folder in which the command runs, and --data-dir names \
                  the folder of a known set"
                .to_owned(),
        };
        error.with_help(help)
    }

    /// Whether the data are a file or folder that is not there.
    fn names_absent_data(&self) -> bool {
        let named = |key| get(&self.sections, key).and_then(Value::as_str);
        let path = match named("data.name") {
            Some(name) => Some(name).filter(|name| name.parse::<DataChoice>().is_err()),
            None => named("data.folder"),
        };
        path.map(Path::new)
            .is_some_and(|path| !is_url(path) && !path.exists())
    }

    /// The setting of the task whose value an error speaks of.
    fn key_named_in(&self, section: &str, error: &str) -> Option<&str> {
        let settings = self.sections.get(section)?.as_table()?;
        // 3 is no part of 1234, nor of `image-3a.png`.
        let numbers = error.split(|c: char| !c.is_alphanumeric());
        let named = settings.iter().filter_map(|(key, value)| {
            let length = match value {
                Value::String(text) if is_named_in(error, text) => text.len(),
                Value::Integer(number) => {
                    let number = number.to_string();
                    numbers.clone().find(|word| *word == number)?.len()
                }
                _ => return None,
            };
            Some((length, key))
        });
        // Of `data` and `data/train`, the longer.
        let (_, longest) = named.max_by_key(|(length, _)| *length)?;
        Some(longest)
    }

    /// What `--set` says, of the task's own sections only.
    fn settings_of_task(&self, set: &[String]) -> Result<Table, CliError> {
        let mut settings = Table::new();
        if set.is_empty() {
            return Ok(settings);
        }
        let task = tasks::find(&self.model).ok_or_else(|| unknown_model(&self.model))?;
        for assignment in set {
            assign(&mut settings, assignment)?;
            let is_foreign = |name: &&String| !task.sections().contains(&name.as_str());
            if let Some(section) = settings.keys().find(is_foreign) {
                return Err(CliError::usage_with_help(
                    format!(
                        "--set {assignment}: [{section}] is no section of the task {}",
                        self.model
                    ),
                    format!(
                        "an evaluation takes settings of [{}], such as the folder of the data; ranks and devices have flags",
                        task.sections().join("], [")
                    ),
                ));
            }
        }
        Ok(settings)
    }
}

/// Whether an error names the text of a setting: as its first words or after a quotation mark, as paths are named, or anywhere
/// if the text itself looks like a path. A word such as `none` may be in any sentence.
fn is_named_in(error: &str, text: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    let is_path = text.contains(['/', '.']);
    let text = text.trim_end_matches('/');
    let mut found = error.match_indices(text);
    !text.is_empty()
        && found.any(|(start, _)| {
            let before = error[..start].chars().next_back();
            let after = error[start + text.len()..].chars().next();
            let begins = match before {
                None | Some('`' | '\'' | '"') => true,
                Some(other) => is_path && !is_part(other),
            };
            begins && !after.is_some_and(is_part)
        })
}

/// A configuration without its data: settings by which a task has others.
fn beside_data(config: &Table) -> Table {
    let others = config.iter().filter(|(section, _)| *section != "data");
    others
        .map(|(section, values)| (section.clone(), values.clone()))
        .collect()
}

/// The data that a configuration names, paths as they are on the disk.
fn named_data(config: &Table) -> Vec<PathBuf> {
    let named = ["data.name", "data.folder"].map(|key| get(config, key).and_then(Value::as_str));
    let named = named.into_iter().flatten().map(|name| {
        let found = Path::new(name).canonicalize();
        found.unwrap_or_else(|_| name.into())
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_for_data_is_explained_where_there_are_none_and_not_of_data_with_a_fault() {
        let is_explained = |name: &str| {
            let config = RunConfig {
                sections: format!("[data]\nname = '{name}'").parse().unwrap(),
                ..RunConfig::default()
            };
            let error = config.help_to_name_data(TaskError::new("it is cut off"));
            error.help().is_some()
        };
        assert!(is_explained("nowhere/at/all"));
        for name in [
            env!("CARGO_MANIFEST_DIR"),
            "mnist",
            "https://host.org/a.tar",
        ] {
            assert!(!is_explained(name), "{name}");
        }
    }

    #[test]
    fn a_setting_is_named_by_its_value_and_a_number_by_no_part_of_another() {
        let config = RunConfig {
            sections: "[flowers]\nfolder = 'data'\nlist = 'data/train'\nwidth = 3"
                .parse()
                .unwrap(),
            ..RunConfig::default()
        };
        let key = |error: &str| config.key_named_in("flowers", error);
        assert_eq!(key("data is empty"), Some("folder"));
        assert_eq!(key("data/train is empty"), Some("list"));
        assert_eq!(key("3 channels, and the images have 1"), Some("width"));
        assert_eq!(key("image-1234.png has 30 rows"), None);
    }

    #[test]
    fn a_word_of_an_error_that_is_a_setting_too_is_not_what_the_error_is_about() {
        let config = RunConfig {
            sections:
                "[shapes]\naugment = 'none'\nfolder = 'd3'\nlist = 'lists/a.txt'\nmore = '../pics/'"
                    .parse()
                    .unwrap(),
            ..RunConfig::default()
        };
        let key = |error: &str| config.key_named_in("shapes", error);
        let other_class = "d3/test: `c` is none of the classes a, b";
        assert_eq!(key(other_class), Some("folder"));
        assert_eq!(key("cannot read `d3/test`: denied"), Some("folder"));
        assert_eq!(key("`none` is no change of images"), Some("augment"));
        assert_eq!(key("../pics/a: it has no folders"), Some("more"));
        assert_eq!(key("line 3 of lists/a.txt is empty"), Some("list"));
        for other in ["d32/test is empty", "there is none", "nonesuch is empty"] {
            assert_eq!(key(other), None, "{other}");
        }
    }
}
