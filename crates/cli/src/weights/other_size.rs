//! Weights of the same model in another size.

use std::path::Path;

use everburn_record::plain::word;
use everburn_record::{invocation, is_run};
use everburn_train::{RunDirectory, TrainError, WeightsMismatch};

use crate::config::RunConfig;
use crate::error::CliError;
use crate::tasks;
use crate::train::changed_settings;

/// The error of weights whose model has other sizes, or that lack tensors, with what can be done. `others` are the settings
/// that a run's weights do not have.
pub(super) fn with_sizes(
    error: CliError,
    config: &RunConfig,
    weights: &Path,
    others: impl FnOnce() -> Vec<String>,
) -> CliError {
    let CliError::Train(TrainError::Weights { mismatch, .. }) = &error else {
        return error;
    };
    let skip = match mismatch {
        WeightsMismatch::OtherSize { skip } => skip,
        WeightsMismatch::Missing { skip } => {
            return match without(skip, config, weights) {
                Some(without) => CliError::usage_with_help(error.to_string(), without),
                None => error,
            };
        }
        _ => return error,
    };
    let help = match others().as_slice() {
        [] => {
            let sizes = match has_sizes(config) {
                true => sizes_of(config),
                false => format!(
                    "{} has one size alone: name the model that the weights are of (`{} train --list` shows all)",
                    config.model,
                    invocation::name()
                ),
            };
            match without(skip, config, weights) {
                None => sizes,
                // Few tensors differ: most likely the model is this one.
                Some(without) if has_sizes(config) => {
                    format!("{without}. For another size, {sizes}")
                }
                Some(without) => format!("{sizes}; or {without}"),
            }
        }
        others => format!(
            "a run's weights come with its settings, and these are others: {}. Leave them as they were, or train the other \
             model without --init-from",
            others.join(", ")
        ),
    };
    CliError::usage_with_help(error.to_string(), help)
}

/// Whether the model has settings besides those of its data.
fn has_sizes(config: &RunConfig) -> bool {
    let task = tasks::find(&config.model);
    task.is_some_and(|task| match task.sections().as_slice() {
        [only] if *only == task.name() => config.sections.contains_key(*only),
        all => all.iter().any(|section| *section != "data"),
    })
}

/// Where the sizes of a model come from that has several.
fn sizes_of(config: &RunConfig) -> String {
    let files = config.task().map(|task| task.pretrained_files().is_ok());
    let folder = match files.unwrap_or(false) {
        true => "; or give the folder of transformers whose config.json says them",
        false => "",
    };
    format!(
        "--config FILE takes the sizes from a configuration, such as the config.toml of the run that the weights are from, and \
         --set sets one{}{folder}",
        keys_of_sizes(config).unwrap_or_default()
    )
}

/// The keys of the model's settings, as in ` of vit.width, vit.layers`.
fn keys_of_sizes(config: &RunConfig) -> Option<String> {
    let keys = tasks::find(&config.model)?.settings().into_iter();
    let is_of_data = |key: &str| key.starts_with("data.") || key.starts_with("text.");
    let keys: Vec<_> = keys.filter(|key| !is_of_data(key)).collect();
    (!keys.is_empty()).then(|| format!(" of {}", keys.join(", ")))
}

/// The command that leaves out the layers that differ, if these are few.
fn without(skip: &[String], config: &RunConfig, weights: &Path) -> Option<String> {
    if skip.is_empty() {
        return None;
    }
    let skip = skip.iter().map(|pattern| pattern.escape_debug());
    let skip: Vec<String> = skip
        .map(|it| format!("--init-skip {}", word(it.to_string())))
        .collect();
    Some(format!(
        "take what fits: `{} train {} --init-from {} {}` begins with new weights there",
        invocation::name(),
        config.model,
        word(weights),
        skip.join(" ")
    ))
}

/// The settings of the task that are others than in the run in `path`, if there is one: those of its model and data.
pub(super) fn settings_of_model(config: &RunConfig, path: &Path) -> Vec<String> {
    let run = is_run(path).then(|| RunDirectory::open(path));
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

    /// The help for weights of another size for `model`, of which `skip` leaves out the layers that differ.
    fn help(model: &str, skip: &[&str], others: &[&str]) -> String {
        let skip = skip.iter().map(ToString::to_string).collect();
        told(model, WeightsMismatch::OtherSize { skip }, others).unwrap()
    }

    fn told(model: &str, mismatch: WeightsMismatch, others: &[&str]) -> Option<String> {
        let error = CliError::Train(TrainError::Weights {
            path: "a.pt".into(),
            mismatch,
            problems: "shapes differ".to_owned(),
        });
        let config = RunConfig {
            model: model.to_owned(),
            ..RunConfig::default()
        };
        let others = || others.iter().map(ToString::to_string).collect();
        let error = with_sizes(error, &config, Path::new("a.pt"), others);
        assert!(error.to_string().contains("shapes differ"), "{error}");
        match error {
            CliError::Usage { help, .. } => help,
            _ => None,
        }
    }

    #[test]
    fn weights_of_another_size_are_told_with_what_sets_it() {
        let of_table = help("table", &[], &[]);
        let expected = "--config FILE takes the sizes";
        assert!(of_table.contains(expected), "{of_table}");
        assert!(!of_table.contains("config.json"), "{of_table}");
        let of_gpt = help("gpt2", &[], &[]);
        assert!(of_gpt.contains("whose config.json says them"), "{of_gpt}");
        let keys = of_gpt.split("--set sets one of ").nth(1).unwrap();
        assert!(keys.contains("gpt.width"), "{of_gpt}");
        let one = help("resnet18", &["layer1.0.conv1.*"], &[]);
        assert!(one.starts_with("take what fits: `"), "{one}");
        let skipped = "train resnet18 --init-from a.pt --init-skip 'layer1.0.conv1.*'` begins with new weights there. For";
        assert!(one.contains(skipped), "{one}");
        let of_run = help("table", &[], &["table.hidden = [3] (was [4])"]);
        let expected = "others: table.hidden = [3] (was [4]).";
        assert!(of_run.contains(expected), "{of_run}");
        let another = told("table", WeightsMismatch::OtherArchitecture, &[]);
        assert_eq!(another, None);
        let skip = vec!["layers.0.bias".to_owned()];
        let missing = told("mlp", WeightsMismatch::Missing { skip }, &[]).unwrap();
        let expected =
            "train mlp --init-from a.pt --init-skip layers.0.bias` begins with new weights there";
        assert!(missing.ends_with(expected), "{missing}");
    }

    #[test]
    fn a_model_of_one_size_leads_to_another_or_to_the_layers_to_leave_out() {
        let nothing_fits = help("mlp", &[], &[]);
        for no_flag in ["config.json", "--config", "--set", "--init-skip"] {
            assert!(!nothing_fits.contains(no_flag), "{nothing_fits}");
        }
        assert!(nothing_fits.contains("mlp has one size alone: name the model"));
        let some = help("mlp", &["layers.1.*", "layers.2.*"], &[]);
        let command =
            "train mlp --init-from a.pt --init-skip 'layers.1.*' --init-skip 'layers.2.*'` begins";
        assert!(some.contains(command), "{some}");
    }
}
