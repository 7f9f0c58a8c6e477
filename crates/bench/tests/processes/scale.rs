//! `bench scale` with two ranks: real jobs, from the command line to the file of rows.

use everburn_tests::Everburn;
use serde_json::Value;

#[test]
fn two_ranks_are_measured_beside_one_alone() {
    let folder = tempfile::tempdir().unwrap();
    let bench = ["bench", "scale", "--ranks", "2", "--steps", "2"];
    let bench = Everburn::bench(folder.path(), bench).args(["--json", "rows.json"]);
    bench.succeed();
    let rows = std::fs::read(folder.path().join("rows.json")).unwrap();
    let rows: Value = serde_json::from_slice(&rows).unwrap();
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
