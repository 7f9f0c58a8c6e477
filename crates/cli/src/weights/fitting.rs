//! The setting or the model that weights fit, where they are not those of the configured model.

use std::collections::BTreeSet;
use std::path::Path;

use everburn_train::{AnyTask, TrainError, WeightsMismatch, state_dict_shapes};
use toml::{Table, Value};

use super::loaded;
use crate::arguments::keys::put;
use crate::config::RunConfig;
use crate::error::CliError;
use crate::tasks;

/// The setting of images on which the first layer of a residual net depends, and its values.
const STEM: &str = "data.stem";
const STEMS: [&str; 2] = ["large", "small"];

/// A setting with which a model may fit weights.
struct Setting {
    key: String,
    value: Value,
    flag: String,
}

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
    if has_wide_blocks(config, path) {
        return Some(
            "the convolutions in its blocks have widths that no setting gives: it is a wide_resnet or a resnext, which are not \
             supported"
                .to_owned(),
        );
    }
    let data = config.sections.get("data")?;
    if let Some(flags) = flags_that_fit(config, path) {
        return Some(format!("{flags} builds the model that the weights fit"));
    }
    let others = tasks::tasks()
        .iter()
        .filter(|task| task.name() != config.model && task.sections().contains(&"data"));
    others.map(AnyTask::name).find_map(|name| {
        let mut other = RunConfig {
            model: name.to_owned(),
            sections: Table::from_iter([("data".to_owned(), data.clone())]),
            ..config.clone()
        };
        // Of other kinds of images, say.
        if other.task().is_err() {
            other.sections.clear();
        }
        let flags = match fits(&other, path) {
            true => String::new(),
            false => format!(", with {}", flags_that_fit(&other, path)?),
        };
        Some(format!(
            "the weights fit {name}: name it in place of {}{flags}",
            config.model
        ))
    })
}

/// The flags with which the weights in `path` are those of the model: another stem, other blocks, or both.
fn flags_that_fit(config: &RunConfig, path: &Path) -> Option<String> {
    let stems = STEMS.map(|stem| Setting {
        key: STEM.to_owned(),
        value: stem.into(),
        flag: format!("--set {STEM}={stem}"),
    });
    let blocks = blocks_in(config, path);
    let single = stems.iter().chain(&blocks).map(|one| vec![one]);
    let both = blocks
        .iter()
        .flat_map(|own| stems.iter().map(move |stem| vec![own, stem]));
    let mut settings = single.chain(both);
    let fitting = settings.find(|settings| {
        let mut other = config.clone();
        let mut settings = settings.iter();
        settings.all(|it| put(&mut other.sections, &it.key, it.value.clone()).is_ok())
            && fits(&other, path)
    })?;
    let flags: Vec<&str> = fitting.iter().map(|setting| &*setting.flag).collect();
    Some(flags.join(" "))
}

/// The numbers of blocks that the weights in `path` have in the four stages of a residual net, as a setting of the model.
fn blocks_in(config: &RunConfig, path: &Path) -> Option<Setting> {
    let shapes = state_dict_shapes(path, &config.task().ok()?.layout()).ok()?;
    let blocks = [1, 2, 3, 4].map(|stage| {
        let stage = format!("layer{stage}");
        let numbers = shapes.keys().filter_map(|name| {
            let mut parts = name.split('.').skip_while(|part| *part != stage);
            parts.nth(1)?.parse::<usize>().ok()
        });
        numbers.collect::<BTreeSet<_>>().len() as i64
    });
    let task = tasks::find(&config.model)?;
    let section = task.sections().into_iter().find(|it| *it != "data")?;
    let key = format!("{section}.blocks");
    let flag = format!("--set '{key}={}'", format!("{blocks:?}").replace(' ', ""));
    let value = Value::from(blocks.to_vec());
    (!blocks.contains(&0)).then_some(Setting { key, value, flag })
}

/// Whether the weights in `path` are of a residual net whose blocks have inner convolutions of another width than a
/// quarter of what they yield, or convolutions in groups.
fn has_wide_blocks(config: &RunConfig, path: &Path) -> bool {
    let shapes = config.task().ok().and_then(|task| {
        let shapes = state_dict_shapes(path, &task.layout());
        shapes.ok()
    });
    let shapes = shapes.unwrap_or_default();
    let of = |name: &str| {
        let end = format!("layer1.0.{name}.weight");
        let mut all = shapes.iter();
        let (_, shape) = all.find(|(name, _)| name.ends_with(&end))?;
        <[usize; 4]>::try_from(shape.clone()).ok()
    };
    let blocks = (of("conv1"), of("conv2"), of("conv3"));
    let (Some([inner, ..]), Some([_, grouped, ..]), Some([outer, ..])) = blocks else {
        return false;
    };
    outer != 4 * inner || grouped != inner
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the first block of a file is taken for one of wide_resnet or resnext.
    fn is_wide(shapes: [[usize; 4]; 3]) -> bool {
        let (mut header, mut end) = (serde_json::Map::new(), 0);
        for (name, shape) in ["conv1", "conv2", "conv3"].iter().zip(shapes) {
            let begin = end;
            end += 4 * shape.iter().product::<usize>();
            header.insert(
                format!("module.layer1.0.{name}.weight"),
                serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}),
            );
        }
        let header = serde_json::Value::Object(header).to_string().into_bytes();
        let length = (header.len() as u64).to_le_bytes();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights.safetensors");
        std::fs::write(&path, [&length[..], &header, &vec![0; end]].concat()).unwrap();
        let config = RunConfig {
            model: "resnet50".to_owned(),
            ..RunConfig::default()
        };
        has_wide_blocks(&config, &path)
    }

    #[test]
    fn blocks_whose_widths_no_setting_gives_are_seen() {
        let narrow = [[8, 8, 1, 1], [8, 8, 3, 3], [32, 8, 1, 1]];
        assert!(!is_wide(narrow));
        let wide = [[16, 8, 1, 1], [16, 16, 3, 3], [32, 16, 1, 1]];
        assert!(is_wide(wide));
        let grouped = [[8, 8, 1, 1], [8, 2, 3, 3], [32, 8, 1, 1]];
        assert!(is_wide(grouped));
    }
}
