//! What `bench scale` has found: goals, a table and JSON.

use std::fs;
use std::path::Path;

use everburn_record::table::aligned;
use serde_json::{Value, json};

use crate::cells::or_dash;

/// The longest times until all ranks have made their first step, in seconds, each up to a number of ranks.
const FIRST_STEP: [(usize, f64); 2] = [(64, 8.0), (256, 60.0)];

/// How much more memory and how many more threads a rank has than one rank alone, at most.
const MEMORY: u64 = 25 * MIB;
const THREADS: usize = 8;

const MIB: u64 = 1 << 20;

pub(crate) struct ScaleResults {
    /// One rank: what a rank has for its model.
    pub(super) alone: Row,
    pub(super) rows: Vec<Row>,
}

/// A job.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) ranks: usize,
    /// Seconds from its start until all ranks have made their first step.
    pub(super) first_step: Option<f64>,
    /// Seconds to its end.
    pub(super) seconds: f64,
    /// Seconds of CPU time of all its processes.
    pub(super) cpu: Option<f64>,
    /// Bytes of the rank that had most.
    pub(super) memory: Option<u64>,
    /// Of the rank that had most.
    pub(super) threads: Option<usize>,
    /// At the store, of all ranks and the launcher.
    pub(super) requests: Option<u64>,
    /// Each parameter's path and hash after the last step, after which the ranks have compared them.
    pub(super) parameters: Vec<Value>,
    /// The launcher's last words, if a rank was lost or had other parameters than the others.
    pub(super) failure: Option<String>,
}

impl Row {
    pub(super) fn sentence(&self) -> String {
        match (&self.failure, self.first_step) {
            (None, Some(first)) => format!("{first:.2} s to the first step, {:.2} s", self.seconds),
            _ => format!("failed after {:.2} s", self.seconds),
        }
    }

    fn more_memory(&self, alone: &Self) -> Option<u64> {
        Some(self.memory?.saturating_sub(alone.memory?))
    }

    fn more_threads(&self, alone: &Self) -> Option<usize> {
        Some(self.threads?.saturating_sub(alone.threads?))
    }

    fn requests_per_rank(&self) -> Option<f64> {
        Some(self.requests? as f64 / self.ranks as f64)
    }

    /// All ranks were equal when they compared their parameters: a difference is a failure.
    fn has_same_bits(&self) -> bool {
        self.failure.is_none() && !self.parameters.is_empty()
    }

    /// The goals that are not met. What could not be measured meets none.
    fn missed(&self, alone: &Self) -> Vec<&'static str> {
        let limit = FIRST_STEP.iter().find(|(most, _)| self.ranks <= *most);
        let in_time = |limit: f64| self.first_step.is_some_and(|first| first <= limit);
        let memory = self.more_memory(alone);
        let threads = self.more_threads(alone);
        let goals = [
            ("all ranks finish", self.failure.is_none()),
            ("same bits", self.has_same_bits()),
            ("first step", limit.is_none_or(|(_, limit)| in_time(*limit))),
            ("memory", memory.is_some_and(|bytes| bytes <= MEMORY)),
            ("threads", threads.is_some_and(|count| count <= THREADS)),
        ];
        let missed = goals.into_iter().filter(|(_, met)| !met);
        missed.map(|(goal, _)| goal).collect()
    }

    fn cells(&self, alone: &Self) -> Vec<String> {
        let seconds = |number: f64| format!("{number:.2}");
        let mebibytes = |bytes: u64| format!("{:.1}", bytes as f64 / MIB as f64);
        let missed = self.missed(alone);
        vec![
            self.ranks.to_string(),
            or_dash(self.first_step, seconds),
            seconds(self.seconds),
            or_dash(self.cpu, seconds),
            or_dash(self.memory, mebibytes),
            or_dash(self.more_memory(alone), mebibytes),
            or_dash(self.threads, |count| count.to_string()),
            or_dash(self.more_threads(alone), |count| count.to_string()),
            or_dash(self.requests_per_rank(), |count| format!("{count:.1}")),
            if self.has_same_bits() { "yes" } else { "no" }.to_owned(),
            match missed.is_empty() {
                true => "met".to_owned(),
                false => format!("not met: {}", missed.join(", ")),
            },
        ]
    }

    fn to_json(&self, alone: &Self) -> Value {
        json!({
            "ranks": self.ranks,
            "first_step_seconds": self.first_step,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu,
            "memory_bytes": self.memory,
            "memory_bytes_more_than_alone": self.more_memory(alone),
            "threads": self.threads,
            "threads_more_than_alone": self.more_threads(alone),
            "requests_per_rank": self.requests_per_rank(),
            "same_bits": self.has_same_bits(),
            "parameters": self.parameters,
            "goals_not_met": self.missed(alone),
            "failure": self.failure,
        })
    }
}

impl ScaleResults {
    pub(super) fn table(&self) -> String {
        let header = [
            "ranks",
            "first step s",
            "job s",
            "CPU s",
            "MiB / rank",
            "over alone",
            "threads",
            "over alone",
            "requests / rank",
            "same bits",
            "goals",
        ];
        let mut alone = self.alone.cells(&self.alone);
        for (column, cell) in alone.iter_mut().enumerate() {
            if ["over alone", "same bits", "goals"].contains(&header[column]) {
                *cell = "-".to_owned();
            }
        }
        let rows = self.rows.iter().map(|row| row.cells(&self.alone));
        let rows = [alone].into_iter().chain(rows).collect::<Vec<_>>();
        let limits = FIRST_STEP.map(|(most, limit)| format!("{limit} s up to {most} ranks"));
        let mut text = format!(
            "{}\n\ngoals: the first step within {}; at most {} MiB and {THREADS} threads more than one rank alone; \
             the same bits on all ranks; all ranks finish",
            aligned(&header, &rows, &[header.len() - 1]),
            limits.join(" and "),
            MEMORY / MIB
        );
        for row in &self.rows {
            if let Some(why) = &row.failure {
                text.push_str(&format!("\n\n{} ranks have failed:\n{why}", row.ranks));
            }
        }
        text
    }

    pub(super) fn to_json(&self, machine: &Value, model: &str, steps: usize) -> Value {
        let rows = self.rows.iter().map(|row| row.to_json(&self.alone));
        json!({
            "benchmark": "scale",
            "machine": machine,
            "model": model,
            "steps": steps,
            "alone": self.alone.to_json(&self.alone),
            "rows": rows.collect::<Vec<_>>(),
        })
    }
}

/// When the losses of all ranks in the first step had been added up, in milliseconds since 1970.
pub(super) fn first_step_ms(run: &Path) -> Option<u64> {
    let lines = json_lines(&run.join("metrics.jsonl"));
    let first = |line: &&Value| line["kind"] == "step" && line["step"] == 1;
    lines.iter().find(first)?["unix_time_ms"].as_u64()
}

/// Each parameter's path and hash after `step`.
pub(super) fn parameter_hashes(run: &Path, step: usize) -> Vec<Value> {
    let lines = json_lines(&run.join("hashes.jsonl"));
    let line = lines.iter().find(|line| line["step"] == step);
    let tensors = line.and_then(|line| line["tensors"].as_array());
    let is_parameter = |tensor: &&Value| {
        let path = tensor[0].as_str();
        path.is_some_and(|path| !path.starts_with("optimizer/"))
    };
    let tensors = tensors.into_iter().flatten();
    tensors.filter(is_parameter).cloned().collect()
}

/// The lines of a file; none where a job has failed before it wrote any.
fn json_lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines();
    lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ranks: usize, first_step: f64, mebibytes: u64, threads: usize) -> Row {
        Row {
            ranks,
            first_step: Some(first_step),
            seconds: first_step + 1.0,
            cpu: Some(1.5),
            memory: Some(mebibytes * MIB),
            threads: Some(threads),
            requests: Some(ranks as u64 * 30),
            parameters: vec![json!(["layers.0.weight", "00ff"])],
            failure: None,
        }
    }

    #[test]
    fn goals_depend_on_the_ranks_and_on_one_rank_alone() {
        let alone = row(1, 0.1, 50, 11);
        let missed = |row: Row| row.missed(&alone).join(", ");
        assert_eq!(missed(row(64, 8.0, 75, 19)), "");
        assert_eq!(missed(row(64, 8.1, 76, 20)), "first step, memory, threads");
        assert_eq!(missed(row(65, 60.0, 75, 19)), "");
        assert_eq!(missed(row(256, 61.0, 75, 19)), "first step");
        assert_eq!(missed(row(512, 61.0, 75, 19)), "");
        let (mut unseen, mut failed) = (row(2, 1.0, 50, 11), row(2, 1.0, 50, 11));
        (unseen.first_step, unseen.memory) = (None, None);
        assert_eq!(missed(unseen), "first step, memory");
        failed.failure = Some("rank 1 was killed".to_owned());
        assert_eq!(missed(failed), "all ranks finish, same bits");
    }

    #[test]
    fn one_rank_alone_is_compared_with_nothing_and_a_failure_is_explained() {
        let mut failed = row(256, 61.0, 60, 15);
        failed.failure = Some("rank 1 was killed".to_owned());
        let results = ScaleResults {
            alone: row(1, 0.1, 50, 11),
            rows: vec![row(2, 0.25, 60, 15), failed],
        };
        let table = results.table();
        let lines = table.lines().collect::<Vec<_>>();
        let cells = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
        let alone = ["1", "0.10", "1.10", "1.50", "50.0", "-", "11", "-", "30.0"];
        assert_eq!(cells(1)[..9], alone, "{table}");
        let two = ["2", "0.25", "1.25", "1.50", "60.0", "10.0", "15", "4"];
        assert_eq!(cells(2)[..8], two, "{table}");
        assert!(lines[2].ends_with("yes  met"), "{table}");
        let missed = "not met: all ranks finish, same bits, first step";
        assert!(lines[3].ends_with(missed), "{table}");
        assert!(table.ends_with("256 ranks have failed:\nrank 1 was killed"));
        let json = results.to_json(&Value::Null, "mlp", 3);
        assert_eq!(json["rows"][0]["threads_more_than_alone"], 4);
        assert_eq!(json["rows"][1]["same_bits"], false);
    }

    #[test]
    fn a_record_has_the_first_step_and_the_parameters_of_the_last() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(first_step_ms(run.path()), None);
        assert!(parameter_hashes(run.path(), 3).is_empty());
        let metrics = r#"{"kind":"step","step":1,"unix_time_ms":1795943937291}
{"kind":"step","step":2,"unix_time_ms":1795943937302}
"#;
        fs::write(run.path().join("metrics.jsonl"), metrics).unwrap();
        assert_eq!(first_step_ms(run.path()), Some(1_795_943_937_291));
        let hashes =
            r#"{"step":3,"tensors":[["layers.0.bias","01"],["optimizer/layers.0.bias/m","02"]]}"#;
        fs::write(run.path().join("hashes.jsonl"), hashes).unwrap();
        let bias = json!(["layers.0.bias", "01"]);
        assert_eq!(parameter_hashes(run.path(), 3), [bias]);
        assert!(parameter_hashes(run.path(), 4).is_empty());
    }
}
