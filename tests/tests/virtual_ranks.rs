//! Real ranks over virtual ones: what draws random numbers has the same bits too, and is audited by them.

use std::path::Path;

use everburn_tests::{Everburn, Run, TOKEN, assert_refused};

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

#[test]
fn a_key_that_is_missing_or_signs_nothing_is_refused_before_anything_starts() {
    assert_refused(
        "mlp",
        "
        --hash-every 1 --hash-key none | reading none failed | No such file
        --hash-key none | --hash-key signs hashes | --hash-every
        ",
    );
}

#[test]
fn a_run_is_audited_on_other_numbers_of_ranks_and_changes_of_it_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    std::fs::write(here.join("key"), TOKEN).unwrap();
    let run = train(here, "run", "--virtual-ranks 3 --hash-key key");
    let audit = |flags: &str| Everburn::line(here, "audit run").words(flags);
    let ended = audit("--from 10 --ranks 2 --key key").succeed();
    ended.prints([
        "mnist-bn: 12 lines of steps 1 to 12, unchanged, signed with this key; chain ",
        "  trained parameters as recorded: epoch-000",
        ", model.safetensors\n  steps 9 to 12 on 2 ranks, from the checkpoint epoch-0002\n",
        "the replay has the recorded bits\n",
    ]);
    let ended = audit("--to 2 --ranks 3").succeed();
    ended.prints(["  steps 1 to 2 on 3 ranks, from the start\n"]);

    let ended = audit("--to 2 --run-timeout 0").run();
    ended.failed_with(76, &["the replay was ended: it took longer than 0 s"]);
    let ended = audit("--to 2 -- --learning-rate 0.5").run();
    ended.failed_with(1, &[]);
    ended.prints(["the replay DIFFERS at step 1: `", " in the record and "]);
    audit("--from 13").refused(&["hashes.jsonl has steps 1 to 12"]);

    let hashes = run.text("hashes.jsonl");
    // A digit of the loss.
    let digit = hashes.find("\"step\":5,").unwrap() + r#""step":5,"loss":"000"#.len();
    let mut changed = hashes.clone().into_bytes();
    changed[digit] ^= 1;
    std::fs::write(run.path.join("hashes.jsonl"), changed).unwrap();
    let ended = audit("--no-replay").run();
    ended.failed_with(1, &["step 5 (line 5) breaks the chain"]);
    std::fs::write(run.path.join("hashes.jsonl"), hashes).unwrap();

    let earlier = std::fs::read(run.checkpoint(2).join("model.safetensors")).unwrap();
    for file in [
        "checkpoints/epoch-0003/model.safetensors",
        "model.safetensors",
    ] {
        let path = run.path.join(file);
        let own = std::fs::read(&path).unwrap();
        std::fs::write(&path, &earlier).unwrap();
        let ended = audit("--no-replay").run();
        ended.failed_with(1, &[file, " has other values of `", "` than step 12 of "]);
        std::fs::write(&path, own).unwrap();
    }

    let path = run.checkpoint(2).join("optimizer.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(path, bytes).unwrap();
    let damaged =
        "would begin after step 8: the checkpoint run/checkpoints/epoch-0002 cannot be used";
    let advice = "give --from a recorded step up to 8, or move this checkpoint away";
    audit("--from 10").refused(&[damaged, "is damaged: the tensor ", advice]);
}
