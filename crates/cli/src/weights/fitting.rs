//! The setting or the model that weights fit, where they are not those of the configured model.

use std::collections::BTreeSet;
use std::path::Path;

use everburn_record::plain::word;
use everburn_train::{AnyTask, TrainError, WeightsMismatch, state_dict_shapes};
use toml::{Table, Value};

use super::loaded;
use crate::arguments::keys::{get, put};
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

/// The flags with which the weights in `path` are those of the model: the sizes that they show, another stem, or both.
fn flags_that_fit(config: &RunConfig, path: &Path) -> Option<String> {
    let shown = shown_sizes(config, path).unwrap_or_default();
    let stems = STEMS.map(|stem| Some((STEM.to_owned(), Value::from(stem))));
    let fits_with = |settings: &[(String, Value)]| {
        let mut other = config.clone();
        let mut all = settings.iter();
        all.all(|(key, value)| put(&mut other.sections, key, value.clone()).is_ok())
            && fits(&other, path)
    };
    [None].into_iter().chain(stems).find_map(|stem| {
        let mut settings: Vec<_> = shown.iter().cloned().chain(stem).collect();
        if !fits_with(&settings) {
            return None;
        }
        // A default that is not written looks like a setting that differs.
        for setting in settings.clone() {
            let others: Vec<_> = settings
                .iter()
                .filter(|it| **it != setting)
                .cloned()
                .collect();
            if fits_with(&others) {
                settings = others;
            }
        }
        Some(settings.iter().map(as_flag).collect::<Vec<_>>().join(" "))
    })
}

fn as_flag((key, value): &(String, Value)) -> String {
    let value = match value {
        Value::String(text) => text.clone(),
        other => other.to_string().replace(' ', ""),
    };
    format!("--set {}", word(format!("{key}={value}")))
}

/// The settings of a residual net that the weights in `path` show otherwise: the numbers of blocks in its four stages, and the
/// channels of the first.
fn shown_sizes(config: &RunConfig, path: &Path) -> Option<Vec<(String, Value)>> {
    let configured = config.task().ok()?;
    let shapes = state_dict_shapes(path, &configured.layout()).ok()?;
    let blocks = [1, 2, 3, 4].map(|stage| {
        let stage = format!("layer{stage}");
        let numbers = shapes.keys().filter_map(|name| {
            let mut parts = name.split('.').skip_while(|part| *part != stage);
            parts.nth(1)?.parse::<usize>().ok()
        });
        numbers.collect::<BTreeSet<_>>().len() as i64
    });
    let mut first = shapes.iter();
    let (_, first) = first.find(|(name, _)| name.ends_with("layer1.0.conv1.weight"))?;
    let width = *first.first()? as i64;
    let own = configured.sections().ok()?;
    let task = tasks::find(&config.model)?;
    let section = task.sections().into_iter().find(|it| *it != "data")?;
    let shown = [
        ("blocks", Value::from(blocks.to_vec())),
        ("width", width.into()),
    ];
    let shown = shown.map(|(name, value)| (format!("{section}.{name}"), value));
    let differing = shown
        .into_iter()
        .filter(|(key, value)| get(&own, key) != Some(value));
    (!blocks.contains(&0)).then(|| differing.collect())
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
