//! Sizes that the `config.json` of a folder states, and that its weights show.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use burn::store::burn_pack::Tensor as PackedTensor;
use serde_json::Value;

use super::file;
use super::fit::WeightsMismatch;
use super::folder::{self, PRETRAINED_CONFIG};
use super::layout::StateDictLayout;
use crate::error::TrainError;

/// A size that a `config.json` states, and where the weights show it: to name both where they contradict each other.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{ShownBy, StatedSize};
///
/// let width = StatedSize::new("/hidden_size", ShownBy::Dimension("cls_token", 2));
/// let layers = StatedSize::new("/num_hidden_layers", ShownBy::Parts("encoder.layer"));
/// assert_ne!(width, layers);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatedSize {
    key: &'static str,
    shown_by: ShownBy,
}

/// What of the weights shows a size. Names are those of a [`StateDictLayout`]'s file, or their last parts.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::ShownBy;
///
/// assert_ne!(ShownBy::Dimension("wte.weight", 0), ShownBy::Dimension("wte.weight", 1));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShownBy {
    /// The size of the tensor of this name in this dimension.
    Dimension(&'static str, usize),
    /// How many parts of this name there are: `h` for `h.0` and `h.1`.
    Parts(&'static str),
    /// As many rows of the tensor of this name as heads have, each of `head_dim`, or of `hidden_size` through
    /// `num_attention_heads`. Where the size is not stated, it is `num_attention_heads`.
    Heads(&'static str),
}

impl StatedSize {
    /// The size at `key`, a JSON pointer as in `/depths/0`: a number, or a list or object with as many entries.
    pub const fn new(key: &'static str, shown_by: ShownBy) -> Self {
        Self { key, shown_by }
    }

    /// What contradicts the `config.json` in tensors of these names and shapes, each with a dot before it, of the file `weights`.
    fn contradiction(
        &self,
        config_json: &Value,
        shapes: &BTreeMap<String, Vec<usize>>,
        weights: &str,
    ) -> Option<String> {
        let key = self.key[1..].replace('/', ".");
        if let ShownBy::Heads(name) = self.shown_by {
            let number = |key: &str| config_json[key].as_u64().and_then(|it| it.try_into().ok());
            let all: usize = number("num_attention_heads")?;
            let width = match number("head_dim") {
                Some(width) => width,
                None => number("hidden_size")?.checked_div(all)?,
            };
            let heads = self.stated(config_json).unwrap_or(all);
            let rows = heads.checked_mul(width)?;
            let (found, shape) = named(name, shapes)?;
            // Where the columns are others, that is what is wrong.
            if shape.get(1).copied() != number("hidden_size") {
                return None;
            }
            return (*shape.first()? != rows).then(|| {
                format!(
                    "\n  {key} is {heads} of {all} heads in {PRETRAINED_CONFIG}, {rows} rows of {name}, and in {weights} {found} has \
                     shape {shape:?}"
                )
            });
        }
        let stated = self.stated(config_json)?;
        let (shown, by) = self.shown_by.size(shapes)?;
        (stated != shown).then(|| {
            format!("\n  {key} is {stated} in {PRETRAINED_CONFIG}, and {shown} in {weights} ({by})")
        })
    }

    fn stated(&self, config_json: &Value) -> Option<usize> {
        match config_json.pointer(self.key)? {
            Value::Number(size) => size.as_u64()?.try_into().ok(),
            Value::Array(entries) => Some(entries.len()),
            Value::Object(entries) => Some(entries.len()),
            _ => None,
        }
    }
}

impl ShownBy {
    /// The size in tensors of these names, each with a dot before it, and what shows it.
    fn size(&self, shapes: &BTreeMap<String, Vec<usize>>) -> Option<(usize, String)> {
        match self {
            Self::Dimension(name, dimension) => {
                let (found, shape) = named(name, shapes)?;
                let size = shape.get(*dimension)?;
                Some((*size, format!("{found} has shape {shape:?}")))
            }
            // Two sizes show it.
            Self::Heads(_) => None,
            Self::Parts(name) => {
                let before = format!(".{name}.");
                let numbers = shapes.keys().filter_map(|name| {
                    let (_, rest) = name.split_once(&before)?;
                    rest.split('.').next()?.parse::<usize>().ok()
                });
                let numbers: BTreeSet<usize> = numbers.collect();
                let (first, last) = (numbers.first()?, numbers.last()?);
                Some((numbers.len(), format!("{name}.{first} to {name}.{last}")))
            }
        }
    }
}

/// The first tensor whose name ends so, as it is shown, and its shape.
fn named<'a>(
    name: &str,
    shapes: &'a BTreeMap<String, Vec<usize>>,
) -> Option<(String, &'a Vec<usize>)> {
    let end = format!(".{name}");
    let (found, shape) = shapes.iter().find(|(name, _)| name.ends_with(&end))?;
    Some((found[1..].escape_debug().to_string(), shape))
}

/// What a model of `folder` differs in from its weights, after the contradictions between its `config.json` and the
/// weights, if there are any.
pub(super) fn with_contradictions(
    (mismatch, problems): (WeightsMismatch, String),
    folder: &Path,
    layout: &StateDictLayout,
    tensors: &BTreeMap<String, PackedTensor>,
) -> (WeightsMismatch, String) {
    let Some(contradictions) = contradictions(folder, layout, tensors) else {
        return (mismatch, problems);
    };
    let mismatch = match mismatch {
        WeightsMismatch::OtherHead { .. } => mismatch,
        _ => WeightsMismatch::OtherConfig,
    };
    (mismatch, contradictions + &problems)
}

/// Where the `config.json` of `folder` and the tensors in its weights contradict each other, a line each.
fn contradictions(
    folder: &Path,
    layout: &StateDictLayout,
    tensors: &BTreeMap<String, PackedTensor>,
) -> Option<String> {
    let config_json = std::fs::read(folder.join(PRETRAINED_CONFIG)).ok()?;
    let config_json = serde_json::from_slice(&config_json).ok()?;
    let weights = folder::weights_of(folder)?;
    let weights = weights.file_name()?.to_str()?;
    let shapes = shapes_by_name(layout, tensors);
    let sizes = layout.sizes.iter();
    let contradictions =
        sizes.filter_map(|size| size.contradiction(&config_json, &shapes, weights));
    let contradictions = contradictions.collect::<String>();
    (!contradictions.is_empty()).then(|| {
        format!(
            "\n  {PRETRAINED_CONFIG} and {weights} contradict each other: copy or download both of the same model{contradictions}"
        )
    })
}

/// The shapes of the tensors of a file by their names, each with a dot before it.
fn shapes_by_name(
    layout: &StateDictLayout,
    tensors: &BTreeMap<String, PackedTensor>,
) -> BTreeMap<String, Vec<usize>> {
    let shapes = tensors.iter().map(|(name, tensor)| {
        let name = layout.in_this_version(&format!(".{name}"));
        (name, tensor.shape.to_vec())
    });
    shapes.collect()
}

/// The sizes of a model that the tensors at `path` show, of those in [`StateDictLayout::sizes`]: each by its key in a
/// `config.json`, a JSON pointer as in `/n_embd`. An empty list if the tensors are of another architecture. No tensor is read.
///
/// # Errors
/// [`TrainError::File`] if the file cannot be read.
pub fn shown_sizes(
    path: &Path,
    layout: &StateDictLayout,
) -> Result<Vec<(&'static str, usize)>, TrainError> {
    file::refuse_plain_folder(path)?;
    let shapes = shapes_by_name(layout, &folder::read(path)?);
    let mut found = Vec::new();
    for size in layout.sizes {
        match size.shown_by.size(&shapes) {
            Some((shown, _)) => found.push((size.key, shown)),
            None if matches!(size.shown_by, ShownBy::Dimension(..)) => return Ok(Vec::new()),
            None => {}
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::prelude::*;
    use everburn_tests::AssertContains;

    use super::*;
    use crate::config::parameter_groups::Patterns;
    use crate::{load_state_dict_except, save_pretrained, save_state_dict};

    const SIZES: &[StatedSize] = &[
        StatedSize::new("/inputs", ShownBy::Dimension("weight", 1)),
        StatedSize::new("/outputs", ShownBy::Dimension("bias", 0)),
        StatedSize::new("/layers", ShownBy::Parts("layers")),
    ];

    #[derive(Module, Debug)]
    struct Layers {
        layers: Vec<Linear>,
    }

    fn layers(count: usize, inputs: usize, device: &Device) -> Layers {
        let layers = (0..count).map(|_| LinearConfig::new(inputs, 2).init(device));
        let layers = layers.collect();
        Layers { layers }
    }

    #[test]
    fn a_config_that_contradicts_its_weights_is_named_with_both_values() {
        let layout = StateDictLayout {
            sizes: SIZES,
            ..StateDictLayout::default()
        };
        let here = tempfile::tempdir().unwrap();
        let device = Device::flex();
        let refused = |name: &str, config_json: &str| {
            let files = [(PRETRAINED_CONFIG.to_string(), config_json.into())];
            let folder = here.path().join(name);
            let model = layers(2, 3, &device);
            save_pretrained(&model, &layout, &files, &folder, u64::MAX).unwrap();
            let other = layers(3, 4, &device);
            let error = load_state_dict_except(other, &folder, &Patterns::default(), &layout);
            let error = error.err().unwrap();
            let text = error.to_string();
            match error {
                TrainError::Weights { mismatch, .. } => (mismatch, text),
                error => panic!("{error}"),
            }
        };
        let wrong = r#"{"inputs": 4, "outputs": ["a", "b"], "layers": 3}"#;
        let (mismatch, error) = refused("wrong", wrong);
        assert_eq!(mismatch, WeightsMismatch::OtherConfig);
        for expected in [
            "config.json and model.safetensors contradict each other",
            "inputs is 4 in config.json, and 3 in model.safetensors (layers.0.weight has shape [2, 3])",
            "layers is 3 in config.json, and 2 in model.safetensors (layers.0 to layers.1)",
            "layers.2.weight is not in the file",
        ] {
            assert!(error.contains(expected), "{expected}: {error}");
        }
        assert!(!error.contains("outputs is"), "{error}");
        let right = r#"{"inputs": 3, "outputs": {"0": "a", "1": "b"}, "layers": 2}"#;
        for (name, config_json) in [("right", right), ("silent", "{}"), ("none", "[")] {
            let (mismatch, error) = refused(name, config_json);
            assert_ne!(mismatch, WeightsMismatch::OtherConfig);
            assert!(!error.contains("contradict"), "{error}");
        }
    }

    #[test]
    fn sizes_are_shown_by_a_file_of_the_architecture_alone() {
        let layout = StateDictLayout {
            sizes: SIZES,
            ..StateDictLayout::default()
        };
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("weights.pt");
        let device = Device::flex();
        save_state_dict(&layers(2, 3, &device), 0, &path).unwrap();
        let expected = [("/inputs", 3), ("/outputs", 2), ("/layers", 2)];
        assert_eq!(shown_sizes(&path, &layout).unwrap(), expected);
        let without_bias = LinearConfig::new(3, 2).with_bias(false).init(&device);
        save_state_dict(&without_bias, 0, &path).unwrap();
        assert!(shown_sizes(&path, &layout).unwrap().is_empty());
    }

    #[test]
    fn heads_are_compared_by_the_rows_that_they_have() {
        let shapes = [
            ("q_proj.weight", vec![16, 16]),
            ("k_proj.weight", vec![8, 16]),
        ];
        let shapes = shapes.map(|(name, shape)| (format!(".layers.0.{name}"), shape));
        let shapes = BTreeMap::from(shapes);
        let told = |config_json: &str, key: &'static str, name: &'static str| {
            let config_json = serde_json::from_str(config_json).unwrap();
            let size = StatedSize::new(key, ShownBy::Heads(name));
            size.contradiction(&config_json, &shapes, "model.safetensors")
        };
        let of_keys =
            |config_json: &str| told(config_json, "/num_key_value_heads", "k_proj.weight");
        let right = r#"{"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2}"#;
        assert_eq!(of_keys(right), None);
        let wrong = of_keys(&right.replace("heads\": 2", "heads\": 4")).unwrap();
        let expected = "num_key_value_heads is 4 of 4 heads in config.json, 16 rows of k_proj.weight, and in \
                        model.safetensors layers.0.k_proj.weight has shape [8, 16]";
        assert!(wrong.contains(expected), "{wrong}");
        let wrong = of_keys(&right.replace("heads\": 4", "heads\": 8")).unwrap();
        wrong.assert_contains(["is 2 of 8 heads in config.json, 4 rows"]);
        // Without the key there are as many as heads.
        let silent = r#"{"hidden_size": 16, "num_attention_heads": 4, "head_dim": 8}"#;
        let wrong = of_keys(silent).unwrap();
        wrong.assert_contains(["num_key_value_heads is 4 of 4 heads"]);
        let of_all = told(silent, "/num_attention_heads", "q_proj.weight").unwrap();
        assert!(of_all.contains("32 rows of q_proj.weight"), "{of_all}");
        for odd in ["{}", r#"{"hidden_size": 16, "num_attention_heads": 0}"#] {
            assert_eq!(of_keys(odd), None);
        }
    }
}
