//! Two ranks, each a process, are killed once and continue; the tracker has each step once or, of those that were made
//! again, twice, and never another loss.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

fn train(run: &Path, more: &[&str]) -> bool {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tracker"));
    let line = "train --data synthetic --ranks 2 --epochs 9 --steps 30 --checkpoint-every 10steps --run-dir";
    command.args(line.split(' ')).arg(run).args(more);
    command.status().expect("the program starts").success()
}

/// What the tracker was told of an event.
fn told(run: &Path, event: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(run.join("tracker.jsonl")).expect("the tracker's lines");
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    lines.filter(|line| line["event"] == event).map(|line| line["is"].clone()).collect()
}

/// The loss of each step.
fn losses(run: &Path) -> BTreeMap<u64, String> {
    let mut losses = BTreeMap::new();
    for step in told(run, "step") {
        let loss = step["loss"].to_string();
        let before = losses.insert(step["step"].as_u64().expect("a step"), loss.clone());
        assert!(before.is_none_or(|before| before == loss), "{step}");
    }
    losses
}

#[test]
fn a_tracker_is_told_of_everything_once_more_after_a_kill() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (whole, killed) = (folder.join("tracker-whole"), folder.join("tracker-killed"));
    for run in [&whole, &killed] {
        // What an earlier test has left.
        let _ = std::fs::remove_dir_all(run);
    }
    assert!(train(&whole, &[]));
    assert!(!train(&killed, &["--chaos", "kill=1@step:15"]));
    assert!(!told(&killed, "failure").is_empty());
    assert!(train(&killed, &["--resume"]));
    assert_eq!(losses(&whole).len(), 30);
    assert_eq!(losses(&whole), losses(&killed));
    assert_eq!(told(&killed, "start").len(), 2);
    assert_eq!(told(&killed, "end")[0]["steps"], 30);
    assert!(!told(&whole, "checkpoint").is_empty());
}
