//! Real ranks over virtual ones: what draws random numbers has the same bits too.

use std::path::Path;

use everburn_tests::{Everburn, Run, assert_refused};

/// The fingerprints of each step of a net with batch norms and dropout.
fn hashes(folder: &Path, name: &str, flags: &[&str]) -> Vec<String> {
    Everburn::line(folder, "train mnist-bn --data synthetic --steps 8")
        .args(["--train-samples", "96", "--test-samples", "20"])
        .words("--batch-size 24 --epochs 3 --lr-schedule constant")
        .args(["--hash-every", "1", "--run-dir", name])
        .args(flags)
        .succeed();
    let text = Run::new(folder.join(name)).text("hashes.jsonl");
    text.lines().map(ToString::to_string).collect()
}

#[test]
fn a_training_with_dropout_has_the_same_bits_on_one_two_and_three_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let alone = hashes(folder.path(), "one", &["--virtual-ranks", "3"]);
    assert_eq!(alone.len(), 8);
    for (name, ranks, transport) in [("two", "2", "shm"), ("three", "3", "tcp")] {
        let flags = [
            "--virtual-ranks",
            "3",
            "--ranks",
            ranks,
            "--transport",
            transport,
        ];
        assert_eq!(hashes(folder.path(), name, &flags), alone, "{ranks} ranks");
    }
    let free = hashes(folder.path(), "free", &["--ranks", "2"]);
    assert_ne!(free, alone, "without logical shards the shares are others");
}

#[test]
fn a_run_goes_on_within_an_epoch_on_another_number_of_ranks_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    let whole = hashes(folder.path(), "whole", &["--virtual-ranks", "3"]);
    // Nine tenths of 96 samples are four batches, so the second step is in the middle of an epoch.
    Everburn::line(folder.path(), "train mnist-bn --data synthetic --steps 3")
        .words("--lr-schedule constant --train-samples 96 --test-samples 20")
        .words("--batch-size 24 --epochs 3 --virtual-ranks 3")
        .words("--hash-every 1 --run-dir run --ranks 2 --checkpoint-every 2steps")
        .succeed();
    let run = Run::new(folder.path().join("run"));
    assert!(
        run.path
            .join("checkpoints/epoch-0000-batch-000002")
            .is_dir()
    );
    let ended = Everburn::line(folder.path(), "train --resume --run-dir run --steps 8")
        .words("--ranks 3")
        .succeed();
    let text = run.text("hashes.jsonl");
    let gone_on = text.lines().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(gone_on, whole, "{ended}");
    assert_eq!(
        run.values("train", "samples"),
        [87.0, 87.0],
        "what came before the checkpoint counts"
    );
}

#[test]
fn virtual_ranks_that_cannot_be_shared_out_are_refused_before_anything_starts() {
    assert_refused(
        "mnist",
        "
        --ranks 3 --virtual-ranks 2 | 2 logical shards cannot be shared out to 3 ranks | --virtual-ranks 3
        --virtual-ranks 4 --accumulate 2 | --accumulate 2 and --virtual-ranks 4
        --ranks 2 --pipeline 2 --virtual-ranks 2 | --mesh | --virtual-ranks 2 do not go together
        ",
    );
}
