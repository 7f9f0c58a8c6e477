//! Flags about training a part of a pretrained model.

use std::collections::BTreeMap;
use std::path::Path;

use everburn_tests::{Everburn, Run};
use serde_json::Value;

/// A decoder and a few windows of text.
const SMALL: &str = "model = \"gpt-nano\"\n\
    [gpt]\ncontext = 16\nwidth = 32\nlayers = 2\nheads = 4\n\
    [text]\ntokenizer = \"byte\"\n\
    [data]\nname = \"embedded\"\ntrain_samples = 40\ntest_samples = 8\n\
    [training]\nbatch_size = 8\nvalidation_samples = 8\nlog_every = 1\nepochs = 2\n";

fn train(folder: &Path, run: &str, flags: &[&str]) -> Run {
    let train = format!("train --config small.toml --run-dir {run}");
    Everburn::line(folder, train).args(flags).succeed();
    Run::new(folder.join(run))
}

fn losses(run: &Run) -> Vec<f64> {
    run.values("step", "loss")
}

/// How far two lists of numbers are apart.
fn apart(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let pairs = a.iter().zip(b);
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// The bytes of each tensor of a run's weights.
fn tensors(folder: &Path, run: &str) -> BTreeMap<String, Vec<u8>> {
    let file = format!("{run}.safetensors");
    let export = ["export", run, "--to", "safetensors", "--output", &file];
    Everburn::new(folder, export).succeed();
    let tensors = tensors_of(&folder.join(file)).into_iter();
    tensors.map(|(name, (_, bytes))| (name, bytes)).collect()
}

/// The shape and the bytes of each tensor of a file.
fn tensors_of(file: &Path) -> BTreeMap<String, (Vec<usize>, Vec<u8>)> {
    let bytes = std::fs::read(file).unwrap();
    let (length, rest) = bytes.split_at(8);
    let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&rest[..length]).unwrap();
    let tensors = header.as_object().unwrap().iter();
    let tensors = tensors.filter(|(name, _)| *name != "__metadata__");
    let bytes_of = |tensor: &Value| {
        let [from, to] = [0, 1].map(|end| tensor["data_offsets"][end].as_u64().unwrap() as usize);
        rest[length + from..length + to].to_vec()
    };
    let shape_of = |tensor: &Value| {
        let shape = tensor["shape"].as_array().unwrap().iter();
        shape.map(|size| size.as_u64().unwrap() as usize).collect()
    };
    tensors
        .map(|(name, tensor)| (name.clone(), (shape_of(tensor), bytes_of(tensor))))
        .collect()
}

/// The numbers of a tensor.
fn numbers(bytes: &[u8]) -> Vec<f64> {
    let numbers = bytes.chunks_exact(4);
    let numbers = numbers.map(|four| f64::from(f32::from_le_bytes(four.try_into().unwrap())));
    numbers.collect()
}

/// A tensor of two dimensions as rows of numbers.
fn rows((shape, bytes): &(Vec<usize>, Vec<u8>)) -> Vec<Vec<f64>> {
    let [_, width] = shape[..] else {
        panic!("{shape:?} has other dimensions than two")
    };
    numbers(bytes).chunks(width).map(<[f64]>::to_vec).collect()
}

fn test_loss(folder: &Path, run: &str, flags: &[&str]) -> f64 {
    let eval = Everburn::new(folder, ["eval", run, "--json"]).args(flags);
    let ended = eval.succeed();
    let result = ended.json();
    result["test_loss"].as_f64().unwrap()
}

#[test]
fn low_rank_factors_are_trained_beside_pretrained_weights_and_merged() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("small.toml"), SMALL).unwrap();
    train(here, "base", &[]);
    let lora = ["--init-from", "base", "--lora", "3", "--lora-alpha", "9"];
    let lora = [&lora[..], &["--lora-targets", "q,*.feed_forward.up.weight"]].concat();
    let alone = train(here, "alone", &lora);
    let ours = losses(&alone);
    assert!(ours.last() < ours.first(), "{ours:?}");
    for (name, flags) in [
        ("ranks", &["--ranks", "2"][..]),
        ("sharded", &["--ranks", "2", "--shard", "gradients"]),
        ("logical", &["--ranks", "2", "--virtual-ranks", "4"]),
    ] {
        let run = train(here, name, &[&lora, flags].concat());
        assert!(apart(&losses(&run), &ours) < 1e-4, "{name}");
    }
    // Interrupted and resumed.
    train(
        here,
        "parts",
        &[&lora[..], &["--epochs", "1", "--lr-schedule", "constant"]].concat(),
    );
    Everburn::line(here, "train --run-dir parts --resume --epochs 2").succeed();
    let whole = train(
        here,
        "whole",
        &[&lora[..], &["--lr-schedule", "constant"]].concat(),
    );
    let parts = Run::new(here.join("parts"));
    assert!(apart(&losses(&parts), &losses(&whole)) < 1e-6);

    // Merged and beside: the run's test had both apart.
    let beside = alone.number("test_loss");
    assert!((test_loss(here, "alone", &[]) - beside).abs() < 1e-5);
    assert!((test_loss(here, "alone", &["--checkpoint", "2"]) - beside).abs() < 1e-5);
    // Only what was named has changed.
    let (before, after) = (tensors(here, "base"), tensors(here, "alone"));
    assert!(before.keys().eq(after.keys()));
    let changed = before.keys().filter(|name| before[*name] != after[*name]);
    let changed = changed.map(String::as_str).collect::<Vec<_>>();
    let expected = [
        "layers.0.attention.q.weight",
        "layers.0.feed_forward.up.weight",
        "layers.1.attention.q.weight",
        "layers.1.feed_forward.up.weight",
    ];
    assert_eq!(changed, expected);
}

#[test]
fn ranks_of_meshes_read_their_parts_of_pretrained_weights() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("small.toml"), SMALL).unwrap();
    train(here, "base", &["--steps", "3"]);
    let tune = ["--init-from", "base", "--steps", "3"];
    let alone = losses(&train(here, "alone", &tune));
    for mesh in ["pipeline=2", "tensor=2", "tensor=2,pipeline=2"] {
        let ranks = if mesh.contains(',') { "4" } else { "2" };
        let flags = [&tune[..], &["--ranks", ranks, "--mesh", mesh]].concat();
        let run = train(here, mesh, &flags);
        assert!(apart(&losses(&run), &alone) < 1e-5, "{mesh}");
    }
}

#[test]
fn low_rank_adaptation_that_cannot_be_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("small.toml"), SMALL).unwrap();
    train(here, "base", &["--steps", "1"]);
    for (flags, message) in [
        ("--lora 2", "--lora adapts pretrained weights"),
        ("--init-from base --lora 0", "and be at least 1"),
        ("--init-from base --lora-alpha 4", "--lora must be given"),
        (
            "--init-from base --lora 2 --lora-alpha 0",
            "alpha must be a number above 0",
        ),
        (
            "--init-from base --lora 2 --lora-targets query",
            "names no layer that factors can be put beside",
        ),
        ("--init-from base --lora 2 --ema 0.9", "do not go together"),
        (
            "--init-from base --lora 2 --ranks 2 --pipeline 2",
            "do not go together",
        ),
    ] {
        let ended = Everburn::line(here, "train --config small.toml --run-dir never")
            .words(flags)
            .run();
        ended.failed_with(ended.code().max(1), &[message]);
        assert!(!here.join("never").exists(), "{ended}");
    }
}

#[test]
fn what_adaptation_has_learned_is_exported_beside_the_weights_as_peft_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    // Queries, keys and values are one tensor of a GPT-2 in transformers, `[in, out]`.
    let config = SMALL.replace("heads = 4", "heads = 4\npositions = \"learned\"");
    std::fs::write(here.join("small.toml"), config).unwrap();
    train(here, "base", &["--steps", "4"]);
    let lora =
        "--init-from base --lora 3 --lora-alpha 6 --lora-targets q,v,up --learning-rate 0.01";
    train(here, "tuned", &lora.split(' ').collect::<Vec<_>>());
    let export = |words: &str| Everburn::line(here, "export").words(words).run();
    for run in ["base", "tuned"] {
        export(&format!("{run} --to hugging-face --output {run}-hf")).succeeded();
    }
    let [base, merged] = ["base-hf", "tuned-hf"]
        .map(|folder| tensors_of(&here.join(folder).join("model.safetensors")));
    export("tuned --adapter --checkpoint 2 --output newest").succeeded();
    export("tuned --adapter --output adapter").succeeded();
    for exported in ["adapter", "newest"] {
        let file = here.join(exported).join("adapter_config.json");
        let config: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        assert_eq!(
            (&config["r"], &config["lora_alpha"]),
            (&6.into(), &12.into())
        );
        assert_eq!(config["rank_pattern"]["transformer.h.1.mlp.c_fc"], 3);
        assert_eq!(config["alpha_pattern"]["transformer.h.1.mlp.c_fc"], 6);
        assert_eq!(config["fan_in_fan_out"], true);
        let targets = config["target_modules"].as_array().unwrap();
        let adapter = tensors_of(&here.join(exported).join("adapter_model.safetensors"));
        assert_eq!((targets.len(), adapter.len()), (4, 8), "{config}");
        for layer in targets.iter().map(|layer| layer.as_str().unwrap()) {
            let factor =
                |name: &str| rows(&adapter[&format!("base_model.model.{layer}.{name}.weight")]);
            let (a, b) = (factor("lora_A"), factor("lora_B"));
            let name = format!("{layer}.weight");
            let (before, after) = (rows(&base[&name]), rows(&merged[&name]));
            let mut largest = 0.0_f64;
            for (input, row) in before.iter().enumerate() {
                for (output, before) in row.iter().enumerate() {
                    let own = b[output].iter().zip(&a).map(|(b, a)| b * a[input]);
                    let beside = before + 2.0 * own.sum::<f64>();
                    largest = largest.max((after[input][output] - before).abs());
                    let apart = (beside - after[input][output]).abs();
                    assert!(
                        apart < 1e-5,
                        "{exported}: {layer} {input} {output}: {apart:e}"
                    );
                }
            }
            assert!(largest > 1e-3, "{layer} has not changed: {largest:e}");
        }
    }
    export("base --adapter").failed_with(2, &["trained without --lora"]);
    export("tuned --adapter --output adapter").failed_with(2, &["something already"]);
    export("tuned --adapter --ema").failed_with(2, &["cannot be used with"]);
    export("tuned").failed_with(2, &["--to"]);
    std::fs::write(here.join("tuned/adapter.safetensors"), [9; 40]).unwrap();
    let damaged = export("tuned --adapter --output another");
    damaged.failed_with(2, &["adapter.safetensors", "too short for its header"]);
}

#[test]
fn learning_rates_fall_from_layer_to_layer() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("small.toml"), SMALL).unwrap();
    train(here, "base", &["--steps", "1"]);
    // A step of plain gradient descent moves a parameter in proportion to its learning rate.
    let one = "--init-from base --steps 1 --optimizer sgd --learning-rate 0.1 --weight-decay 0 \
               --lr-schedule constant";
    let one: Vec<_> = one.split(' ').collect();
    train(here, "even", &one);
    train(
        here,
        "falling",
        &[&one[..], &["--layer-decay", "0.5"]].concat(),
    );
    let [base, even, falling] = ["base", "even", "falling"].map(|run| tensors(here, run));
    for (name, factor) in [
        ("wte.weight", 0.125),
        ("layers.0.attention.q.weight", 0.25),
        ("layers.1.attention.q.weight", 0.5),
        ("norm.weight", 1.0),
    ] {
        let [base, even, falling] = [&base, &even, &falling].map(|run| numbers(&run[name]));
        let moved = |to: &[f64]| {
            let squares = base.iter().zip(to).map(|(from, to)| (from - to).powi(2));
            squares.sum::<f64>().sqrt()
        };
        let found = moved(&falling) / moved(&even);
        assert!((found - factor).abs() < 0.02 * factor, "{name}: {found}");
    }
    for (flags, message) in [
        ("train gpt-nano --layer-decay 0", "layer_decay"),
        ("train mnist --layer-decay 0.5", "one list of layers"),
    ] {
        Everburn::line(here, flags).refused(&[message]);
    }
}
