//! Nothing is left behind, however often runs start and however they end.

use std::collections::BTreeSet;
use std::path::Path;

use everburn_tests::{Everburn, ORPHAN_DEADLINE, Run};
use rustix::process::Signal;

const CYCLES: usize = 200;
const KILLS: usize = 20;

/// Files of shared memory that are ours: a neighbour's come and go. (A segment of ours has no name; it lives as
/// long as a process that has it, and of those none is left.)
fn shared_memory_files() -> BTreeSet<String> {
    let entries = std::fs::read_dir("/dev/shm").into_iter().flatten();
    let names = entries.flatten().map(|entry| entry.file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    names
        .filter(|name| name.to_lowercase().contains("everburn"))
        .collect()
}

fn two_ranks(folder: &Path, run: &str) -> Everburn {
    Everburn::train_for_long(folder, "mlp").args(["--ranks", "2", "--run-dir", run])
}

#[test]
fn two_hundred_runs_and_twenty_kills_leave_nothing() {
    let before = shared_memory_files();
    for cycle in 0..CYCLES {
        let folder = tempfile::tempdir().unwrap();
        let job = two_ranks(folder.path(), "run")
            .args(["--steps", "3"])
            .start();
        let ended = job.wait_until_gone(ORPHAN_DEADLINE * 4).succeeded();
        assert!(ended.stdout.contains("2 ranks"), "cycle {cycle}: {ended}");
    }
    for kill in 0..KILLS {
        let folder = tempfile::tempdir().unwrap();
        let mut job = two_ranks(folder.path(), "run").start();
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
    }
    assert_eq!(shared_memory_files(), before);
}
