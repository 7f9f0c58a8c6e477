//! Sizes that the `config.json` of a folder states, and that its weights show.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use burn::store::burn_pack::Tensor as PackedTensor;
use serde_json::Value;

use super::fit::WeightsMismatch;
use super::folder::{self, PRETRAINED_CONFIG};
use super::layout::StateDictLayout;

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
}

impl StatedSize {
    /// The size at `key`, a JSON pointer as in `/depths/0`: a number, or a list or object with as many entries.
    pub const fn new(key: &'static str, shown_by: ShownBy) -> Self {
        Self { key, shown_by }
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
                let end = format!(".{name}");
                let (found, shape) = shapes.iter().find(|(name, _)| name.ends_with(&end))?;
                let size = shape.get(*dimension)?;
                let found = found[1..].escape_debug();
                Some((*size, format!("{found} has shape {shape:?}")))
            }
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
    let shapes = tensors.iter().map(|(name, tensor)| {
        let name = layout.in_this_version(&format!(".{name}"));
        (name, tensor.shape.to_vec())
    });
    let shapes = shapes.collect();
    let contradictions = layout.sizes.iter().filter_map(|size| {
        let stated = size.stated(&config_json)?;
        let (shown, by) = size.shown_by.size(&shapes)?;
        let key = size.key[1..].replace('/', ".");
        let line = format!(
            "\n  {key} is {stated} in {PRETRAINED_CONFIG}, and {shown} in {weights} ({by})"
        );
        (stated != shown).then_some(line)
    });
    let contradictions = contradictions.collect::<String>();
    (!contradictions.is_empty()).then(|| {
        format!(
            "\n  {PRETRAINED_CONFIG} and {weights} contradict each other: copy or download both of the same model{contradictions}"
        )
    })
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};
    use burn::prelude::*;

    use super::*;
    use crate::config::parameter_groups::Patterns;
    use crate::error::TrainError;
    use crate::{load_state_dict_except, save_pretrained};

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
}
