//! `bottleneck` on ranks that are processes: what it finds, what it writes, what it refuses.

use everburn_tests::{Ended, Everburn, Run, SMALL};
use serde_json::Value;

fn bottleneck(folder: &std::path::Path, flags: &[&str]) -> Ended {
    Everburn::line(folder, "bottleneck mnist --steps 24 --batch-size 20")
        .words("--run-dir run")
        .words(SMALL)
        .args(flags)
        .run()
}

/// How long the training took in seconds up to the last line of its record, by the recording of rank 0 and by its own
/// report.
fn recorded_and_measured(run: &Run) -> [f64; 2] {
    let recording = run.json("profile/rank-0.json");
    let steps = recording["steps"].as_array().unwrap();
    let phases = recording["phases"].as_array().unwrap();
    let last = phases.iter().rfind(|span| span["phase"] == "records");
    let [begin, end] = [&steps[0]["at"], &last.unwrap()["begin"]].map(|at| at.as_u64().unwrap());
    [(end - begin) as f64 / 1e9, run.number("train_seconds")]
}

#[test]
fn two_ranks_are_laid_open() {
    let folder = tempfile::tempdir().unwrap();
    let ended = bottleneck(folder.path(), &["--ranks", "2", "--workers", "1"]).succeeded();
    ended.prints([
        "findings",
        "rank 1",
        "conv2",
        "GFLOP/s of passes",
        "of peak",
        "trace.json",
        "flame.svg",
        "1 thread of --workers",
    ]);
    let run = Run::new(folder.path().join("run"));
    let numbers = run.json("bottleneck.json");
    let ranks = numbers["analysis"]["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 2);
    for rank in ranks {
        let phases = rank["phases"].as_array().unwrap().iter();
        let sum: f64 = phases.map(|phase| phase["seconds"].as_f64().unwrap()).sum();
        let step = rank["step_seconds"].as_f64().unwrap();
        // A phase ends where the next begins.
        assert!((sum / step - 1.0).abs() < 1e-9, "{sum} of {step}: {ended}");
        let allocations = |phase: &Value| phase["allocations"].as_f64().unwrap();
        let counted: f64 = rank["phases"]
            .as_array()
            .unwrap()
            .iter()
            .map(allocations)
            .sum();
        assert!(counted > 1.0, "{rank:#}");
        assert!(rank["loading"].as_f64().unwrap() > 0.0, "{rank:#}");
    }
    let recording = run.json("profile/rank-0.json");
    assert!(
        !recording["samples"]["samples"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    let trace = run.json("trace.json");
    let events = trace["traceEvents"].as_array().unwrap();
    for name in ["step 24", "forward", "conv1 backward", "bucket 0", "batch"] {
        for rank in 0..2 {
            let found = events
                .iter()
                .any(|event| event["name"] == name && event["pid"] == rank);
            assert!(found, "no {name} of rank {rank}");
        }
    }
    let flame = run.text("flame.svg");
    assert!(
        flame.contains("everburn_models::mnist") || flame.contains("everburn_kernels"),
        "{flame:.3000}"
    );
    // The same can be said once more, without training.
    let again = Everburn::new(folder.path(), ["bottleneck", "--of", "run"]).succeed();
    let table = |text: &str| text.split("findings").last().unwrap().to_owned();
    assert_eq!(table(&again.stdout), table(&ended.stdout));
}

#[test]
fn a_recording_lies_between_what_the_steps_take_at_least_and_what_the_training_measures() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--ranks", "2", "--chaos", "slow=0@step:1:20ms"];
    bottleneck(folder.path(), &flags).succeeded();
    let [recorded, measured] = recorded_and_measured(&Run::new(folder.path().join("run")));
    // 24 steps of rank 0, each of which sleeps. The training reads its clock before the first step is recorded and
    // after the last line of its record begins, so that its time holds the recording's, however long a thread waits
    // for a core.
    assert!(24.0 * 0.02 <= recorded, "{recorded} s recorded");
    assert!(
        recorded <= measured,
        "{recorded} s of {measured} s recorded"
    );
}

#[test]
fn the_layers_of_one_rank_alone_are_counted_for_what_they_compute() {
    let folder = tempfile::tempdir().unwrap();
    let ended = bottleneck(folder.path(), &[]).succeeded();
    ended.prints(["layers of rank 0", "conv1", "fc2"]);
    let numbers = Run::new(folder.path().join("run")).json("bottleneck.json");
    let rank = &numbers["analysis"]["ranks"][0];
    let peak = rank["facts"]["peak_operations"].as_f64();
    assert!(peak.is_some_and(|peak| peak > 0.0), "{ended}");
    // What a batch of 20 images takes; nobody asks for the gradient of the images.
    let expected = [
        ("conv1", 2 * 20 * (10 * 24 * 24) * 25, 1),
        ("conv2", 2 * 20 * (20 * 8 * 8) * (10 * 25), 2),
        ("fc1", 2 * 20 * 320 * 50, 2),
        ("fc2", 2 * 20 * 50 * 10, 2),
    ];
    let layers = rank["layers"].as_array().unwrap();
    assert_eq!(layers.len(), expected.len(), "{ended}");
    for (layer, (name, forward, times)) in layers.iter().zip(expected) {
        let found = ["forward_operations", "backward_operations"]
            .map(|pass| layer[pass].as_f64().unwrap().round() as u64);
        assert_eq!(layer["name"], name, "{ended}");
        assert_eq!(found, [forward, times * forward], "{name}: {ended}");
        let share = layer["share_of_peak"].as_f64().unwrap();
        assert!(share > 0.0 && share <= 1.0, "{name}: {share}: {ended}");
    }
}

#[test]
fn what_cannot_be_profiled_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (flags, messages) in [
        (
            &["--ranks", "2", "--elastic", "1:2"][..],
            ["a profile and --elastic", "without --elastic"],
        ),
        (
            &["--ranks", "2", "--strategy", "data-parallel"],
            ["data-parallel", "--strategy ddp"],
        ),
        (
            &["--ranks", "2", "--local-steps", "2"],
            ["a profile and --local-steps 2", "do not go together"],
        ),
        (&["--plan"], ["train nothing", "--plan"]),
    ] {
        bottleneck(folder.path(), flags).failed_with(2, &messages);
    }
    Everburn::new(folder.path(), ["bottleneck", "--of", "nowhere"])
        .refused(&["no recordings of ranks in nowhere/profile", "--profile"]);
}
