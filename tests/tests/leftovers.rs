//! Nothing is left behind, however often runs start and however they end.

use std::fs;
use std::path::Path;

use everburn_tests::{Everburn, ORPHAN_DEADLINE, Run};
use rustix::process::Signal;

/// A job whose temporary files have a folder of their own. Shared memory has no name: it lives as long as a
/// process that has it, and none is left.
fn two_ranks(folder: &Path) -> Everburn {
    let temporary = folder.join("temporary");
    fs::create_dir(&temporary).unwrap();
    Everburn::train_for_long(folder, "mlp")
        .args(["--ranks", "2", "--run-dir", "run"])
        .env("TMPDIR", temporary)
}

/// Everything in the job's folder, below its run directory excepted.
fn nothing_but_the_run_is_left(folder: &Path, what: &str) {
    let names = |folder: &Path| -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.collect()
    };
    assert!(names(folder).contains(&"run".to_owned()), "{what}");
    assert_eq!(names(&folder.join("temporary")), [""; 0], "{what}");
}

#[test]
fn three_runs_and_three_kills_leave_nothing() {
    leave_nothing(3, 3);
}

#[test]
#[ignore = "a minute: a step of `cargo xtask check --long`"]
fn long_two_hundred_runs_and_twenty_kills_leave_nothing() {
    leave_nothing(200, 20);
}

fn leave_nothing(runs: usize, kills: usize) {
    for cycle in 0..runs {
        let folder = tempfile::tempdir().unwrap();
        let job = two_ranks(folder.path()).args(["--steps", "3"]).start();
        let ended = job.wait_until_gone(ORPHAN_DEADLINE * 4).succeeded();
        assert!(ended.stdout.contains("2 ranks"), "cycle {cycle}: {ended}");
        nothing_but_the_run_is_left(folder.path(), &format!("cycle {cycle}"));
    }
    for kill in 0..kills {
        let folder = tempfile::tempdir().unwrap();
        let mut job = two_ranks(folder.path()).start();
        let run = Run::new(folder.path().join("run"));
        job.wait_for("an epoch", move || run.epochs() >= 1);
        match kill % 3 {
            0 => job.signal(Signal::KILL),
            rank => job.rank(rank - 1).signal(Signal::KILL),
        }
        assert_eq!(
            job.wait_until_gone(ORPHAN_DEADLINE).code(),
            137,
            "kill {kill}"
        );
        nothing_but_the_run_is_left(folder.path(), &format!("kill {kill}"));
    }
}
