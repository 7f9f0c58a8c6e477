//! `--shard`: ranks that are processes, each with a part of the training's state.

use std::path::Path;

use everburn_tests::{Everburn, NO_PRESET, Run, assert_refused};

fn train(folder: &Path, name: &str, steps: &str, ranks: &str, flags: &[&str]) -> (Run, String) {
    let ended = Everburn::train(folder, "mnist")
        .words(NO_PRESET)
        .args(["--steps", steps, "--epochs", "2", "--batch-size", "16"])
        .args(["--optimizer", "adam-w"])
        .args(["--log-every", "1", "--run-dir", name, "--ranks", ranks])
        .args(flags)
        .succeed();
    (Run::new(folder.join(name)), ended.stdout)
}

/// What a rank has held, from the report.
fn held(run: &Run, rank: usize, of: &str) -> f64 {
    let report = run.report();
    let held = &report["sharding"]["ranks"][rank][of];
    held.as_f64()
        .unwrap_or_else(|| panic!("no {of} of rank {rank} in {report:#}"))
}

#[test]
fn each_stage_has_the_losses_of_plain_ddp_and_a_share_of_the_memory() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (plain, _) = train(folder, "plain", "20", "2", &[]);
    assert!(plain.report()["sharding"].is_null());
    let (alone, _) = train(folder, "alone", "20", "1", &["--shard", "parameters"]);
    for (stage, ranks, transport) in [
        ("optimizer", "2", "shm"),
        ("gradients", "2", "tcp"),
        ("parameters", "4", "shm"),
    ] {
        let flags = ["--shard", stage, "--transport", transport];
        let (run, printed) = train(folder, stage, "20", ranks, &flags);
        // Another number of ranks adds gradients up in another order, and where one is next to nothing, Adam's step follows its
        // sign.
        let tolerance = if ranks == "2" { 1e-5 } else { 1e-3 };
        run.assert_near(&plain, "step", tolerance);
        let line = format!("(--shard {stage})");
        assert!(printed.contains(&line), "{printed}");
        let world_size: f64 = ranks.parse().unwrap();
        let last = world_size as usize - 1;
        let mut cut = vec!["optimizer"];
        if stage != "optimizer" {
            cut.push("gradients");
        }
        if stage == "parameters" {
            cut.push("parameters");
        }
        for of in cut {
            for rank in [0, last] {
                let share = held(&alone, 0, of) / world_size;
                let own = held(&run, rank, of);
                assert!((own - share).abs() <= 0.1 * share, "{stage}: {own} {share}");
            }
        }
    }
}

#[test]
fn the_state_may_be_in_the_hosts_memory() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (plain, _) = train(folder, "plain", "6", "2", &[]);
    let flags = ["--shard", "gradients", "--offload-optimizer"];
    let (run, printed) = train(folder, "run", "6", "2", &flags);
    run.assert_near(&plain, "step", 1e-5);
    assert!(printed.contains("(in the host's memory)"), "{printed}");
}

#[test]
fn what_does_not_go_together_is_refused_before_anything_starts() {
    assert_refused(
        "mnist",
        "
        --ranks 2 --shard zero-3 | none, optimizer, gradients or parameters
        --ranks 2 --shard gradients --elastic 1:2 | --elastic and --shard gradients | resume
        --ranks 2 --shard gradients --mesh pipeline=2 | --shard | do not go together
        --ranks 2 --shard gradients --virtual-ranks 2 | --shard gradients and --virtual-ranks 2
        --ranks 2 --shard gradients --local-steps 2 | --shard gradients and --local-steps 2
        --ranks 2 --shard gradients --hash-every 1 | --hash-every
        --ranks 2 --shard parameters --ema 0.9 | --shard parameters and --ema
        --ranks 2 --shard gradients --communication-hook power-sgd:2 | --communication-hook power-sgd:2 | --shard optimizer
        --ranks 2 --shard gradients --no-overlap | --no-overlap | --shard optimizer
        --ranks 2 --shard gradients --on-divergence repair | --on-divergence repair
        --ranks 2 --offload-optimizer | --offload-optimizer | --shard optimizer
        ",
    );
}
