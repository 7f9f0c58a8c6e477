//! Flags about the samples that a pass sees: a batch norm shows how many these are.

use std::path::Path;

use everburn_tests::{Run, assert_refused, json_lines};

use crate::{are_near, losses, train};

/// The loss of the first step of a model with batch norms and without dropout.
fn first_loss(folder: &Path, name: &str, flags: &[&str]) -> f64 {
    let flags = [&["--steps", "1"], flags].concat();
    let (run, _) = train(folder, "two-part-resnet", name, &flags);
    losses(&run)[0]
}

#[test]
fn a_batch_norm_sees_a_part_of_a_share_a_share_or_the_samples_of_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let loss = |name: &str, flags: &[&str]| first_loss(folder.path(), name, flags);
    let whole = loss("whole", &[]);
    let halves = loss("halves", &["--accumulate", "2"]);
    assert!(!are_near(&[whole], &[halves]), "{whole} {halves}");
    // Half a batch: what a rank of two has, or a micro-batch of two.
    let ranks = loss("ranks", &["--ranks", "2"]);
    assert!(are_near(&[ranks], &[halves]), "{ranks} {halves}");
    let pipeline = ["--ranks", "2", "--pipeline", "2", "--micro-batches"];
    for (count, expected) in [("1", whole), ("2", halves)] {
        let flags = [&pipeline[..], &[count]].concat();
        let found = loss(&format!("micro-{count}"), &flags);
        assert!(are_near(&[found], &[expected]), "{found} {expected}");
    }
    let synced = loss("synced", &["--ranks", "2", "--sync-batch-norm"]);
    assert!(are_near(&[synced], &[whole]), "{synced} {whole}");
}

#[test]
fn running_statistics_are_the_mean_of_all_ranks_or_those_of_rank_0() {
    let folder = tempfile::tempdir().unwrap();
    let train = |name: &str, buffers: &[&str]| {
        let flags = ["--ranks", "2", "--epochs", "1"];
        let flags = [&flags[..], buffers].concat();
        let (run, _) = train(folder.path(), "mnist-bn", name, &flags);
        (losses(&run), run.losses("validation"))
    };
    let usual = train("usual", &[]);
    let average = train("average", &["--buffers", "average"]);
    let broadcast = train("broadcast", &["--buffers", "broadcast"]);
    assert_eq!(usual, average);
    // In a training step nobody looks at them.
    assert_eq!(average.0, broadcast.0);
    assert_ne!(average.1, broadcast.1);
}

#[test]
fn ranks_share_samples_by_weights_or_speed_and_learn_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let train = |name: &str, flags: &[&str]| {
        let usual = ["--ranks", "2", "--lr-schedule", "constant"];
        train(folder.path(), "mlp", name, &[&usual[..], flags].concat()).0
    };
    let samples = |run: &Run| {
        let lines = json_lines(&run.text("ranks.jsonl"));
        [0, 1].map(|rank| lines[0]["ranks"][rank]["samples"].as_u64().unwrap())
    };
    let equal = train("equal", &["--epochs", "2"]);
    assert_eq!(samples(&equal), [16, 16]);
    let weighted = train("weighted", &["--epochs", "2", "--balance", "3,1"]);
    assert_eq!(samples(&weighted), [24, 8]);
    for kind in ["step", "validation"] {
        let [ours, theirs] = [&equal, &weighted].map(|run| run.values(kind, "loss"));
        assert!(are_near(&ours, &theirs), "{kind}: {ours:?} {theirs:?}");
    }
    // After step 20 shares may be any, and are those of all samples.
    let auto = train("auto", &["--balance", "auto", "--epochs", "8"]);
    assert_eq!(
        losses(&auto)[..6],
        losses(&equal),
        "equal shares until then"
    );
    assert_eq!(losses(&auto).len(), 24);
    for line in json_lines(&auto.text("ranks.jsonl")) {
        let samples = line["ranks"].as_array().unwrap().iter();
        let samples = samples.map(|rank| rank["samples"].as_u64().unwrap());
        assert_eq!(samples.sum::<u64>(), 32, "{line}");
    }
    let shards = ["--epochs", "1", "--virtual-ranks", "4"];
    let equal = train("shards", &shards);
    let weighted = train(
        "weighted-shards",
        &[&shards[..], &["--balance", "3,1"]].concat(),
    );
    assert_eq!(samples(&weighted), [24, 8]);
    assert_eq!(losses(&weighted), losses(&equal), "to the bit");
}

#[test]
fn shares_that_cannot_be_are_refused_before_anything_starts() {
    assert_refused(
        "mlp",
        "
        --ranks 2 --balance 3,1,1 | --balance 3,1,1 is for 3 ranks, and there are 2
        --ranks 2 --balance auto --local-steps 4 | --balance auto and --local-steps 4 do not go together
        ",
    );
}
