use burn::prelude::Device;
use everburn_train::{Patterns, load_state_dict_except, save_pretrained};

use super::*;
use crate::tasks::json_keys::tests::each_contradiction_is_named;

fn llama() -> LlamaConfig {
    LlamaConfig::new(300)
        .with_context(64)
        .with_width(32)
        .with_layers(2)
        .with_heads(4)
        .with_kv_heads(2)
        .with_head_width(Some(8))
        .with_feed_forward(48)
}

fn is_taken_again<C: PretrainedDecoder + std::fmt::Debug>(config: &C) {
    let adopted = C::adopt(&config.config_json().unwrap()).unwrap();
    assert_eq!(adopted.as_ref(), Some(config));
}

#[test]
fn what_is_written_is_taken_again() {
    let gpt = GptConfig::new(300).with_width(32).with_dropout(0.1);
    is_taken_again(&gpt);
    is_taken_again(&gpt.with_activation(Activation::GeluTanh));
    is_taken_again(&llama());
    is_taken_again(&llama().with_biases(true).with_tied(false));
    is_taken_again(&llama().with_rotary_scaling(RotaryScaling::Linear { factor: 4.0 }));
    is_taken_again(&LlamaConfig::llama3_1b());
    let rotary = GptConfig::nano(65).config_json().unwrap_err().to_string();
    assert!(rotary.contains("learned positions"), "{rotary}");
}

#[test]
fn keys_of_older_releases_and_their_defaults_are_known() {
    let json = json!({
        "model_type": "mistral",
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
        "sliding_window": 64,
        "rms_norm_eps": 1e-5,
        "rope_scaling": {"type": "linear", "factor": 2.0},
    });
    let expected = llama()
        .with_kv_heads(4)
        .with_tied(false)
        .with_rotary_base(10_000.0)
        .with_rotary_scaling(RotaryScaling::Linear { factor: 2.0 });
    assert_eq!(LlamaConfig::adopt(&json).unwrap(), Some(expected));
    assert_eq!(GptConfig::adopt(&json).unwrap(), None);
    assert_eq!(GptConfig::adopt(&json!([1])).unwrap(), None);
}

#[test]
fn a_size_that_contradicts_the_weights_is_named() {
    fn check<C: PretrainedDecoder>(config: &C, other: &C, keys: &[&str]) {
        let models = [config, other].map(|config| config.build(&Device::flex()));
        let json = config.config_json().unwrap();
        each_contradiction_is_named(models, &config.layout(), &json, keys);
    }
    let gpt = GptConfig::new(30).with_context(8).with_width(8);
    let gpt = gpt.with_layers(2).with_heads(2);
    let keys = ["/vocab_size", "/n_positions", "/n_embd", "/n_layer"];
    check(&gpt, &gpt.clone().with_width(16), &keys);
    let keys = [
        "/vocab_size",
        "/hidden_size",
        "/intermediate_size",
        "/num_hidden_layers",
    ];
    check(&llama(), &llama().with_width(16), &keys);
    let untied = llama().with_tied(false).with_biases(true);
    check(&untied, &untied.clone().with_width(16), &keys);
}

#[test]
fn heads_that_contradict_the_weights_are_named() {
    let here = tempfile::tempdir().unwrap();
    let folder = here.path().join("model");
    let layout = llama().layout();
    let model = llama().build(&Device::flex());
    save_pretrained(&model, &layout, &[], &folder, u64::MAX).unwrap();
    let mut json = llama().config_json().unwrap();
    json["num_key_value_heads"] = json!(4);
    std::fs::write(folder.join("config.json"), json.to_string()).unwrap();
    let other = llama().with_kv_heads(4).build(&Device::flex());
    let loaded = load_state_dict_except(other, &folder, &Patterns::default(), &layout);
    let told = loaded.err().unwrap().to_string();
    for expected in [
        "config.json and model.safetensors contradict each other",
        "num_key_value_heads is 4 of 4 heads in config.json, 32 rows of k_proj.weight",
    ] {
        assert!(told.contains(expected), "{expected}: {told}");
    }
    assert!(!told.contains("num_attention_heads is"), "{told}");
}

#[test]
fn what_a_decoder_cannot_do_is_refused_by_its_key() {
    let refused = |config: Value, key: &str, value: Value| {
        let mut json = config;
        json[key] = value;
        let adopted = match Keys::of_config(&json).kind() {
            "gpt2" => GptConfig::adopt(&json).map(|_| ()),
            _ => LlamaConfig::adopt(&json).map(|_| ()),
        };
        let error = adopted.expect_err(key).to_string();
        assert!(error.contains(key), "{key}: {error}");
    };
    let gpt = GptConfig::new(300).config_json().unwrap();
    for (key, value) in [
        ("vocab_size", Value::Null),
        ("n_layer", json!(-1)),
        ("n_head", json!("four")),
        ("n_inner", json!(7)),
        ("attn_pdrop", json!(0.3)),
        ("activation_function", json!("relu")),
        ("layer_norm_epsilon", json!(1e-6)),
        ("scale_attn_by_inverse_layer_idx", json!(true)),
        ("tie_word_embeddings", json!(false)),
    ] {
        refused(gpt.clone(), key, value);
    }
    let llama = llama().config_json().unwrap();
    for (key, value) in [
        ("hidden_size", json!(1.5)),
        ("hidden_act", json!("gelu")),
        ("attention_bias", json!(true)),
        ("use_sliding_window", json!(true)),
        ("quantization_config", json!({"bits": 4})),
        ("rms_norm_eps", json!("small")),
        ("rope_scaling", json!({"rope_type": "yarn"})),
        ("rope_scaling", json!("linear")),
        ("rope_scaling", json!({"factor": 2.0})),
        (
            "rope_parameters",
            json!({"rope_type": "default", "factor": 2.0}),
        ),
        (
            "rope_parameters",
            json!({"rope_type": "llama3", "factor": 2.0, "beta_fast": 32}),
        ),
        ("partial_rotary_factor", json!(0.5)),
        ("tie_word_embeddings", json!(1)),
    ] {
        refused(llama.clone(), key, value);
    }
}

#[test]
fn an_unknown_key_of_rotary_scaling_is_named_with_those_that_are_known() {
    let adopt = |scaling: Value| {
        let mut json = llama().config_json().unwrap();
        json["rope_scaling"] = scaling;
        LlamaConfig::adopt(&json)
    };
    let error = adopt(json!({"type": "linear", "factor": 2.0, "factr": 3.0})).unwrap_err();
    let expected = "config.json: rope_scaling has the key factr, which is not known";
    assert_eq!(error.to_string(), expected);
    let known = "rope_type, type, rope_theta, partial_rotary_factor, factor";
    assert!(error.help().unwrap().contains(known), "{error:?}");
    let whole = json!({"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4, "partial_rotary_factor": 1.0});
    assert!(adopt(whole).unwrap().is_some());
    let part = adopt(json!({"rope_type": "default", "partial_rotary_factor": 0.5}));
    let part = part.unwrap_err().to_string();
    assert!(part.contains("partial_rotary_factor is 0.5"), "{part}");
}

#[test]
fn an_unknown_key_or_kind_of_a_set_rotary_scaling_is_refused() {
    let set = |scaling: &str| {
        let own = format!("rotary_scaling = {scaling}").parse().unwrap();
        numbers::with_own(&llama(), "llama", Some(&own)).map(|config| config.rotary_scaling)
    };
    let linear = RotaryScaling::Linear { factor: 2.0 };
    assert_eq!(set("{kind = 'linear', factor = 2.0}").unwrap(), linear);
    assert_eq!(set("{kind = 'none'}").unwrap(), RotaryScaling::None);
    for (scaling, expected) in [
        ("{kind = 'none', factor = 2.0}", "unknown field `factor`"),
        (
            "{kind = 'linear', factor = 2.0, factr = 1.0}",
            "unknown field `factr`, expected `factor`",
        ),
        (
            "{kind = 'yarn', factor = 2.0}",
            "unknown variant `yarn`, expected one of `none`, `linear`, `llama3`",
        ),
    ] {
        let error = set(scaling).unwrap_err().to_string();
        let expected = format!("[llama]: rotary_scaling: {expected}");
        assert!(error.starts_with(&expected), "{error}");
    }
}

#[test]
fn settings_that_no_shape_shows_are_in_the_layout_with_their_values() {
    let of = |layout: StateDictLayout| -> Vec<String> {
        let unshown = layout.unshown.into_iter();
        unshown
            .map(|(key, value)| format!("{key} = {value}"))
            .collect()
    };
    let gpt = GptConfig::new(300).with_width(96).with_heads(6);
    assert_eq!(
        of(gpt.layout()),
        ["gpt.heads = 6", "gpt.activation = \"gelu\""]
    );
    let llama = of(llama().layout());
    assert_eq!(llama.len(), UNSHOWN_OF_LLAMA.len(), "{llama:?}");
    assert_eq!(llama[..2], ["llama.heads = 4", "llama.kv_heads = 2"]);
}
