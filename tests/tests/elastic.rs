//! Processes of ranks are killed, stopped and cut off, and the training continues without a difference.

#[path = "elastic/machines.rs"]
mod machines;

use std::collections::BTreeSet;
use std::path::Path;

use everburn_tests::{AssertContains, Ended, Everburn, Run, assert_refused};
use rustix::process::Signal;

const STEPS: usize = 30;

/// A training of a net with batch norms and dropout, with enough steps that a rank can come back.
fn train(folder: &Path, name: &str, flags: &[&str]) -> Everburn {
    let steps = STEPS.to_string();
    Everburn::line(folder, "train mnist-bn --data synthetic")
        .words("--train-samples 200 --test-samples 20")
        // Fifteen steps per epoch: each training has the end of an epoch in its middle.
        .args(["--batch-size", "12", "--epochs", "9", "--steps", &steps])
        .words("--virtual-ranks 3 --hash-every 1")
        .args(["--run-dir", name])
        .args(flags)
}

fn hashes(folder: &Path, name: &str) -> Vec<String> {
    Run::new(folder.join(name)).hashes()
}

/// What one rank learns when nothing happens.
fn undisturbed(folder: &Path) -> Vec<String> {
    train(folder, "undisturbed", &[]).succeed();
    let hashes = hashes(folder, "undisturbed");
    assert_eq!(hashes.len(), STEPS);
    hashes
}

fn disturbed(folder: &Path, name: &str, chaos: &str, more: &[&str]) -> Ended {
    train(
        folder,
        name,
        &["--ranks", "3", "--elastic", "2:3", "--chaos", chaos],
    )
    // Longer than a process waits for a core on a busy machine: only who is stopped is counted as lost.
    .args(["--heartbeat-timeout", "6", "--checkpoint-every", "5steps"])
    .args(more)
    .run()
}

fn steps_of_checkpoints(run: &Run) -> BTreeSet<u64> {
    let folders = std::fs::read_dir(run.path.join("checkpoints")).unwrap();
    let steps = folders.map(|folder| {
        let manifest = std::fs::read_to_string(folder.unwrap().path().join("manifest.json"));
        let manifest: serde_json::Value = serde_json::from_str(&manifest.unwrap()).unwrap();
        manifest["progress"]["step"].as_u64().unwrap()
    });
    steps.collect()
}

#[test]
fn whoever_is_killed_stopped_or_cut_off_the_same_is_learnt() {
    let folder = tempfile::tempdir().unwrap();
    let expected = undisturbed(folder.path());
    let chaoses = [
        ("kill=2@step:7", "auto"),
        // While it writes the checkpoint of step 10.
        ("kill=0@step:11", "tcp"),
        ("stall=1@step:9", "auto"),
        ("drop=0-2@step:5", "tcp"),
        ("drop=1-2@step:5", "shm"),
        // In the first step, and twice.
        ("kill=1@step:1,kill=0@step:20", "auto"),
    ];
    for (number, (chaos, transport)) in chaoses.into_iter().enumerate() {
        let name = format!("run-{number}");
        let flags = ["--transport", transport, "--keep-checkpoints", "99"];
        let ended = disturbed(folder.path(), &name, chaos, &flags).succeeded();
        assert!(ended.stderr.contains("have made step"), "{chaos}: {ended}");
        assert_eq!(hashes(folder.path(), &name), expected, "{chaos}: {ended}");
        let run = Run::new(folder.path().join(&name));
        assert_eq!(run.number("steps"), STEPS as f64, "{chaos}");
        // Also those of a rank 0 that came back count from the beginning.
        assert_eq!(run.number("steps_since_resume"), STEPS as f64, "{chaos}");
        assert!(
            run.number("seconds") >= run.number("train_seconds"),
            "{chaos}"
        );
        if chaos == "kill=0@step:11" {
            let steps = steps_of_checkpoints(&run);
            assert!(steps.contains(&10), "{steps:?}: {ended}");
        }
    }
}

#[test]
fn too_few_ranks_end_with_an_error_and_a_checkpoint_that_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let expected = undisturbed(folder.path());
    let chaos = "kill=1@step:11,kill=2@step:11";
    let ended = disturbed(folder.path(), "run", chaos, &["--max-restarts", "0"]);
    assert_ne!(ended.code(), 0, "{ended}");
    ended.warns(["cannot continue", "--resume", "rank 1", "SIGKILL"]);
    Everburn::line(folder.path(), "train --resume --run-dir run --ranks 2").succeed();
    assert_eq!(hashes(folder.path(), "run"), expected);
    // Bytes and times are of the steps since then.
    let report = Run::new(folder.path().join("run")).report();
    let steps = ["steps_since_resume", "steps"].map(|key| report[key].as_u64().unwrap());
    assert!(0 < steps[0] && steps[0] < steps[1], "{report:#}");
}

#[test]
fn a_changed_parameter_is_found_named_and_mended() {
    let folder = tempfile::tempdir().unwrap();
    let flags = "--ranks 3 --compare-every 1 --chaos corrupt=1@step:7";
    let flags: Vec<_> = flags.split(' ').collect();
    let ended = train(folder.path(), "stops", &flags).run();
    assert_ne!(ended.code(), 0, "{ended}");
    ended.warns(["after step 7", "of rank 1 differs", "weight"]);
    // An elastic job does not try again what would come to the same.
    let ended = train(folder.path(), "elastic", &flags)
        .args(["--elastic", "1:3"])
        .run();
    assert_eq!(ended.code(), 78, "{ended}");
    ended.warns(["the same would happen again"]);
    let expected = undisturbed(folder.path());
    let ended = train(folder.path(), "mended", &flags)
        .args(["--on-divergence", "repair"])
        .succeed();
    ended.warns(["given the state of rank 0"]);
    assert_eq!(hashes(folder.path(), "mended"), expected);
    // Two ranks cannot tell who of them is right.
    let ended = train(folder.path(), "undecided", &[])
        .words("--ranks 2 --compare-every 1 --on-divergence repair --chaos corrupt=1@step:7")
        .run();
    assert_ne!(ended.code(), 0, "{ended}");
}

#[test]
fn who_stalls_is_named_with_step_and_operation_and_what_its_log_says() {
    let folder = tempfile::tempdir().unwrap();
    let ended = train(folder.path(), "run", &["--ranks", "3"])
        .args(["--chaos", "stall=1@step:7", "--timeout", "15"])
        .run();
    assert_eq!(ended.code(), 76, "{ended}");
    // The log of who reports it is shown at the end, too.
    let named = ended
        .stderr
        .lines()
        .filter(|line| line.starts_with("[rank") && line.contains("rank 1 stalled at step 7"));
    assert_eq!(named.count(), 1, "one of the others reports: {ended}");
    ended.warns([
        "all_gather_varied",
        "in which ranks 0, 2 waited for it",
        "the last lines of rank 1's log",
        "| ",
        "is stopped at step 7",
    ]);
    // Rank 1 has no run directory, and rank 0 notes its fault.
    let run = Run::new(folder.path().join("run"));
    let events = run.text("events.jsonl");
    events.assert_contains(["chaos: rank 1 is stopped at step 7"]);
    let said = run.json("logs/rank-0.error.json");
    assert_eq!(said["step"], 7, "{said:#}");
}

#[test]
fn a_rank_whose_steps_take_longer_than_the_others_wait_is_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let slow = |name: &str, elastic: &str| {
        Everburn::line(folder.path(), "train mlp --data synthetic")
            .words("--train-samples 400 --test-samples 40")
            .args(["--ranks", "2", "--elastic", elastic, "--timeout", "4"])
            .args(["--steps", "20", "--batch-size", "16", "--run-dir", name])
            .args(["--chaos", "slow=1@step:5:9000ms"])
            .run()
    };
    let message = "s for step 5, and the others wait 4 s for it";
    // Only the other one is left, which may continue.
    let ended = slow("one", "1:2").succeeded();
    ended.warns([message, "raise --timeout above", "would happen again"]);
    assert_eq!(Run::new(folder.path().join("one")).number("steps"), 20.0);
    let ended = slow("two", "2:2");
    assert_eq!(ended.code(), 78, "{ended}");
    ended.warns(["rank 1 takes", message, "cannot continue", "--resume"]);
}

#[test]
fn a_stop_while_a_rank_waits_for_others_leaves_a_checkpoint_and_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let flags = "--ranks 2 --elastic 2:2 --chaos kill=1@step:9".split(' ');
    let mut job = Everburn::new(folder.path(), ["train", "mlp", "--data", "synthetic"])
        .words("--train-samples 400 --test-samples 40 --epochs 100000 --run-dir run")
        .args(flags)
        .start();
    // Rank 1 is started again after a second. Where the signal comes later than that, the job stops as any other.
    let run = Run::new(folder.path().join("run"));
    let log = run.clone();
    job.wait_for("rank 0 to be without the other", move || {
        log.text_if_there("logs/rank-0.log").contains("lost rank 1")
    });
    job.signal(Signal::INT);
    let ended = job.wait();
    assert_eq!(ended.code(), 130, "{ended}");
    let advice = "train --resume --run-dir run` continues from the checkpoint";
    assert!(ended.to_string().contains(advice), "{ended}");
    assert!(!steps_of_checkpoints(&run).is_empty(), "{ended}");
}

#[test]
fn a_rank_0_that_comes_back_shows_the_epochs_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    // Later flags win over those of `train`.
    let mut job = Everburn::new(folder.path(), ["train", "mlp", "--data", "synthetic"])
        .words("--train-samples 400 --test-samples 40 --epochs 100000 --run-dir run")
        .words("--chaos kill=0@step:40 --ranks 3 --elastic 2:3 --lr-schedule constant")
        .start();
    let run = Run::new(folder.path().join("run"));
    let log = run.clone();
    let shown = move || -> Vec<u64> {
        let text = log.text_if_there("logs/rank-0.log");
        let (_, text) = text
            .split_once("ranks [0, 1, 2] have made step ")
            .unwrap_or_default();
        let lines = text.lines().filter(|line| line.contains("  valid  "));
        let epochs = lines.filter_map(|line| line.split("epoch ").nth(1)?.split('/').next());
        epochs.map(|epoch| epoch.parse().unwrap()).collect()
    };
    let epochs = shown.clone();
    job.wait_for("three epochs", move || epochs().len() >= 3);
    job.signal(Signal::INT);
    let ended = job.wait();
    assert_eq!(ended.code(), 130, "{ended}");
    let events = run.text("events.jsonl");
    let event = events
        .lines()
        .find(|line| line.contains("ranks [0, 1, 2] have made step"));
    let event: serde_json::Value = serde_json::from_str(event.unwrap()).unwrap();
    let begun = event["step"].as_u64().unwrap();
    let validated = run
        .metrics()
        .into_iter()
        .filter(|line| line["kind"] == "validation" && line["step"].as_u64().unwrap() >= begun);
    let validated = validated.map(|line| line["epoch"].as_u64().unwrap());
    assert_eq!(
        shown()[..3],
        validated.take(3).collect::<Vec<_>>()[..],
        "{ended}"
    );
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_starts() {
    assert_refused(
        "mnist",
        "
        --ranks 2 --elastic 0:2 | at least 1 rank
        --ranks 2 --elastic 2:1 | the smaller number comes first
        --ranks 2 --elastic 1:4 | --elastic 1:2
        --ranks 2 --elastic two | MIN:MAX
        --ranks 2 --elastic 1:2 --strategy data-parallel | --strategy
        --ranks 2 --elastic 1:2 --pipeline 2 | --mesh
        --ranks 2 --chaos kill=2@step:1 | rank 2
        --ranks 2 --chaos melt=1@step:1 | no fault
        --ranks 2 --store etcd://a:1 | --elastic MIN:MAX
        --ranks 2 --store etcd://a | `a` is not host:port
        ",
    );
}
