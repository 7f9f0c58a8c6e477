//! `bench scale` with two ranks: real jobs, from the command line to the file of rows.

use std::process::Command;

use serde_json::Value;

#[test]
fn two_ranks_are_measured_beside_one_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.json");
    let mut bench = Command::new(env!("CARGO_BIN_EXE_everburn-bench"));
    bench
        .args(["bench", "scale", "--ranks", "2", "--steps", "2", "--json"])
        .arg(&file)
        .env_remove("EVERBURN_BIN");
    let output = bench.output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    let rows: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    for (row, ranks) in [(&rows["alone"], 1), (&rows["rows"][0], 2)] {
        assert_eq!(row["ranks"], ranks);
        assert_eq!(row["same_bits"], true, "{row}");
        for figure in ["first_step_seconds", "seconds", "memory_bytes", "threads"] {
            assert!(row[figure].as_f64() > Some(0.0), "{figure}: {row}");
        }
    }
    // One rank has no store.
    assert_eq!(rows["alone"]["requests_per_rank"], Value::Null);
    assert!(rows["rows"][0]["requests_per_rank"].as_f64() > Some(1.0));
}
