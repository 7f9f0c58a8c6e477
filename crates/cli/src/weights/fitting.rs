//! The setting or the model that weights fit, where they are not those of the configured model.

use std::path::Path;

use everburn_train::{AnyTask, TrainError, WeightsMismatch};
use toml::Table;

use super::loaded;
use crate::arguments::keys::put;
use crate::config::RunConfig;
use crate::error::CliError;
use crate::tasks;

/// The setting of images on which the first layer of a residual net depends, and its values.
const STEM: &str = "data.stem";
const STEMS: [&str; 2] = ["large", "small"];

/// What the weights in `path` fit, apart from a head, where loading them has failed with `error`. Models of the same data
/// are tried; none of their weights are drawn.
pub(super) fn help_to_fit(error: &CliError, config: &RunConfig, path: &Path) -> Option<String> {
    let CliError::Train(TrainError::Weights { mismatch, .. }) = error else {
        return None;
    };
    if matches!(
        mismatch,
        WeightsMismatch::OtherHead { .. } | WeightsMismatch::OtherConfig
    ) {
        return None;
    }
    let data = config.sections.get("data")?;
    if let Some(stem) = stem_that_fits(config, path) {
        return Some(format!(
            "--set {STEM}={stem} builds the model that the weights fit"
        ));
    }
    let others = tasks::tasks()
        .iter()
        .filter(|task| task.name() != config.model && task.sections().contains(&"data"));
    others.map(AnyTask::name).find_map(|name| {
        let other = RunConfig {
            model: name.to_owned(),
            sections: Table::from_iter([("data".to_owned(), data.clone())]),
            ..config.clone()
        };
        let stem = match fits(&other, path) {
            true => String::new(),
            false => format!(", with --set {STEM}={}", stem_that_fits(&other, path)?),
        };
        Some(format!(
            "the weights fit {name}: name it in place of {}{stem}",
            config.model
        ))
    })
}

/// The stem with which the weights in `path` are those of the model.
fn stem_that_fits(config: &RunConfig, path: &Path) -> Option<&'static str> {
    STEMS.into_iter().find(|stem| {
        let mut other = config.clone();
        put(&mut other.sections, STEM, (*stem).into()).is_ok() && fits(&other, path)
    })
}

fn fits(config: &RunConfig, path: &Path) -> bool {
    match loaded(config, path) {
        Ok(_) => true,
        Err(CliError::Train(TrainError::Weights { mismatch, .. })) => {
            matches!(mismatch, WeightsMismatch::OtherHead { .. })
        }
        // Not a model of these data.
        Err(_) => false,
    }
}
