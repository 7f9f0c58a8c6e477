//! What no shape of a tensor shows: it comes from the `config.json`, is set, or is said, and is never guessed.

use std::path::Path;

use everburn_tests::{Ended, Everburn, Run};
use serde_json::Value;

/// The folder `gpt2` of a model of width 24 with 2 heads, to which the default of 12 heads fits too; its run is `made`.
fn pretrained(here: &Path) {
    let size = "gpt={width=24,layers=1,heads=2,context=16,dropout=0.0}";
    super::pretrained::pretrained(here, "gpt2", size);
}

fn import(here: &Path, line: &str) -> Ended {
    let import = format!("import {line} --tokenizer byte");
    Everburn::line(here, import).run()
}

fn heads(here: &Path, run: &str) -> usize {
    let text = Run::new(here.join(run)).text("config.toml");
    let mut lines = text.lines();
    let heads = lines.find_map(|line| line.strip_prefix("heads = "));
    heads.unwrap().parse().unwrap()
}

#[test]
fn a_file_beside_its_config_json_is_read_as_its_folder_and_alone_it_asks_for_heads() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    pretrained(here);
    for (from, run) in [
        ("gpt2", "a"),
        ("gpt2/model.safetensors gpt2", "b"),
        ("gpt2/model.safetensors gpt2 --set gpt.heads=2", "c"),
    ] {
        import(here, &format!("{from} --run-dir {run}")).succeeded();
        assert_eq!(heads(here, run), 2, "{from}");
    }
    for from in ["gpt2", "gpt2/model.safetensors gpt2", "made"] {
        let other = import(here, &format!("{from} --set gpt.heads=12 --run-dir never"));
        let message = "gpt.heads is 2 in the model of gpt2, and 12 was set";
        let message = message.replace(
            "of gpt2",
            if from == "made" { "of made" } else { "of gpt2" },
        );
        other.failed_with(2, &[&message, "leave gpt.heads out"]);
    }
    let activation = import(here, "gpt2 --set gpt.activation=gelu-tanh --run-dir never");
    activation.failed_with(2, &["gpt.activation is \"gelu\" in the model of gpt2"]);

    std::fs::copy(
        here.join("gpt2/model.safetensors"),
        here.join("alone.safetensors"),
    )
    .unwrap();
    let sizes = "--set gpt.width=24 --set gpt.layers=1 --set gpt.context=16 --data embedded";
    let alone = import(
        here,
        &format!("alone.safetensors gpt2 {sizes} --run-dir never"),
    );
    alone.failed_with(
        2,
        &["gpt.width is set and gpt.heads is not", "--set gpt.heads=N"],
    );
    let train = format!(
        "train gpt2 --init-from alone.safetensors {sizes} --tokenizer byte --steps 1 --run-dir never"
    );
    Everburn::line(here, train).refused(&["gpt.width is set and gpt.heads is not"]);
    assert!(!here.join("never").exists());
    let set = import(
        here,
        &format!("alone.safetensors gpt2 {sizes} --set gpt.heads=2 --run-dir d"),
    );
    let line = "gpt.activation = \"gelu\": a file of weights does not show these";
    let set = set.succeeded();
    set.prints([line]);
    assert_eq!(heads(here, "d"), 2);
    // A run's configuration has all.
    let of_run = "alone.safetensors --config made/config.toml --run-dir e";
    import(here, of_run).succeeded();
    assert_eq!(heads(here, "e"), 2);
    Everburn::new(here, ["import", "alone.safetensors", "gpt2"]).refused(&[
        "the sizes and the tokens of this gpt2 are not known",
        "--tokenizer",
    ]);
}

#[test]
fn a_file_of_weights_whose_sizes_are_all_set_asks_for_the_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    pretrained(here);
    std::fs::copy(
        here.join("gpt2/model.safetensors"),
        here.join("alone.safetensors"),
    )
    .unwrap();
    let sizes = "--set gpt.width=24 --set gpt.layers=1 --set gpt.heads=2 --set gpt.context=16 --set gpt.vocabulary=256";
    let import = |more: &str| {
        let import = format!("import alone.safetensors gpt2 {sizes} {more}");
        Everburn::line(here, import).run()
    };
    let unknown = [
        "the tokens of this gpt2 are not known: a state dict does not have them",
        "--tokenizer PATH/tokenizer.json",
    ];
    for data in ["", "--data embedded"] {
        import(&format!("{data} --run-dir never")).failed_with(2, &unknown);
    }
    let characters = import("--tokenizer char --run-dir never");
    characters.failed_with(2, &["characters", "--data that it learned from"]);
    assert!(!here.join("never").exists());
    import("--tokenizer byte --run-dir a").succeeded();
    let generate = |run: &str| {
        let generate = ["generate", run, "--prompt", "The", "--tokens", "8"];
        let greedy = Everburn::new(here, generate).args(["--temperature", "0"]);
        greedy.succeed().stdout
    };
    assert_eq!(generate("a"), generate("made"));
}

#[test]
fn an_import_leaves_out_what_only_the_file_has_and_no_parameter_of_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    pretrained(here);
    // A head that is not the embedding.
    let weights = here.join("gpt2/model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    let (head, data) =
        bytes[8..].split_at(u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize);
    let mut json: Value = serde_json::from_slice(head).unwrap();
    let mut own = json["transformer.wte.weight"].clone();
    let length =
        own["data_offsets"][1].as_u64().unwrap() - own["data_offsets"][0].as_u64().unwrap();
    own["data_offsets"] = serde_json::json!([data.len(), data.len() as u64 + length]);
    json["lm_head.weight"] = own;
    let mut head = json.to_string().into_bytes();
    head.resize(head.len().next_multiple_of(8), b' ');
    let length_of_head = (head.len() as u64).to_le_bytes();
    let zeros = vec![0; length as usize];
    std::fs::write(
        &weights,
        [&length_of_head[..], &head, data, &zeros].concat(),
    )
    .unwrap();
    let message = "lm_head.weight has other numbers than transformer.wte.weight, and the model has one tensor for both";
    let advice = "--init-skip 'lm_head.weight' leaves the first out";
    let refused = import(here, "gpt2 --run-dir never");
    refused.failed_with(2, &[message, advice]);
    import(here, "gpt2 --init-skip lm_head.weight --run-dir a").succeeded();
    let of_model = import(here, "gpt2 --init-skip lm_head.*,norm.* --run-dir never");
    of_model.failed_with(
        2,
        &[
            "leaves out 2 tensors of the model: norm.weight, norm.bias; an import takes a whole model",
            "train gpt2 --init-from",
        ],
    );
    assert!(!here.join("never").exists());
}
