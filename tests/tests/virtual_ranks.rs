//! Real ranks over virtual ones: what draws random numbers has the same bits too.

use std::path::Path;

use everburn_tests::{Everburn, Run, assert_refused};

/// A training of a net with batch norms and dropout.
fn train(folder: &Path, name: &str, flags: &str) -> Run {
    Everburn::line(folder, "train mnist-bn --data synthetic")
        .args(["--train-samples", "96", "--test-samples", "20"])
        .words("--batch-size 24 --epochs 3 --lr-schedule constant")
        .args(["--hash-every", "1", "--run-dir", name])
        .words(flags)
        .succeed();
    Run::new(folder.join(name))
}

#[test]
fn a_training_with_dropout_has_the_same_bits_on_one_two_and_three_ranks_and_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let train = |name: &str, flags: &str| train(folder.path(), name, flags);
    let alone = train("one", "--steps 8 --virtual-ranks 3").hashes();
    assert_eq!(alone.len(), 8);
    for (ranks, transport) in [("2", "shm"), ("3", "tcp")] {
        let flags = format!("--steps 8 --virtual-ranks 3 --ranks {ranks} --transport {transport}");
        assert_eq!(train(ranks, &flags).hashes(), alone, "{ranks} ranks");
    }
    let free = train("free", "--steps 8 --ranks 2").hashes();
    assert_ne!(free, alone, "without logical shards the shares are others");

    // Nine tenths of 96 samples are four batches, so the second step is in the middle of an epoch.
    let flags = "--steps 3 --virtual-ranks 3 --ranks 2 --checkpoint-every 2steps";
    let run = train("run", flags);
    assert!(
        run.path
            .join("checkpoints/epoch-0000-batch-000002")
            .is_dir()
    );
    let ended = Everburn::line(folder.path(), "train --resume --run-dir run --steps 8")
        .words("--ranks 3")
        .succeed();
    assert_eq!(run.hashes(), alone, "{ended}");
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
        --ranks 2 --virtual-ranks 4 --batch-size 3 | --batch-size 4
        --virtual-ranks 4 --accumulate 2 | --accumulate 2 and --virtual-ranks 4
        --virtual-ranks 4 --sync-batch-norm | --sync-batch-norm
        --virtual-ranks 4 --hash-every 0 | --hash-every
        --ranks 2 --pipeline 2 --virtual-ranks 2 | --mesh | --virtual-ranks 2 do not go together
        ",
    );
}
