//! Tests of `adapter`.

use everburn_tests::AssertContains;

use super::*;
use crate::checkpoint::state_dict::TensorSource;

fn factor(shape: [usize; 2], first: f32) -> TensorData {
    let count = shape[0] * shape[1];
    let numbers = (0..count).map(|place| first + place as f32);
    TensorData::new(numbers.collect::<Vec<_>>(), shape)
}

fn lora() -> LoraConfig {
    toml::from_str("rank = 2\nalpha = 3.0\ntargets = 'q'").unwrap()
}

#[test]
fn layers_that_are_one_in_transformers_have_one_pair_of_factors() {
    let named = [("q", 0.0), ("v", 100.0), ("up", 200.0)].map(|(name, first)| {
        let weight = format!("l.{name}.weight");
        let out = if name == "up" { 5 } else { 4 };
        let pair = [factor([3, 2], first), factor([2, out], first + 50.0)];
        (weight, pair)
    });
    let adapter = Adapter {
        factors: named.into(),
    };
    let source = |name: &str, source: &str, part| TensorSource {
        name: format!("l.{name}.weight"),
        source: format!("h.{source}.weight"),
        transposed: true,
        part,
    };
    let layout = StateDictLayout {
        prefix: "h.".to_string(),
        tensors: vec![
            source("q", "all", Some((0, 3))),
            source("k", "all", Some((1, 3))),
            source("v", "all", Some((2, 3))),
        ],
        ..StateDictLayout::default()
    };
    let (tensors, config) = adapter
        .peft(&lora(), &layout, Some("CAUSAL_LM"), None)
        .unwrap();
    assert_eq!(config["task_type"], "CAUSAL_LM");
    assert_eq!(config["target_modules"], json!(["h.all", "l.up"]));
    assert_eq!(
        (&config["r"], &config["lora_alpha"]),
        (&json!(4), &json!(6))
    );
    assert_eq!(config["rank_pattern"], json!({ "l.up": 2 }));
    assert_eq!(config["alpha_pattern"], json!({ "l.up": 3 }));
    let tensors = tensors.into_iter().collect::<BTreeMap<_, _>>();
    let find = |name: &str| {
        let name = format!("base_model.model.{name}.weight");
        Tensor::<2>::from_data(tensors[&name].clone(), &Device::flex())
    };
    // What both together add to the weight, `[out, in]`.
    let both = find("h.all.lora_B").matmul(find("h.all.lora_A"));
    assert_eq!(both.dims(), [12, 3]);
    let own = |name: &str| {
        let pair = &adapter.factors[&format!("l.{name}.weight")];
        let [a, b] = pair
            .clone()
            .map(|it| Tensor::<2>::from_data(it, &Device::flex()));
        a.matmul(b).transpose()
    };
    let expected = Tensor::cat(
        vec![own("q"), Tensor::zeros([4, 3], &Device::flex()), own("v")],
        0,
    );
    assert_eq!(both.into_data(), expected.into_data());
    let up = find("l.up.lora_B").matmul(find("l.up.lora_A"));
    assert_eq!(up.into_data(), own("up").into_data());
}

#[test]
fn factors_come_back_from_a_file_and_damaged_ones_are_refused() {
    let pair = [factor([3, 2], 0.0), factor([2, 4], 1.0)];
    let adapter = Adapter {
        factors: [("a.weight".to_string(), pair.clone())].into(),
    };
    let bytes = adapter.to_bytes().unwrap();
    let read = tensor_file::read(&bytes).unwrap();
    let read = read.iter().map(|view| (view.name.clone(), view.to_data()));
    assert_eq!(Adapter::of_named(read.collect()).unwrap(), adapter);
    let [a, b] = pair;
    let named = |end: &str, data: &TensorData| (format!("a.weight{end}"), data.clone());
    let alone = Adapter::of_named(vec![named(ENDS[0], &a)]).unwrap_err();
    alone.assert_contains(["a.weight.lora.a is not one of two"]);
    let alone = Adapter::of_named(vec![named(ENDS[1], &a)]).unwrap_err();
    assert!(alone.contains("a.weight.lora.b"), "{alone}");
    let unlike = vec![named(ENDS[0], &b), named(ENDS[1], &b)];
    let unlike = Adapter::of_named(unlike).unwrap_err();
    assert!(unlike.contains("[2, 4] and [2, 4]"), "{unlike}");
    let none = Adapter::default().peft(&lora(), &StateDictLayout::default(), None, None);
    none.unwrap_err()
        .to_string()
        .assert_contains(["there are no factors"]);
    let embedding = Adapter {
        factors: [("wte.weight".to_string(), [a, b])].into(),
    };
    let error = embedding.peft(&lora(), &StateDictLayout::default(), None, None);
    error
        .unwrap_err()
        .to_string()
        .assert_contains(["not a linear layer"]);
}
