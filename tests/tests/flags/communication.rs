//! Flags about the way of gradients to other ranks.

use std::path::Path;

use everburn_tests::{Everburn, Run};
use rustix::process::Signal;

use crate::recording::Recording;
use crate::{FEW, losses, shares_memory, train};

/// A decoder of 12 MiB, of which two ranks learn two windows each.
const LARGE_GPT: &str = "model = \"gpt-nano\"\n\
    [gpt]\ncontext = 16\nwidth = 256\nlayers = 4\nheads = 4\ndropout = 0.0\n\
    [data]\nname = \"embedded\"\ntrain_samples = 10\ntest_samples = 2\n\
    [training]\nbatch_size = 4\nsteps = 2\nvalidation_samples = 2\nlog_every = 1\n\
    [training.optimizer]\nkind = \"sgd\"\n";

fn train_large(folder: &Path, name: &str, flags: &[&str]) -> (Run, Recording) {
    std::fs::write(folder.join("large.toml"), LARGE_GPT).unwrap();
    Everburn::new(folder, ["train", "--config", "large.toml", "--profile"])
        .args(["--ranks", "2", "--run-dir", name])
        .args(flags)
        .succeed();
    let run = Run::new(folder.join(name));
    let recording = Recording::of(&run, 0);
    (run, recording)
}

#[test]
fn gradients_travel_in_buckets_of_a_size_while_the_backward_pass_goes_on_or_behind_it() {
    let folder = tempfile::tempdir().unwrap();
    let (usual, recording) = train_large(folder.path(), "usual", &[]);
    let (begun, finished) = recording.buckets();
    let early = begun.iter().filter(|at| **at < finished).count();
    assert!(early > begun.len() / 2, "{begun:?} {finished}");
    let buckets = begun.len();

    let (small, recording) = train_large(folder.path(), "small", &["--bucket-mib", "1"]);
    let (begun, _) = recording.buckets();
    assert!(begun.len() > buckets, "{} {buckets}", begun.len());

    let (behind, recording) = train_large(folder.path(), "behind", &["--no-overlap"]);
    let (begun, finished) = recording.buckets();
    let last_step = &begun[begun.len() / 2..];
    assert_eq!(begun.len(), buckets);
    assert!(
        last_step.iter().all(|at| *at >= finished),
        "{last_step:?} {finished}"
    );
    for other in [&small, &behind] {
        assert_eq!(losses(other), losses(&usual));
    }
}

#[test]
fn ranks_that_use_the_same_parameters_in_each_step_need_not_tell_which() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--ranks", "2", "--epochs", "1"];
    let (usual, _) = train(folder.path(), "mlp", "usual", &flags);
    let flags = [&flags[..], &["--static-graph"]].concat();
    let (fixed, _) = train(folder.path(), "mlp", "static", &flags);
    assert_eq!(losses(&usual), losses(&fixed));
    let (usual, fixed) = [usual, fixed]
        .map(|run| run.values("step", "gradient_bytes"))
        .into();
    // Six parameters, a number for each.
    let (numbers, told) = (4.0 * 235_146.0, 4.0 * 6.0);
    assert_eq!(usual, [numbers + told; 3]);
    assert_eq!(fixed, [numbers + told, numbers, numbers], "once, to know");
}

#[test]
fn ranks_reach_each_other_as_they_are_told() {
    for (transport, in_memory) in [("tcp", false), ("shm", true)] {
        let folder = tempfile::tempdir().unwrap();
        let mut job = Everburn::train_for_long(folder.path(), "mlp")
            .args(["--ranks", "2", "--run-dir", "run"])
            .args(["--transport", transport])
            .start();
        let run = Run::new(folder.path().join("run"));
        job.wait_for("an epoch", || run.epochs() > 0);
        assert_eq!(shares_memory(job.rank(1)), in_memory, "{transport}");
        job.signal(Signal::INT);
        assert_eq!(job.wait().code(), 130);
    }
}

#[test]
fn gradients_of_processors_go_through_host_memory_and_by_no_other_way() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--ranks", "2", "--steps", "2"];
    let (usual, _) = train(folder.path(), "mlp", "usual", &flags);
    let flags = [&flags[..], &["--backend", "host"]].concat();
    let (host, _) = train(folder.path(), "mlp", "host", &flags);
    assert!(host.text("config.toml").contains("backend = \"host\""));
    assert_eq!(losses(&usual), losses(&host));
    Everburn::new(folder.path(), ["train", "mlp", "--ranks", "2"])
        .words(FEW)
        .args(["--backend", "nccl"])
        .refused(&["--backend nccl cannot be used", "--devices names flex"]);
}
