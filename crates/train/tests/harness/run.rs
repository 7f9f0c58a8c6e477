//! The folder of a run.

use std::path::Path;

use everburn_train::{MetricKind, MetricLine, RunDirectory, TrainingConfig};

/// A folder that another training can continue with.
pub fn run_directory(folder: &Path, config: &TrainingConfig) -> RunDirectory {
    let run = RunDirectory::create(folder).unwrap();
    run.write_config(config).unwrap();
    run
}

pub fn metric_lines(folder: &Path) -> Vec<MetricLine> {
    let text = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().unwrap()
}

/// Those of steps.
pub fn step_lines(folder: &Path) -> Vec<MetricLine> {
    let lines = metric_lines(folder).into_iter();
    lines.filter(|line| line.kind == MetricKind::Step).collect()
}
