//! What a trained model predicts, from the command line to the lines.

use std::path::Path;

use everburn_tests::{Ended, Everburn, json_lines};
use serde_json::Value;

/// A model that has learnt for a moment, in the run directory `run`.
fn trained(folder: &Path, flags: &[&str]) {
    Everburn::train(folder, "mlp")
        .args(["--run-dir", "run", "--epochs", "1"])
        .args(flags)
        .succeed();
}

fn predict(folder: &Path, flags: &[&str]) -> Ended {
    Everburn::new(folder, ["predict", "run"]).args(flags).run()
}

#[test]
fn each_image_has_a_class_and_probabilities_alike_on_any_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    trained(folder.path(), &["--steps", "6"]);
    let printed = predict(folder.path(), &[]).succeeded();
    let alone = json_lines(&printed.stdout);
    assert_eq!(alone.len(), 200, "{printed}");
    for ranks in ["2", "3"] {
        let name = format!("{ranks}.jsonl");
        let flags = ["--ranks", ranks, "--output", &name];
        let told = predict(folder.path(), &flags).succeeded();
        told.prints(["200 predictions of test"]);
        let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
        let of_ranks = json_lines(&text);
        assert_eq!(of_ranks.len(), alone.len(), "{ranks} ranks");
        for (one, other) in alone.iter().zip(of_ranks) {
            assert_eq!(one["class"], other["class"]);
            let numbers = |line: &Value| {
                let numbers = line["probabilities"].as_object().unwrap();
                numbers
                    .values()
                    .map(|it| it.as_f64().unwrap())
                    .collect::<Vec<_>>()
            };
            let (one, other) = (numbers(one), numbers(&other));
            assert!((one.iter().sum::<f64>() - 1.0).abs() < 1e-5 && one.len() == 10);
            assert!(one.iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-5));
        }
    }
    let again = predict(folder.path(), &["--ranks", "2"]).succeeded();
    assert_eq!(json_lines(&again.stdout).len(), 200, "{again}");
}

#[test]
fn other_samples_and_checkpoints_are_taken_where_they_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    trained(folder.path(), &[]);
    for (input, count) in [("train", 500), ("validation", 100), ("test", 200)] {
        let flags = ["--input", input, "--checkpoint", "1"];
        let printed = predict(folder.path(), &flags).succeeded();
        assert_eq!(json_lines(&printed.stdout).len(), count, "{input}");
    }
}

#[test]
fn what_cannot_be_predicted_is_refused_before_a_rank_is_started_and_changes_no_file() {
    let folder = tempfile::tempdir().unwrap();
    trained(folder.path(), &["--steps", "1"]);
    let refused = |flags: &[&str], messages: &[&str]| {
        let flags = [&["--ranks", "2"], flags].concat();
        predict(folder.path(), &flags).failed_with(2, messages);
        assert!(!folder.path().join("run/logs/predict").exists());
    };
    let messages = [
        "nowhere.csv: there is no such file",
        "test, train, validation",
    ];
    refused(&["--input", "nowhere.csv"], &messages);
    refused(&["--output", "none/a.jsonl"], &["none is no folder"]);
    let messages = ["lines of JSON, not csv", "predictions.jsonl"];
    refused(&["--output", "a.CSV"], &messages);

    // A file is written whole or stays what it was.
    let output = folder.path().join("kept.jsonl");
    std::fs::write(&output, "before").unwrap();
    let flags = ["--output", "kept.jsonl", "--input", "run/config.toml"];
    let messages = ["run/config.toml: this model reads no image files"];
    predict(folder.path(), &flags).failed_with(2, &messages);
    assert_eq!(std::fs::read_to_string(&output).unwrap(), "before");
    predict(folder.path(), &["--output", "kept.jsonl"]).succeeded();
    assert_eq!(
        json_lines(&std::fs::read_to_string(&output).unwrap()).len(),
        200
    );
    let left = std::fs::read_dir(folder.path()).unwrap().flatten();
    let mut left = left.map(|entry| entry.file_name().to_string_lossy().into_owned());
    assert!(!left.any(|name| name.starts_with(".everburn-")));
}
