//! Flags about the samples that a pass sees: a batch norm shows how many these are.

use std::path::Path;

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
