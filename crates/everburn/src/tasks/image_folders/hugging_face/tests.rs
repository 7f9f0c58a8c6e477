use burn::prelude::Device;
use everburn_models::resnet18::ResNet18Config;
use everburn_models::resnet50::{ResNet50Config, Stem};
use everburn_tests::AssertContains;
use everburn_train::{Patterns, load_state_dict_except, save_state_dict};

use super::*;
use crate::tasks::json_keys::tests::each_contradiction_is_named;

fn vit() -> ViTConfig {
    ViTConfig::new()
        .with_image_size(32)
        .with_patch_size(8)
        .with_width(32)
        .with_layers(2)
        .with_heads(4)
        .with_feed_forward(48)
}

fn is_taken_again<C: PretrainedImageModel + std::fmt::Debug>(config: &C) {
    let adopted = C::adopt(&config.config_json().unwrap()).unwrap();
    assert_eq!(adopted.as_ref(), Some(config));
}

#[test]
fn what_is_written_is_taken_again() {
    is_taken_again(&vit());
    is_taken_again(&vit().with_biases(false).with_dropout(0.1));
    is_taken_again(
        &vit()
            .with_activation(Activation::GeluTanh)
            .with_epsilon(1e-6),
    );
    is_taken_again(&vit().with_channels(1));
    is_taken_again(&ResNet18Config::new().with_blocks([3, 4, 6, 3]));
    is_taken_again(&ResNet18Config::new().with_channels(Some(1)));
    is_taken_again(&ResNet50Config::new().with_width(8));
    let cifar = ResNet18Config::new().with_stem(Stem::Cifar);
    let error = cifar.config_json().unwrap_err();
    assert!(error.to_string().contains("data.stem=small"), "{error}");
    assert!(error.help().unwrap().contains("data.stem=large"));
}

#[test]
fn a_model_is_of_one_kind() {
    let [vit, small, large] = [
        vit().config_json(),
        ResNet18Config::new().config_json(),
        ResNet50Config::new().config_json(),
    ]
    .map(Result::unwrap);
    assert!(ViTConfig::adopt(&small).unwrap().is_none());
    assert!(ResNet18Config::adopt(&large).unwrap().is_none());
    assert!(ResNet50Config::adopt(&small).unwrap().is_none());
    assert!(ResNet50Config::adopt(&vit).unwrap().is_none());
    assert!(ViTConfig::adopt(&json!([1])).unwrap().is_none());
    // As transformers have it, where a key is absent.
    let default = ResNet50Config::adopt(&json!({"model_type": "resnet"}));
    assert_eq!(default.unwrap(), Some(ResNet50Config::new()));
    let default = ViTConfig::adopt(&json!({"model_type": "vit"}));
    assert_eq!(default.unwrap(), Some(ViTConfig::new()));
}

#[test]
fn a_size_that_contradicts_the_weights_is_named() {
    fn check<C: PretrainedImageModel>(config: &C, other: &C, keys: &[&str]) {
        let config = config.clone().of_classes(2);
        let models = [&config, other].map(|config| config.build(&Device::flex()));
        let mut json = config.config_json().unwrap();
        json["id2label"] = json!({"0": "cat", "1": "dog"});
        each_contradiction_is_named(models, &config.layout(), &json, keys);
    }
    let keys = [
        "/hidden_size",
        "/intermediate_size",
        "/num_hidden_layers",
        "/num_channels",
        "/patch_size",
        "/id2label",
    ];
    check(&vit(), &vit().with_width(16), &keys);
    let keys = [
        "/embedding_size",
        "/num_channels",
        "/depths/0",
        "/depths/1",
        "/depths/2",
        "/depths/3",
        "/id2label",
    ];
    let small = ResNet18Config::new()
        .with_width(2)
        .with_blocks([1, 2, 1, 1]);
    check(&small, &small.clone().with_width(4), &keys);
    let large = ResNet50Config::new()
        .with_width(2)
        .with_blocks([2, 1, 1, 1]);
    check(&large, &large.clone().with_width(4), &keys);
}

#[test]
fn a_vit_of_torchvision_is_refused_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vit.safetensors");
    let model = vit().build(&Device::flex());
    save_state_dict(&model, 0, &path).unwrap();
    // One of its names is torchvision's, of the same length.
    let mut bytes = std::fs::read(&path).unwrap();
    let ours = b"vit.encoder.layer.0.layernorm_before.bias";
    let theirs = b"encoder.layers.encoder_layer_0.ln_1.scale";
    let place = bytes.windows(ours.len()).position(|name| name == ours);
    bytes[place.unwrap()..][..ours.len()].copy_from_slice(theirs);
    std::fs::write(&path, bytes).unwrap();
    let nothing = Patterns::default();
    let loaded = load_state_dict_except(
        vit().build(&Device::flex()),
        &path,
        &nothing,
        &vit().layout(),
    );
    let told = loaded.err().unwrap().to_string();
    assert!(told.contains("it is a ViT of torchvision"), "{told}");
}

#[test]
fn what_a_model_cannot_do_is_refused_by_its_key() {
    let refused = |config: &Value, key: &str, value: Value| {
        let mut json = config.clone();
        json[key] = value;
        let adopted = match json["model_type"].as_str() {
            Some("vit") => ViTConfig::adopt(&json).map(|_| ()),
            _ => ResNet50Config::adopt(&json).map(|_| ()),
        };
        let error = adopted.expect_err(key).to_string();
        error.assert_contains(["config.json", key]);
    };
    let vit = vit().config_json().unwrap();
    for (key, value) in [
        ("hidden_size", json!(1.5)),
        ("hidden_size", json!(1_u64 << 40)),
        ("head_dim", json!(16)),
        ("hidden_act", json!("relu")),
        ("hidden_act", json!(3)),
        ("image_size", json!([32, 64])),
        ("patch_size", json!("8")),
        ("num_channels", json!(2)),
        ("qkv_bias", json!("no")),
        ("layer_norm_eps", json!("small")),
        ("problem_type", json!("regression")),
        ("quantization_config", json!({"bits": 4})),
    ] {
        refused(&vit, key, value);
    }
    let resnet = ResNet50Config::new().config_json().unwrap();
    for (key, value) in [
        ("hidden_act", json!("silu")),
        ("depths", json!([3, 4, 6])),
        ("depths", json!([3, 4, 6, -3])),
        ("hidden_sizes", json!([64, 128, 256, 512])),
        ("embedding_size", json!(1_u64 << 60)),
        ("downsample_in_first_stage", json!(true)),
        ("downsample_in_bottleneck", json!(true)),
    ] {
        refused(&resnet, key, value);
    }
}

#[test]
fn classes_have_names_or_numbers() {
    let named = labels(&json!({"id2label": {"1": "dog", "0": "cat"}})).unwrap();
    assert_eq!(named, (2, vec!["cat".to_string(), "dog".to_string()]));
    let numbered = labels(&json!({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}));
    assert_eq!(numbered.unwrap(), (2, Vec::new()));
    assert_eq!(labels(&json!({"num_labels": 7})).unwrap(), (7, Vec::new()));
    assert_eq!(labels(&json!({})).unwrap(), (2, Vec::new()));
    for wrong in [
        json!({"0": "cat", "2": "dog"}),
        json!(["cat"]),
        json!({"0": 1}),
    ] {
        let error = labels(&json!({"id2label": wrong})).unwrap_err().to_string();
        assert!(error.contains("id2label"), "{error}");
    }
}

#[test]
fn each_tensor_of_a_resnet_has_a_place_there() {
    use burn::module::Module;
    use burn::prelude::*;
    use everburn_nn::parameter_paths;

    fn names(model: &impl Module) -> Vec<String> {
        let paths = parameter_paths(model).into_iter();
        let names = paths.map(|parameter| {
            let norm = parameter.path.replace(".gamma", ".weight");
            norm.replace(".beta", ".bias")
        });
        let mut names = names.collect::<Vec<_>>();
        names.sort();
        names
    }
    let own = |layout: StateDictLayout| {
        let names = layout.tensors.into_iter().map(|tensor| tensor.name);
        let names = names.filter(|name| !name.ends_with("num_batches_tracked"));
        let mut names = names.collect::<Vec<_>>();
        names.sort();
        names
    };
    let device = Device::flex();
    let small = ResNet18Config::new().with_width(2);
    assert_eq!(own(small.layout()), names(&small.init(&device)));
    let large = ResNet50Config::new().with_width(2);
    assert_eq!(own(large.layout()), names(&large.init(&device)));
    assert!(large.fewest_parameters() < large.init(&device).num_params() as u64);
    assert!(small.fewest_parameters() < small.init(&device).num_params() as u64);
    let vit = vit();
    assert!(vit.fewest_parameters() < vit.init(&device).num_params() as u64);
}

#[test]
fn a_vit_is_taken_by_the_names_of_transformers_5_too() {
    let folder = tempfile::tempdir().unwrap();
    let [before, since, back] =
        ["before", "since", "back"].map(|name| folder.path().join(format!("{name}.safetensors")));
    let device = Device::flex();
    let config = vit();
    save_state_dict(&config.init(&device), 0, &before).unwrap();

    let written = std::fs::read(&before).unwrap();
    let (length, rest) = written.split_first_chunk().unwrap();
    let (header, numbers) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let renamed = [
        ("vit.encoder.layer.", "vit.layers."),
        ("attention.attention.query.", "attention.q_proj."),
        ("attention.attention.key.", "attention.k_proj."),
        ("attention.attention.value.", "attention.v_proj."),
        ("attention.output.dense.", "attention.o_proj."),
        ("intermediate.dense.", "mlp.fc1."),
        ("output.dense.", "mlp.fc2."),
    ];
    let header = std::str::from_utf8(header).unwrap().to_owned();
    let mut header = renamed.iter().fold(header, |header, (old, new)| {
        assert!(header.contains(old), "{old}: {header}");
        header.replace(old, new)
    });
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let length = (header.len() as u64).to_le_bytes();
    let file = [&length[..], header.as_bytes(), numbers].concat();
    std::fs::write(&since, file).unwrap();

    let (skip, layout) = (Patterns::default(), config.layout());
    let taken = load_state_dict_except(config.init(&device), &since, &skip, &layout).unwrap();
    save_state_dict(&taken, 0, &back).unwrap();
    assert!(std::fs::read(&back).unwrap() == written);
}

#[test]
fn settings_of_a_vit_that_no_shape_shows_are_in_the_layout() {
    let unshown = vit().layout().unshown;
    let keys: Vec<&str> = unshown.iter().map(|(key, _)| &**key).collect();
    assert_eq!(keys, ["vit.heads", "vit.activation", "vit.epsilon"]);
    assert_eq!(unshown[0].1, "4");
}
