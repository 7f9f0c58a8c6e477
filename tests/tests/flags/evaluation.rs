//! `eval`: the flags of its ranks.

use everburn_tests::{AssertContains, DEADLINE, Everburn, Process, holds_within};
use rustix::process::Signal;

use crate::{shares_memory, train};

/// The names of the threads of a process that lives, as far as the system keeps them: 15 characters.
fn threads(process: Process) -> Vec<String> {
    let folder = format!("/proc/{}/task", process.pid.as_raw_nonzero());
    let threads = std::fs::read_dir(folder).into_iter().flatten();
    let names =
        threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
    names.map(|name| name.trim().to_string()).collect()
}

/// An evaluation of a run that lasts a moment, on two ranks.
fn evaluation(folder: &std::path::Path, flags: &[&str]) -> Everburn {
    Everburn::line(folder, "eval run --ranks 2 --json --data synthetic")
        .words("--test-samples 40000")
        .args(flags)
}

#[test]
fn ranks_reach_each_other_as_they_are_told_and_find_one_that_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), "mnist-bn", "run", &["--steps", "1"]);
    let flags = ["--transport", "tcp", "--backend", "host"];
    let flags = [&flags[..], &["--heartbeat-timeout", "1"]].concat();
    let job = evaluation(folder.path(), &flags).start();
    let second = || job.processes().into_iter().find(|it| it.rank == Some(1));
    // It has met the other one as soon as it watches over it.
    let has_met = |process: Process| threads(process).contains(&"everburn-heartb".to_string());
    let met = holds_within(DEADLINE, || second().is_some_and(has_met));
    assert!(met, "{}", job.output());
    let second = job.rank(1);
    second.signal(Signal::STOP);
    assert!(!shares_memory(second), "{}", job.output());
    let told = second.file("cmdline");
    told.assert_contains(["--backend host", "--heartbeat-timeout 1"]);
    let ended = job.wait();
    ended.failed_with(76, &["rank 1 stalled", "no heartbeat"]);
}

#[test]
fn settings_of_the_task_are_set_as_flags_set_them_and_others_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), "mlp", "run", &["--steps", "1"]);
    for (flags, message) in [
        (["--backend", "nccl"], "--backend nccl cannot be used"),
        (["--elastic", "1:2"], "--elastic is for training"),
        (
            ["--set", "training.epochs=5"],
            "[training] is no section of the task mlp",
        ),
        (
            ["--set", "data.nothing=5"],
            "--set data.nothing=5: unknown key",
        ),
    ] {
        evaluation(folder.path(), &flags).refused(&[message]);
    }
    let tested = |ranks: &str, how: &[&str]| {
        let job = Everburn::new(folder.path(), ["eval", "run", "--json", "--ranks", ranks]);
        job.args(how.iter().copied()).succeed().stdout
    };
    let flags = tested("1", &["--data", "synthetic", "--test-samples", "30"]);
    let keys = ["data.name=synthetic", "data.test_samples=30"];
    let set = tested("1", &["--set", keys[0], "--set", keys[1]]);
    assert!(set.contains("\"test_samples\":30,"), "{set}");
    assert_eq!(set, flags);
    let on_two_ranks = tested("2", &["--set", keys[0], "--set", keys[1]]);
    on_two_ranks.assert_contains(["\"test_samples\":30,"]);
}
