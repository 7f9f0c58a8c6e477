//! Runs side by side.

use everburn_report::{ReportError, compare};

use crate::page::sound;
use crate::sample::{Sample, metrics};

/// Two runs in folders `a` and `b` of one folder, of which the second was resumed with another rate.
fn two() -> Sample {
    let of =
        |sample: &Sample, name: &str| std::fs::read_to_string(sample.path().join(name)).unwrap();
    let whole = Sample::whole();
    let report = of(&whole, "report.json");
    Sample::empty()
        .with("a/config.toml", of(&whole, "config.toml"))
        .with("a/metrics.jsonl", metrics(40))
        .with("a/report.json", &report)
        .with("a/events.jsonl", of(&whole, "events.jsonl"))
        .with("b/config.toml", "model = 'mnist-bn'\n[training.optimizer]\nlearning_rate = 0.01\n[training.ddp]\noverlap = false")
        .with("b/metrics.jsonl", metrics(60))
        .with("b/report.json", report.replace("0.984", "0.942").replace("1168.149", "2336.298").replace("\"stopped\": null", "\"stopped\": \"stopped on request after step 60\""))
}

#[test]
fn two_runs_side_by_side() {
    let sample = two();
    let comparison = compare(&[sample.path().join("a"), sample.path().join("b")]).unwrap();
    insta::assert_snapshot!(comparison.to_text());
}

#[test]
fn headings_are_whole_and_files_that_a_run_lacks_are_named() {
    let sample = Sample::empty()
        .with("whole/config.toml", "model = 'mlp'\nseed = 1")
        .with("whole/report.json", "{}")
        .with("failed/config.toml", "model = 'mlp'\nseed = 2");
    let paths = ["whole", "failed"].map(|name| sample.path().join(name));
    let text = compare(&paths).unwrap().to_text();
    assert!(
        text.contains("\nconfiguration, where it differs:\n"),
        "{text}"
    );
    let row = text.lines().find(|line| line.starts_with("missing or"));
    assert!(row.unwrap().contains("report.json"), "{text}");
}

#[test]
fn times_of_a_resumed_run_are_those_since_the_resume() {
    let resumed = r#"{"steps": 1494, "steps_since_resume": 294, "seconds": 9.0, "train_seconds": 8.0, "peak_memory": 4096}"#;
    let whole = resumed.replace("294", "1494");
    let sample = Sample::empty()
        .with("resumed/config.toml", "model = 'mlp'")
        .with("resumed/report.json", resumed)
        .with("whole/config.toml", "model = 'mlp'")
        .with("whole/report.json", &whole);
    let [of_resumed, of_whole] = ["resumed", "whole"].map(|name| sample.path().join(name));
    let text = compare(&[of_resumed.clone(), of_whole.clone()])
        .unwrap()
        .to_text();
    let row = text.lines().find(|line| line.contains("since step"));
    assert!(row.unwrap().contains("1,200"), "{text}");
    let page = |folder: &std::path::Path| everburn_report::Run::read(folder).unwrap().to_html();
    let html = page(&of_resumed);
    let marks = html.matches("since the resume at step 1,200").count();
    assert_eq!(marks, 2, "time and memory");
    assert!(html.contains("times and memory since step"));
    assert!(!page(&of_whole).contains("since the resume"));
}

#[test]
fn data_of_a_run_that_failed_are_compared_by_the_name_that_both_have() {
    let config = |data: &str| format!("model = 'mlp'\n[data]\nname = '{data}'");
    let rows = |of_failed: &str| {
        let sample = Sample::empty()
            .with("whole/config.toml", config("synthetic"))
            .with("whole/report.json", r#"{"dataset": "synthetic-digits"}"#)
            .with("failed/config.toml", config(of_failed));
        let paths = ["whole", "failed"].map(|name| sample.path().join(name));
        let text = compare(&paths).unwrap().to_text();
        let rows = text
            .lines()
            .filter(|line| line.trim_start().starts_with("data "));
        rows.map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(rows("synthetic").is_empty(), "{:?}", rows("synthetic"));
    let others = rows("mnist");
    let [row] = others.as_slice() else {
        panic!("one row: {others:?}")
    };
    assert!(row.contains("synthetic") && row.contains("mnist"), "{row}");
}

#[test]
fn a_comparisons_page_has_the_curves_of_all() {
    let sample = two();
    let html = compare(&[sample.path().join("a"), sample.path().join("b")])
        .unwrap()
        .to_html();
    let data = sound(&html);
    let lines = data["charts"]["training-loss"]["lines"].as_array().unwrap();
    assert_eq!(
        lines
            .iter()
            .map(|line| line["name"].as_str().unwrap())
            .collect::<Vec<_>>(),
        ["a", "b"]
    );
    assert_eq!(lines[1]["x"].as_array().unwrap().len(), 60);
    assert_ne!(lines[0]["colour"], lines[1]["colour"]);
    assert!(html.contains("training.ddp.overlap"));
}

#[test]
fn runs_of_the_same_name_are_told_apart() {
    let sample = Sample::empty()
        .with("x/run/config.toml", "")
        .with("y/run/config.toml", "");
    let paths = ["x/run", "y/run"].map(|name| sample.path().join(name));
    let text = compare(&paths).unwrap().to_text();
    assert!(text.contains("x/run") && text.contains("y/run"), "{text}");
    let long = [
        "a-run-with-a-longer-name-than-thirty-1",
        "a-run-with-a-longer-name-than-thirty-2",
    ];
    let sample = long.iter().fold(Sample::empty(), |sample, name| {
        sample.with(&format!("{name}/config.toml"), "")
    });
    let text = compare(&long.map(|name| sample.path().join(name)))
        .unwrap()
        .to_text();
    assert!(long.iter().all(|name| text.contains(name)), "{text}");
    let twice = compare(&[&paths[0], &paths[0]]).unwrap().to_text();
    assert!(
        twice.contains("run 1") && twice.contains("run 2"),
        "{twice}"
    );
}

#[test]
fn one_run_is_not_compared() {
    let sample = Sample::elastic();
    let error = compare(&[sample.path()]).unwrap_err();
    assert_eq!(error, ReportError::Runs { given: 1, most: 12 });
    assert!(error.to_string().contains("2 to 12"), "{error}");
    let error = compare(&[sample.path().join("none"), sample.path().to_path_buf()]).unwrap_err();
    assert!(error.to_string().contains("/none"), "{error}");
}
