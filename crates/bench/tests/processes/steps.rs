//! Benchmarks whose processes make steps of small models: from the command line to the file of rows.

use everburn_tests::Everburn;
use serde_json::Value;

/// Runs a benchmark for one step in one round; its rows.
fn rows(bench: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let bench = Everburn::bench(folder.path(), bench.split(' '));
    let bench = bench.words("--rounds 1 --steps 1 --json rows.json");
    bench.succeed();
    let rows = std::fs::read(folder.path().join("rows.json")).unwrap();
    serde_json::from_slice(&rows).unwrap()
}

fn are_positive(row: &Value, figures: &[&str]) {
    for figure in figures {
        assert!(row[figure].as_f64() > Some(0.0), "{figure}: {row}");
    }
}

#[test]
fn an_exchange_is_measured_alone_and_beside_the_backward_pass() {
    let rows = rows("bench ddp --width 8 --layers 2 --batch 2");
    let times = ["compute_ms", "communication_ms", "overlapped_ms"];
    are_positive(&rows[0], &times);
    assert_eq!(rows[0]["parameters"], 2 * (8 * 8 + 8));
}

#[test]
fn activations_that_are_computed_again_change_no_loss() {
    let small = "bench recompute --layers 2 --width 8 --heads 2 --context 4 --batch 2";
    let rows = rows(small);
    for (row, how) in [(&rows[0], "none"), (&rows[1], "blocks"), (&rows[2], "burn")] {
        assert_eq!(row["activation_checkpointing"], how);
        let loss = |row: &Value| row["loss"].as_f64().unwrap();
        assert!((loss(row) - loss(&rows[0])).abs() < 1e-6, "{row}");
        assert_eq!(row["layers"], 2);
        are_positive(row, &["step_ms", "peak_bytes", "parameters"]);
    }
}

#[test]
fn ranks_of_a_pipeline_are_timed_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let drawing = folder.path().join("p.svg");
    let small = "bench pipeline --layers 4 --width 8 --batch 2 --schedules 1f1b,interleaved --svg";
    let rows = rows(&format!("{small} {}", drawing.display()));
    for (row, schedule) in [(&rows[0], "1f1b"), (&rows[1], "interleaved")] {
        assert_eq!(row["schedule"], schedule);
        are_positive(row, &["idle_share", "theory", "step_ms"]);
        assert!(folder.path().join(format!("p-{schedule}.svg")).is_file());
    }
    let parts = rows.as_array().unwrap().iter().map(|row| &row["part"]);
    assert!(parts.eq([
        "bubble",
        "bubble",
        "memory",
        "memory",
        "checkpointing",
        "checkpointing"
    ]));
}
