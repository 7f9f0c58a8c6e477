//! Weights of the same model in another size.

use std::path::Path;

use everburn_train::{RunDirectory, TrainError, WeightsMismatch};

use crate::config::RunConfig;
use crate::error::CliError;
use crate::train::changed_settings;

/// The error of weights whose model has other sizes, with what sets them: `others` are the settings that a run's weights do not have.
pub(super) fn with_sizes(error: CliError, others: impl FnOnce() -> Vec<String>) -> CliError {
    let CliError::Train(
        error @ TrainError::Weights {
            mismatch: WeightsMismatch::OtherSize,
            ..
        },
    ) = error
    else {
        return error;
    };
    let help = match others().as_slice() {
        [] => {
            "--config FILE takes the sizes from a configuration, such as the config.toml of the run that the weights are from"
                .to_owned()
        }
        others => format!(
            "a run's weights come with its settings, and these are others: {}. Leave them as they were, or train the other \
             model without --init-from",
            others.join(", ")
        ),
    };
    CliError::usage_with_help(error.to_string(), help)
}

/// The settings of the task that are others than in the run in `path`, if there is one: those of its model and data.
pub(super) fn settings_of_model(config: &RunConfig, path: &Path) -> Vec<String> {
    let run = path
        .join("config.toml")
        .is_file()
        .then(|| RunDirectory::open(path));
    let changed = run
        .and_then(Result::ok)
        .and_then(|run| changed_settings(&run, config).ok());
    let of_task = |change: &String| {
        let section = change.split(['.', ' ']).next().unwrap_or_default();
        config.sections.contains_key(section) && section != "data"
    };
    changed.into_iter().flatten().filter(of_task).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_another_size_are_told_with_what_sets_it() {
        let told = |mismatch: WeightsMismatch, others: &[&str]| {
            let error = CliError::Train(TrainError::Weights {
                path: "a.pt".into(),
                mismatch,
                problems: "shapes differ".to_owned(),
            });
            let error = with_sizes(error, || others.iter().map(ToString::to_string).collect());
            assert!(error.to_string().contains("shapes differ"), "{error}");
            match error {
                CliError::Usage { help, .. } => help,
                _ => None,
            }
        };
        let help = told(WeightsMismatch::OtherSize, &[]).unwrap();
        assert!(help.contains("--config FILE takes the sizes"), "{help}");
        let others = ["table.hidden = [3] (was [4])"];
        let help = told(WeightsMismatch::OtherSize, &others).unwrap();
        assert!(
            help.contains("others: table.hidden = [3] (was [4])."),
            "{help}"
        );
        assert_eq!(told(WeightsMismatch::OtherArchitecture, &[]), None);
    }
}
