use std::collections::BTreeMap;
use std::path::PathBuf;

use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_models::mlp::{Mlp, MlpConfig};
use everburn_tests::AssertContains;

use crate::checkpoint::tensor_file::{self, NamedTensor};
use crate::{
    Patterns, StateDictLayout, TrainError, WeightsMismatch, load_state_dict,
    load_state_dict_except, save_state_dict,
};

/// A file with the weights of a model of `config`.
struct Saved {
    folder: tempfile::TempDir,
    config: MlpConfig,
    /// What the file held at first.
    tensors: Vec<NamedTensor>,
}

impl Saved {
    fn new(config: &MlpConfig) -> Self {
        let mut saved = Self {
            folder: tempfile::tempdir().unwrap(),
            config: config.clone(),
            tensors: Vec::new(),
        };
        save_state_dict(&saved.model(), 0, &saved.path()).unwrap();
        let bytes = std::fs::read(saved.path()).unwrap();
        let tensors = tensor_file::read(&bytes).unwrap();
        let named = tensors
            .iter()
            .map(|view| (view.name.clone(), view.to_data()));
        saved.tensors = named.collect();
        saved
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("weights.safetensors")
    }

    fn model(&self) -> Mlp {
        self.config.init(&Device::flex())
    }

    /// The file with each of its first tensors as `change` leaves it.
    fn rewrite(&self, change: impl FnMut(NamedTensor) -> Option<NamedTensor>) {
        let changed = self.tensors.iter().cloned().filter_map(change);
        self.write(&changed.collect::<Vec<_>>());
    }

    fn write(&self, tensors: &[NamedTensor]) {
        let bytes = tensor_file::write(tensors, &BTreeMap::new()).unwrap();
        std::fs::write(self.path(), bytes).unwrap();
    }

    /// Why the file does not fit a model of `config`.
    fn refusal(&self, config: &MlpConfig) -> TrainError {
        load_state_dict(config.init(&Device::flex()), &self.path()).unwrap_err()
    }
}

#[test]
fn a_head_for_other_classes_gets_a_hint_and_another_model_does_not() {
    let config = MlpConfig::new().with_inputs(6).with_hidden(vec![5, 4]);
    let saved = Saved::new(&config);
    let head = saved.refusal(&config.clone().with_classes(7)).to_string();
    head.assert_contains(["`init_skip = 'layers.2.*'` begins with new weights there"]);
    for other in [
        config.clone().with_hidden(vec![5, 3]),
        config.with_hidden(vec![5]),
    ] {
        let error = saved.refusal(&other).to_string();
        assert!(!error.contains("init_skip"), "{error}");
    }
}

#[test]
fn few_tensors_less_or_more_are_no_other_model() {
    let config = MlpConfig::new().with_hidden(vec![5; 20]);
    let saved = Saved::new(&config);
    let mut named = saved.tensors.clone();
    let removed = named.pop().unwrap();
    saved.write(&named);
    saved.refusal(&config).to_string().assert_contains([
        "the file lacks 1 of the model's 42 tensors",
        &format!("{} is not in the file", removed.0),
    ]);
    named.extend([removed.clone(), ("extra".to_string(), removed.1)]);
    saved.write(&named);
    let more = saved.refusal(&config).to_string();
    more.assert_contains(["the file has 1 more: `init_skip = 'extra'` leaves out"]);
}

#[test]
fn a_layer_that_is_missing_is_named_by_a_pattern_and_a_part_of_one_by_its_name() {
    let config = MlpConfig::new().with_inputs(6).with_hidden(vec![5, 4]);
    let saved = Saved::new(&config);
    let without = |left_out: fn(&str) -> bool| {
        saved.rewrite(|tensor| (!left_out(&tensor.0)).then_some(tensor));
        saved.refusal(&config).to_string()
    };
    let head = without(|name| name.starts_with("layers.2."));
    head.assert_contains(["`init_skip = 'layers.2.*'` begins"]);
    let bias = without(|name| name == "layers.0.bias");
    bias.assert_contains(["`init_skip = 'layers.0.bias'` begins"]);
    let layers = without(|name| !name.starts_with("layers.0."));
    assert!(!layers.contains("init_skip"), "{layers}");
}

#[test]
fn layers_under_other_names_are_listed_with_those_of_the_model() {
    let config = MlpConfig::new().with_inputs(6).with_hidden(vec![5, 4]);
    let saved = Saved::new(&config);
    let renamed = |saved: &Saved, head: &'static str| {
        saved.rewrite(|(name, data)| {
            let numbers = [
                ("layers.0", "net.0"),
                ("layers.1", "net.2"),
                ("layers.2", head),
            ];
            let other = |name: String, (ours, theirs): &(&str, &str)| name.replace(ours, theirs);
            Some((numbers.iter().fold(name, other), data))
        });
    };
    renamed(&saved, "fc");
    let text = saved.refusal(&config).to_string();
    text.assert_contains([
        "Rename them in Python, with names = {\"net.0\": \"layers.0\", \"net.2\": \"layers.1\", \"fc\": \"layers.2\"}: {names",
        "fc.weight has shape [10, 4] in the file",
        "layers.2.bias is not in the file",
    ]);
    assert!(!text.contains(" more"), "{text}");
    // A prefix of all names is part of them in the file.
    let saved = Saved::new(&config);
    renamed(&saved, "net.4");
    let text = saved.refusal(&config).to_string();
    text.assert_contains(["\"net.4\": \"layers.2\"}"]);
    // Which of two layers of the same shapes is which is not known.
    let config = config.with_hidden(vec![6, 6]);
    let saved = Saved::new(&config);
    renamed(&saved, "fc");
    let text = saved.refusal(&config).to_string();
    assert!(!text.contains("Rename"), "{text}");
}

#[test]
fn what_does_not_fit_is_told_in_few_lines_and_what_it_seems_to_be_first() {
    let config = MlpConfig::new()
        .with_inputs(6)
        .with_hidden(vec![5; 20])
        .with_classes(3);
    let saved = Saved::new(&config);
    let refusal = |config: MlpConfig| {
        let text = saved.refusal(&config).to_string();
        assert!(text.lines().count() <= 12, "{text}");
        text
    };
    let size = refusal(config.clone().with_hidden(vec![7; 20]));
    size.assert_contains([
        "a model of another size (1 of 42 tensors fit)",
        "layers.0.weight has shape [5, 6] in the file",
        "and 33 more",
    ]);
    let deeper = refusal(config.clone().with_hidden(vec![5; 25]));
    deeper.assert_contains(["a model with other layers"]);
    // Whether there is such a file, or a flag, is not known here.
    assert!(!deeper.contains("config.json"), "{deeper}");

    // Most names with a prefix, and a head of another name.
    let named = |rename: &dyn Fn(&str) -> String| {
        saved.rewrite(|(name, data)| Some((rename(&name), data)));
    };
    let renamed = |to: &'static str| {
        named(&|name| match name {
            "layers.0.bias" => to.to_owned(),
            name => name.to_owned(),
        });
    };
    renamed("layers.0.other");
    let size = refusal(config.clone().with_hidden(vec![7; 20]).with_classes(4));
    size.assert_contains(["41 of the file's 42 tensors have names of the model, and other shapes"]);
    renamed("base_model.model.layers.0.lora_A.default.weight");
    let wrapped = refusal(config.clone());
    wrapped.assert_contains(["a model that PEFT wraps"]);
    named(&|name| match name.strip_prefix("layers.20.") {
        Some(end) => format!("head.{end}"),
        None => format!("backbone.{name}"),
    });
    let prefixed = refusal(config.clone());
    prefixed.assert_contains([
        "40 of the model's 42 tensors have `backbone.` before their names",
        "head.bias has shape [3] in the file",
        "layers.20.bias is not in the file",
    ]);
    prefixed.assert_contains([
        "(a training with `init_skip = 'head.*'` `init_skip = 'layers.20.*'` needs no other file",
    ]);
    assert_eq!(prefixed.lines().count(), 7, "{prefixed}");
    let skip = Patterns::from(vec!["head.*".to_owned(), "layers.20.*".to_owned()]);
    let layout = StateDictLayout::default();
    load_state_dict_except(saved.model(), &saved.path(), &skip, &layout).unwrap();
    named(&|name| name.replace('.', "\u{1b}"));
    let renamed = refusal(config.clone());
    renamed.assert_contains([
        "the shapes of 42 of the model's 42 tensors: it seems to be the model under other names",
        "layers\\u{1b}0",
    ]);
    assert!(!renamed.contains('\u{1b}'), "{renamed}");
    let another = refusal(config.with_hidden(vec![7; 20]));
    another.assert_contains(["of another architecture", "layers\\u{1b}0"]);
    assert!(!another.contains('\u{1b}'), "{another}");
}

#[test]
fn a_transposed_matrix_is_named_and_one_tensor_of_another_shape_is_no_model_of_another_size() {
    let saved = Saved::new(&MlpConfig::new().with_inputs(6).with_hidden(vec![5, 5]));
    // Of another shape, with zeros: numbers are not read before all shapes fit.
    let refused = |other: &str, shape: [usize; 2]| {
        saved.rewrite(|(name, data)| match name == other {
            true => Some((name, TensorData::zeros::<f32, _>(shape))),
            false => Some((name, data)),
        });
        match saved.refusal(&saved.config) {
            TrainError::Weights {
                mismatch, problems, ..
            } => (mismatch, problems),
            error => panic!("{error}"),
        }
    };
    let (mismatch, problems) = refused("layers.0.weight", [6, 5]);
    assert_eq!(mismatch, WeightsMismatch::Tensors);
    problems.assert_contains([
        "1 tensor is transposed in the file, and all others fit: save v.t() in place of v",
        "layers.0.weight has shape [6, 5] in the file and [5, 6] in the model: transposed, save v.t()",
    ]);
    let (mismatch, problems) = refused("layers.0.weight", [5, 7]);
    let skip = vec!["layers.0.*".to_owned()];
    assert_eq!(mismatch, WeightsMismatch::OtherSize { skip });
    problems.assert_contains(["5 of the model's 6 tensors fit, and 1 has another shape"]);
    for wrong in ["another size", "v.t()"] {
        assert!(!problems.contains(wrong), "{problems}");
    }
}

#[test]
fn layers_of_another_size_are_named_by_patterns_where_others_fit() {
    let config = MlpConfig::new()
        .with_inputs(6)
        .with_hidden(vec![5, 4, 3, 2])
        .with_classes(2);
    let saved = Saved::new(&config);
    let patterns =
        |hidden: &[usize]| match saved.refusal(&config.clone().with_hidden(hidden.to_vec())) {
            TrainError::Weights {
                mismatch: WeightsMismatch::OtherSize { skip },
                ..
            } => skip,
            error => panic!("{error}"),
        };
    let skip = patterns(&[5, 4, 7, 2]);
    assert_eq!(skip, ["layers.2.*", "layers.3.*"]);
    let other = config.clone().with_hidden(vec![5, 4, 7, 2]);
    let (other, layout) = (other.init(&Device::flex()), StateDictLayout::default());
    load_state_dict_except(other, &saved.path(), &skip.into(), &layout).unwrap();
    assert_eq!(
        patterns(&[5, 4, 3, 3, 2]),
        ["layers.3.*", "layers.4.*", "layers.5.*"]
    );
    // The bias of the head alone has the same shape.
    assert!(patterns(&[7, 8, 9, 8]).is_empty());
}

#[test]
fn a_head_beside_a_backbone_is_skipped_by_its_name_with_and_without_a_shared_prefix() {
    let config = MlpConfig::new().with_inputs(6).with_hidden(vec![5, 4]);
    let saved = Saved::new(&config);
    saved.rewrite(|(name, data)| {
        let name = match name.strip_prefix("layers.2.") {
            Some(end) => format!("model.head.{end}"),
            None => format!("model.backbone.{name}"),
        };
        Some((name, data))
    });
    let text = saved.refusal(&config).to_string();
    text.assert_contains([
        "(a training with `init_skip = 'head.*'` `init_skip = 'layers.2.*'` needs no other file",
    ]);
    let load = |head: &str| {
        let skip = Patterns::from(vec![head.to_owned(), "layers.2.*".to_owned()]);
        let layout = StateDictLayout::default();
        load_state_dict_except(saved.model(), &saved.path(), &skip, &layout)
    };
    load("head.*").unwrap();
    load("model.head.*").unwrap();
    let error = load("HEAD.*").unwrap_err().to_string();
    assert!(error.contains("did you mean"), "{error}");
}

#[test]
fn what_is_skipped_keeps_no_others_from_sharing_a_prefix() {
    let saved = Saved::new(&MlpConfig::new().with_hidden(vec![5]));
    let mut named = saved.tensors.clone();
    for (name, _) in &mut named {
        name.insert_str(0, "model.");
    }
    named.push(("criterion.weight".to_owned(), named[0].1.clone()));
    saved.write(&named);
    // Of transformers' files the layout knows the prefix, which those of others lack.
    let layout = StateDictLayout {
        prefix: "mlp.".to_owned(),
        ..StateDictLayout::default()
    };
    let load = |skip: &str| {
        let skip = Patterns::from(skip);
        load_state_dict_except(saved.model(), &saved.path(), &skip, &layout)
    };
    load("criterion.*").unwrap();
    let error = load("layers.1.*").unwrap_err().to_string();
    assert!(error.contains("criterion.weight"), "{error}");
    let whole = saved.refusal(&saved.config).to_string();
    whole.assert_contains([
        "tensors fit, with `model.` before their names, and the file has 1 more",
        "`init_skip = 'criterion.*'` leaves out what is no part of the model",
        "criterion.weight has shape",
    ]);
    assert!(!whole.contains("removeprefix"), "{whole}");
    let error = load("CRITERION.*").unwrap_err().to_string();
    assert!(error.contains("did you mean 'criterion.*'?"), "{error}");
}
