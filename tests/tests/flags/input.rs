//! Flags about the way of samples to the device, of losses from it, and of what is compiled for it.

use everburn_tests::{Everburn, Run, skip};

use crate::recording::Recording;
use crate::{FEW, losses, train};

#[test]
fn batches_are_assembled_by_threads_ahead_of_the_training_or_picked_on_the_device() {
    let folder = tempfile::tempdir().unwrap();
    let train = |name: &str, more: &[&str]| {
        let flags = ["--epochs", "2", "--threads-per-rank", "1"];
        let (run, _) = train(folder.path(), "mlp", name, &[&flags[..], more].concat());
        run
    };
    let plain = train("plain", &[]);
    assert!(!plain.path.join("profile").exists());
    let ahead = ["--profile", "--workers", "3", "--prefetch", "1"];
    let ahead = train("ahead", &ahead);
    let recording = Recording::of(&ahead, 0);
    for (fact, expected) in [("threads", 1), ("workers", 3), ("prefetch", 1)] {
        assert_eq!(recording.fact(fact), expected, "{fact}");
    }
    // A thread of each epoch: others would find no room for a batch.
    assert_eq!(recording.loaders(), (2, 6));

    let there = ["--profile", "--workers", "3", "--data-on-device"];
    let there = train("there", &there);
    let recording = Recording::of(&there, 0);
    assert_eq!(recording.fact("workers"), 0, "they have nothing to do");
    assert_eq!(recording.loaders(), (0, 0));
    for other in [&ahead, &there] {
        assert_eq!(losses(other), losses(&plain));
    }
}

#[test]
fn losses_are_read_with_each_step_or_those_of_some_steps_together() {
    let folder = tempfile::tempdir().unwrap();
    let train = |when: &str| {
        let flags = ["--epochs", "4", "--batch-size", "8", "--read-metrics", when];
        train(folder.path(), "mlp", when, &flags).0
    };
    // Of steps whose losses are read together nobody knows what each has taken.
    let together = |run: &Run| {
        let seconds = run.values("step", "seconds");
        seconds.windows(2).filter(|pair| pair[0] == pair[1]).count()
    };
    let (each, late) = (train("each-step"), train("late"));
    assert_eq!(losses(&each).len(), 48);
    assert_eq!(losses(&each), losses(&late));
    assert!(together(&late) > together(&each), "{}", together(&late));
}

#[test]
fn a_warm_up_trains_nothing_and_says_where_it_keeps_what_it_has_compiled() {
    let folder = tempfile::tempdir().unwrap();
    let ended = Everburn::new(folder.path(), ["train", "mlp", "--warmup"])
        .words(FEW)
        .args(["--kernel-cache", "kernels", "--run-dir", "run"])
        .succeed();
    ended.prints(["kernels for 2 batch shapes, ready after"]);
    assert!(!ended.stdout.contains("epoch"), "{ended}");
    assert!(!folder.path().join("run").exists(), "{ended}");
    if ended.stdout.contains("built for no GPUs") {
        skip("--kernel-cache", "everburn was built for no GPUs");
        return;
    }
    ended.prints(["kept in kernels for"]);
    assert!(folder.path().join("kernels").is_dir(), "{ended}");
}
