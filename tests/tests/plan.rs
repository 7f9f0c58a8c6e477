//! `train --plan`: what a run would take, before there is one.

use std::path::Path;

use everburn_tests::{Ended, Everburn};

/// Figures of `mnist`, a sample each: the second convolution takes longest.
const FIGURES: &str = r#"
link = { latency = 0.0001, bytes_per_second = 1e9 }
blocks = [
  { name = "conv1", forward = 0.001, activation_bytes = 40000, output_bytes = 11520 },
  { name = "conv2", forward = 0.003, activation_bytes = 50000, output_bytes = 1280 },
  { name = "fc1", forward = 0.0005, backward = 0.001, activation_bytes = 800, output_bytes = 200 },
  { name = "fc2", forward = 0.0005, activation_bytes = 40, output_bytes = 40 },
]
"#;

fn plan(folder: &Path, flags: &[&str]) -> Ended {
    std::fs::write(folder.join("figures.toml"), FIGURES).unwrap();
    let ended = Everburn::line(folder, "train mnist --plan --batch-size 64")
        .args(flags)
        .run();
    assert!(!folder.join("runs").exists(), "{ended}");
    ended
}

#[test]
fn a_pipeline_is_planned_with_given_figures() {
    let folder = tempfile::tempdir().unwrap();
    let flags = "--plan-figures figures.toml --ranks 4 --pipeline 2";
    let flags: Vec<_> = flags.split(' ').collect();
    let planned = plan(folder.path(), &flags).succeeded();
    assert_eq!(planned.stdout, PIPELINE, "{planned}");
}

const PIPELINE: &str = "\
mnist on 4 ranks: data=2,pipeline=2,tensor=1, 1f1b; a global batch of 64, 8 micro-batches of 4 samples

ranks  stages  parameters  gradients  optimizer  activations    total
0, 1   0         1.02 KiB   1.02 KiB   2.03 KiB      312 KiB  317 KiB
2, 3   1         84.3 KiB   84.3 KiB    169 KiB      199 KiB  536 KiB

ranks  buckets  sent on  sent to replicas    idle  blocks
0, 1         1  360 KiB          1.02 KiB  75.8 %  conv1
2, 3         1  360 KiB          84.3 KiB   3.1 %  conv2 to fc2

time per step: 397 ms, 161 samples/s (396 ms of passes, 286 µs of waiting for gradients)
bubble: 39.4 %; 11.1 % in theory, if stages were equal
times and activations: as figures.toml says
between ranks: 100 µs per message, 954 MiB per second
not counted: the optimizer's time, reading data, workspace of operations
";

#[test]
fn replicas_are_planned_with_given_figures() {
    let folder = tempfile::tempdir().unwrap();
    let flags =
        "--plan-figures figures.toml --mesh data=4 --ranks 4 --accumulate 2 --optimizer sgd";
    let flags: Vec<_> = flags.split(' ').collect();
    let planned = plan(folder.path(), &flags).succeeded();
    assert_eq!(planned.stdout, REPLICAS, "{planned}");
}

const REPLICAS: &str = "\
mnist on 4 ranks: data=4,pipeline=1,tensor=1; a global batch of 64, 2 micro-batches of 8 samples

ranks   stages  parameters  gradients  optimizer  activations    total
0 to 3  0         85.3 KiB   85.3 KiB        0 B      710 KiB  880 KiB

ranks   buckets  sent on  sent to replicas   idle  blocks
0 to 3        1      0 B           128 KiB  0.0 %  conv1 to fc2

time per step: 240 ms, 266 samples/s (240 ms of passes, 331 µs of waiting for gradients)
times and activations: as figures.toml says
between ranks: 100 µs per message, 954 MiB per second
not counted: the optimizer's time, reading data, workspace of operations
";

#[test]
fn without_figures_blocks_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--ranks", "2", "--pipeline", "2", "--stages", "fc1"];
    let planned = plan(folder.path(), &flags).succeeded();
    planned.prints([
        "conv1 to conv2",
        "fc1 to fc2",
        "measured here, each block on 8 samples",
    ]);
    // A step takes some time, whatever the machine.
    assert!(!planned.stdout.contains("time per step: 0 s"), "{planned}");
}

#[test]
fn what_cannot_be_planned_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |flags: &[&str], messages: &[&str]| {
        let ended = plan(folder.path(), flags);
        ended.failed_with(2, messages);
        assert!(!ended.stderr.contains("panicked"), "{ended}");
    };
    let model_parallel = ["--strategy", "model-parallel", "--devices", "flex,flex"];
    refused(&model_parallel, &["--plan", "--pipeline"]);
    refused(
        &["--plan-figures", "none.toml"],
        &["none.toml has no figures"],
    );
    std::fs::write(folder.path().join("other.toml"), "blocks = []").unwrap();
    let messages = ["the blocks of the model are conv1, conv2, fc1, fc2"];
    refused(&["--plan-figures", "other.toml"], &messages);
}
