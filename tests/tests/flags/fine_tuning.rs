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
    let train = ["train", "--config", "small.toml", "--run-dir", run];
    let train = Everburn::new(folder, train).args(flags);
    train.run().succeeded();
    Run::new(folder.join(run))
}

fn losses(run: &Run) -> Vec<f64> {
    let losses = run.losses("step").into_iter();
    losses.map(|(_, loss)| loss).collect()
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
    Everburn::new(folder, export).run().succeeded();
    let bytes = std::fs::read(folder.join(file)).unwrap();
    let (length, rest) = bytes.split_at(8);
    let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&rest[..length]).unwrap();
    let tensors = header.as_object().unwrap().iter();
    let tensors = tensors.filter(|(name, _)| *name != "__metadata__");
    let bytes_of = |tensor: &Value| {
        let [from, to] = [0, 1].map(|end| tensor["data_offsets"][end].as_u64().unwrap() as usize);
        rest[length + from..length + to].to_vec()
    };
    tensors
        .map(|(name, tensor)| (name.clone(), bytes_of(tensor)))
        .collect()
}

fn test_loss(folder: &Path, run: &str, flags: &[&str]) -> f64 {
    let eval = Everburn::new(folder, ["eval", run, "--json"]).args(flags);
    let ended = eval.run().succeeded();
    let result: Value = serde_json::from_str(&ended.stdout).unwrap();
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
    let resume = ["train", "--run-dir", "parts", "--resume", "--epochs", "2"];
    Everburn::new(here, resume).run().succeeded();
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
fn low_rank_adaptation_that_cannot_be_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("small.toml"), SMALL).unwrap();
    train(here, "base", &["--steps", "1"]);
    for (flags, message) in [
        (&["--lora", "2"][..], "--lora adapts pretrained weights"),
        (
            &["--init-from", "base", "--lora", "0"],
            "rank must be at least 1",
        ),
        (
            &["--init-from", "base", "--lora-alpha", "4"],
            "missing field `rank`",
        ),
        (
            &["--init-from", "base", "--lora", "2", "--lora-alpha", "0"],
            "alpha must be a number above 0",
        ),
        (
            &[
                "--init-from",
                "base",
                "--lora",
                "2",
                "--lora-targets",
                "query",
            ],
            "names no weight of the model",
        ),
        (
            &["--init-from", "base", "--lora", "2", "--ema", "0.9"],
            "do not go together",
        ),
        (
            &[
                "--init-from",
                "base",
                "--lora",
                "2",
                "--ranks",
                "2",
                "--pipeline",
                "2",
            ],
            "do not go together",
        ),
    ] {
        let train = ["train", "--config", "small.toml", "--run-dir", "never"];
        let ended = Everburn::new(here, train).args(flags).run();
        ended.failed_with(ended.code().max(1), &[message]);
    }
}
