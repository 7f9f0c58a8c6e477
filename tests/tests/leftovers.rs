//! Nothing is left behind, however often runs start and however they end.

use std::collections::BTreeSet;
use std::path::Path;

use everburn_tests::{Everburn, ORPHAN_DEADLINE, Run};
use rustix::process::Signal;

const CYCLES: usize = 200;
const KILLS: usize = 20;

/// More than the machine's shared memory may grow by: a tenth of what as many lost segments of two
/// ranks would hold.
const TOLERATED_GROWTH: u64 = 32 << 20;

/// Files of shared memory. (A segment that has no name shows in [`shared_memory`] only.)
fn shared_memory_files() -> BTreeSet<String> {
    names("/dev/shm")
}

fn names(folder: &str) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name());
    names
        .map(|name| name.to_string_lossy().into_owned())
        .collect()
}

/// The machine's shared memory that is in use, files without a name included, in bytes.
fn shared_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find(|line| line.starts_with("Shmem:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1));
    1024 * kilobytes.unwrap().parse::<u64>().unwrap()
}

fn two_ranks(folder: &Path, run: &str) -> Everburn {
    Everburn::train_for_long(folder, "mlp").args(["--ranks", "2", "--run-dir", run])
}

#[test]
fn two_hundred_runs_and_twenty_kills_leave_nothing() {
    let before = shared_memory_files();
    let memory_before = shared_memory();
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
    let growth = shared_memory().saturating_sub(memory_before);
    assert!(
        growth < TOLERATED_GROWTH,
        "shared memory has grown by {growth} bytes"
    );
}
