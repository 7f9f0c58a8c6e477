use std::collections::BTreeMap;

use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_models::mlp::MlpConfig;
use everburn_tests::AssertContains;

use crate::checkpoint::tensor_file;
use crate::{
    Patterns, StateDictLayout, TrainError, WeightsMismatch, load_state_dict,
    load_state_dict_except, save_state_dict,
};

#[test]
fn a_head_for_other_classes_gets_a_hint_and_another_model_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let device = Device::flex();
    let config = MlpConfig::new().with_inputs(6).with_hidden(vec![5, 4]);
    save_state_dict(&config.init(&device), 0, &path).unwrap();
    let refused = |config: MlpConfig| {
        let error = load_state_dict(config.init(&device), &path).unwrap_err();
        error.to_string()
    };
    let hint = "`init_skip = 'layers.2.*'` begins with new weights there";
    let head = refused(config.clone().with_classes(7));
    assert!(head.contains(hint), "{head}");
    for other in [
        config.clone().with_hidden(vec![5, 3]),
        config.with_hidden(vec![5]),
    ] {
        let error = refused(other);
        assert!(!error.contains("init_skip"), "{error}");
    }
}

#[test]
fn few_tensors_less_or_more_are_no_other_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let device = Device::flex();
    let config = MlpConfig::new().with_hidden(vec![5; 20]);
    save_state_dict(&config.init(&device), 0, &path).unwrap();
    let told = |config: MlpConfig| {
        let error = load_state_dict(config.init(&device), &path).unwrap_err();
        error.to_string()
    };
    let bytes = std::fs::read(&path).unwrap();
    let tensors = tensor_file::read(&bytes).unwrap();
    let named = tensors
        .iter()
        .map(|view| (view.name.clone(), view.to_data()));
    let mut named = named.collect::<Vec<_>>();
    let write = |named: &[tensor_file::NamedTensor]| {
        let bytes = tensor_file::write(named, &BTreeMap::new()).unwrap();
        std::fs::write(&path, bytes).unwrap();
    };
    let removed = named.pop().unwrap();
    write(&named);
    let lacking = told(config.clone());
    lacking.assert_contains(["the file lacks 1 of the model's 42 tensors"]);
    assert!(
        lacking.contains(&format!("{} is not in the file", removed.0)),
        "{lacking}"
    );
    named.extend([removed.clone(), ("extra".to_string(), removed.1)]);
    write(&named);
    let more = told(config.clone());
    more.assert_contains(["the file has 1 more: `init_skip = 'extra'` leaves out"]);
}

#[test]
fn a_layer_that_is_missing_is_named_by_a_pattern_and_a_part_of_one_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let device = Device::flex();
    let config = MlpConfig::new().with_inputs(6).with_hidden(vec![5, 4]);
    save_state_dict(&config.init(&device), 0, &path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let tensors = tensor_file::read(&bytes).unwrap();
    let without = |left_out: fn(&str) -> bool| {
        let kept = tensors.iter().filter(|view| !left_out(&view.name));
        let kept = kept.map(|view| (view.name.clone(), view.to_data()));
        let kept = kept.collect::<Vec<_>>();
        let file = tensor_file::write(&kept, &BTreeMap::new()).unwrap();
        let path = folder.path().join("less.safetensors");
        std::fs::write(&path, file).unwrap();
        let error = load_state_dict(config.init(&device), &path).unwrap_err();
        error.to_string()
    };
    let head = without(|name| name.starts_with("layers.2."));
    assert!(head.contains("`init_skip = 'layers.2.*'` begins"), "{head}");
    let bias = without(|name| name == "layers.0.bias");
    bias.assert_contains(["`init_skip = 'layers.0.bias'` begins"]);
    let layers = without(|name| !name.starts_with("layers.0."));
    assert!(!layers.contains("init_skip"), "{layers}");
}

#[test]
fn what_does_not_fit_is_told_in_few_lines_and_what_it_seems_to_be_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let device = Device::flex();
    let config = MlpConfig::new()
        .with_inputs(6)
        .with_hidden(vec![5; 20])
        .with_classes(3);
    save_state_dict(&config.init(&device), 0, &path).unwrap();
    let told = |config: MlpConfig| {
        let error = load_state_dict(config.init(&device), &path).unwrap_err();
        let text = error.to_string();
        assert!(text.lines().count() <= 12, "{text}");
        text
    };
    let size = told(config.clone().with_hidden(vec![7; 20]));
    size.assert_contains(["a model of another size (1 of 42 tensors fit)"]);
    size.assert_contains(["layers.0.weight has shape [5, 6] in the file"]);
    assert!(size.contains("and 33 more"), "{size}");
    let deeper = told(config.clone().with_hidden(vec![5; 25]));
    assert!(deeper.contains("a model with other layers"), "{deeper}");
    // Whether there is such a file, or a flag, is not known here.
    assert!(!deeper.contains("config.json"), "{deeper}");

    // Most names with a prefix, and a head of another name.
    let bytes = std::fs::read(&path).unwrap();
    let tensors = tensor_file::read(&bytes).unwrap();
    let named = |rename: &dyn Fn(&str) -> String| {
        let named = tensors
            .iter()
            .map(|view| (rename(&view.name), view.to_data()));
        let bytes = tensor_file::write(&named.collect::<Vec<_>>(), &BTreeMap::new());
        std::fs::write(&path, bytes.unwrap()).unwrap();
    };
    let renamed = |to: &'static str| {
        named(&|name| match name {
            "layers.0.bias" => to.to_owned(),
            name => name.to_owned(),
        });
    };
    renamed("layers.0.other");
    let size = told(config.clone().with_hidden(vec![7; 20]).with_classes(4));
    let expected = "41 of the file's 42 tensors have names of the model, and other shapes";
    assert!(size.contains(expected), "{size}");
    renamed("base_model.model.layers.0.lora_A.default.weight");
    let wrapped = told(config.clone());
    assert!(wrapped.contains("a model that PEFT wraps"), "{wrapped}");
    named(&|name| match name.strip_prefix("layers.20.") {
        Some(end) => format!("head.{end}"),
        None => format!("backbone.{name}"),
    });
    let prefixed = told(config.clone());
    let expected = "40 of the model's 42 tensors have `backbone.` before their names";
    assert!(prefixed.contains(expected), "{prefixed}");
    prefixed.assert_contains(["head.bias has shape [3] in the file"]);
    prefixed.assert_contains(["layers.20.bias is not in the file"]);
    assert_eq!(prefixed.lines().count(), 6, "{prefixed}");
    named(&|name| name.replace('.', "\u{1b}"));
    let another = told(config);
    assert!(another.contains("of another architecture"), "{another}");
    assert!(
        another.contains("layers\\u{1b}0") && !another.contains('\u{1b}'),
        "{another}"
    );
}

#[test]
fn a_transposed_matrix_is_named_and_one_tensor_of_another_shape_is_no_model_of_another_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let device = Device::flex();
    let config = MlpConfig::new().with_inputs(6).with_hidden(vec![5, 5]);
    save_state_dict(&config.init(&device), 0, &path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let tensors = tensor_file::read(&bytes).unwrap();
    // Of another shape, with zeros: numbers are not read before all shapes fit.
    let refused = |other: &str, shape: [usize; 2]| {
        let named = tensors.iter().map(|view| {
            let data = match view.name == other {
                true => TensorData::zeros::<f32, _>(shape),
                false => view.to_data(),
            };
            (view.name.clone(), data)
        });
        let named = named.collect::<Vec<_>>();
        let file = tensor_file::write(&named, &BTreeMap::new()).unwrap();
        let path = folder.path().join("other.safetensors");
        std::fs::write(&path, file).unwrap();
        match load_state_dict(config.init(&device), &path).unwrap_err() {
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
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let device = Device::flex();
    let config = MlpConfig::new()
        .with_inputs(6)
        .with_hidden(vec![5, 4, 3, 2])
        .with_classes(2);
    save_state_dict(&config.init(&device), 0, &path).unwrap();
    let patterns = |hidden: &[usize]| {
        let other = config.clone().with_hidden(hidden.to_vec());
        let error = load_state_dict(other.init(&device), &path).unwrap_err();
        match error {
            TrainError::Weights {
                mismatch: WeightsMismatch::OtherSize { skip },
                ..
            } => skip,
            error => panic!("{error}"),
        }
    };
    let skip = patterns(&[5, 4, 7, 2]);
    assert_eq!(skip, ["layers.2.*", "layers.3.*"]);
    let other = config.clone().with_hidden(vec![5, 4, 7, 2]).init(&device);
    load_state_dict_except(other, &path, &skip.into(), &StateDictLayout::default()).unwrap();
    assert_eq!(
        patterns(&[5, 4, 3, 3, 2]),
        ["layers.3.*", "layers.4.*", "layers.5.*"]
    );
    // The bias of the head alone has the same shape.
    assert!(patterns(&[7, 8, 9, 8]).is_empty());
}

#[test]
fn what_is_skipped_keeps_no_others_from_sharing_a_prefix() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let device = Device::flex();
    let config = MlpConfig::new().with_hidden(vec![5]);
    let model = config.init(&device);
    save_state_dict(&model, 0, &path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let tensors = tensor_file::read(&bytes).unwrap();
    let named = tensors
        .iter()
        .map(|view| (format!("model.{}", view.name), view.to_data()));
    let mut named = named.collect::<Vec<_>>();
    named.push(("criterion.weight".to_owned(), named[0].1.clone()));
    let bytes = tensor_file::write(&named, &BTreeMap::new()).unwrap();
    std::fs::write(&path, bytes).unwrap();
    // Of transformers' files the layout knows the prefix, which those of others lack.
    let layout = StateDictLayout {
        prefix: "mlp.".to_owned(),
        ..StateDictLayout::default()
    };
    let load = |skip: &str| {
        let skip = Patterns::from(skip);
        load_state_dict_except(config.init(&device), &path, &skip, &layout)
    };
    load("criterion.*").unwrap();
    let error = load("layers.1.*").unwrap_err().to_string();
    assert!(error.contains("criterion.weight"), "{error}");
    let whole = load_state_dict(config.init(&device), &path).unwrap_err();
    let whole = whole.to_string();
    whole.assert_contains([
        "tensors fit, with `model.` before their names, and the file has 1 more",
        "`init_skip = 'criterion.*'` leaves out what is no part of the model",
        "criterion.weight has shape",
    ]);
    assert!(!whole.contains("removeprefix"), "{whole}");
    let error = load("CRITERION.*").unwrap_err().to_string();
    assert!(error.contains("did you mean 'criterion.*'?"), "{error}");
}
