//! What `bench sync` has found, as a table and as JSON.

use std::path::Path;

use everburn_record::TrainingReport;
use everburn_record::table::aligned;
use everburn_record::units::percent;
use serde::Serialize;
use serde_json::{Value, json};

use crate::bench::report_of;
use crate::cells;
use crate::failure::Failure;

/// What all sides have in common.
#[derive(Serialize)]
pub(super) struct Setting {
    pub(super) model: String,
    pub(super) ranks: usize,
    pub(super) batch: usize,
    pub(super) steps: usize,
    pub(super) every: usize,
    /// The links in words, where there are some.
    #[serde(skip)]
    pub(super) network: Option<String>,
    /// Bytes per second, where there are links.
    #[serde(rename = "link_bytes_per_second")]
    pub(super) link: Option<f64>,
}

pub(crate) struct SyncResults {
    pub(super) setting: Setting,
    pub(super) rows: Vec<Row>,
}

/// One side.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Row {
    #[serde(rename = "side")]
    name: String,
    /// Of all training steps.
    #[serde(rename = "train_seconds")]
    seconds: f64,
    /// What a rank handed to collectives for gradients or differences.
    #[serde(rename = "bytes_a_rank")]
    bytes: f64,
    /// What all ranks' interfaces have sent in the whole run, where there are links.
    #[serde(rename = "bytes_on_the_wire")]
    wire: Option<u64>,
    /// The share of the time of all steps in which rank 0 waited for others.
    waited: f64,
    /// In nats.
    validation_loss: f64,
}

impl Setting {
    pub(super) fn describe(&self) -> String {
        let Self {
            model,
            ranks,
            batch,
            steps,
            every,
            ..
        } = self;
        let links = self.network.as_ref().map(|network| format!("\n{network}"));
        format!(
            "method:  {steps} steps of {model} on {ranks} ranks, {batch} samples per step over all of them; DDP, and {every} steps\n         of each rank between outer steps; once each, in processes of \
             its own{}",
            links.unwrap_or_default()
        )
    }
}

impl Row {
    /// What the run in `run` says of itself.
    pub(super) fn read(name: &str, run: &Path, wire: Option<u64>) -> Result<Self, Failure> {
        let report = report_of(run)?;
        let path = run.join("metrics.jsonl");
        let metrics = std::fs::read_to_string(&path)
            .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
        Self::of(name, &report, &metrics, wire)
    }

    fn of(
        name: &str,
        report: &TrainingReport,
        metrics: &str,
        wire: Option<u64>,
    ) -> Result<Self, Failure> {
        let seconds = Some(report.train_seconds).filter(|seconds| *seconds > 0.0);
        let seconds = seconds
            .ok_or_else(|| Failure::new(format!("report.json of {name}: no `train_seconds`")))?;
        let lines = metrics.lines().rev();
        let lines = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let lines = lines.collect::<Vec<_>>();
        let validation = lines.iter().find(|line| line["kind"] == "validation");
        let epochs = lines.iter().filter(|line| line["kind"] == "train");
        let of_epochs = |field: &str| {
            let numbers = epochs.clone().filter_map(|line| line[field].as_f64());
            numbers.sum::<f64>()
        };
        let loss = validation.and_then(|line| line["loss"].as_f64());
        Ok(Self {
            name: name.to_owned(),
            seconds,
            bytes: report.gradient_bytes as f64,
            wire,
            waited: of_epochs("waited") / of_epochs("seconds"),
            validation_loss: loss
                .ok_or_else(|| Failure::new(format!("{name} was not validated")))?,
        })
    }

    pub(super) fn sentence(&self) -> String {
        format!(
            "{:.1} s, {} of it waiting, {:.2} MB per rank, validation loss {:.4}",
            self.seconds,
            percent(self.waited, 1),
            self.bytes / 1e6,
            self.validation_loss
        )
    }
}

/// What a side is to the first, if there is a first one.
fn to_first(measured: &SyncResults, row: &Row, of: impl Fn(&Row) -> f64) -> Option<f64> {
    let first = measured.rows.first().filter(|first| *first != row)?;
    Some(of(row) / of(first))
}

pub(super) fn table(measured: &SyncResults) -> String {
    let steps = measured.setting.steps as f64;
    let rows = measured.rows.iter().map(|row| {
        let fraction = to_first(measured, row, |row| row.bytes);
        let fraction = fraction.map(|part| format!("1/{:.1}", 1.0 / part));
        let faster = to_first(measured, row, |row| row.seconds);
        let faster = faster.map(|part| format!("{:.1}x", 1.0 / part));
        let loss = to_first(measured, row, |row| row.validation_loss);
        let loss = loss.map(|ratio| cells::more(ratio - 1.0, 2));
        let wire = row.wire.map(|bytes| format!("{:.1}", bytes as f64 / 1e6));
        vec![
            row.name.clone(),
            format!("{:.1}", row.bytes / steps / 1e3),
            fraction.unwrap_or_default(),
            wire.unwrap_or_default(),
            format!("{:.1}", row.seconds),
            faster.unwrap_or_default(),
            percent(row.waited, 1),
            format!("{:.4}", row.validation_loss),
            loss.unwrap_or_default(),
        ]
    });
    let header = [
        "side",
        "kB per step and rank",
        "of ddp",
        "MB on the wire",
        "seconds",
        "faster",
        "waits",
        "validation loss",
        "to ddp",
    ];
    aligned(&header, &rows.collect::<Vec<_>>(), &[])
}

pub(super) fn to_json(measured: &SyncResults, machine: &Value) -> Value {
    let SyncResults { setting, rows } = measured;
    let found = json!({ "benchmark": "sync", "machine": machine, "rows": rows });
    cells::joined(json!(setting), found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = r#"{"kind":"step","loss":9.0}
{"kind":"validation","loss":3.0}
{"kind":"train","loss":8.0,"seconds":8.0,"waited":1.0}
{"kind":"validation","loss":2.0}
"#;

    fn row(name: &str, seconds: f64, bytes: u64) -> Row {
        let report = TrainingReport {
            train_seconds: seconds,
            gradient_bytes: bytes,
            ..TrainingReport::default()
        };
        Row::of(name, &report, METRICS, Some(5_000_000)).unwrap()
    }

    fn measured() -> SyncResults {
        SyncResults {
            setting: Setting {
                model: "gpt-nano".into(),
                ranks: 4,
                batch: 32,
                steps: 100,
                every: 50,
                network: None,
                link: Some(1.25e6),
            },
            rows: vec![
                row("ddp", 400.0, 320_000_000),
                row("every=50", 40.0, 6_400_000),
            ],
        }
    }

    #[test]
    fn a_side_is_its_newest_validation_and_is_compared_with_the_first() {
        let table = table(&measured());
        let lines = table.lines().collect::<Vec<_>>();
        assert!(
            lines[1].starts_with("ddp ") && !lines[1].contains('x'),
            "{table}"
        );
        for cell in [
            "64.0", "1/50.0", "5.0", "40.0", "10.0x", "12.5 %", "2.0000", "+0.00 %",
        ] {
            assert!(lines[2].contains(cell), "{cell}: {table}");
        }
        let json = to_json(&measured(), &Value::Null);
        assert_eq!(json["rows"][1]["bytes_a_rank"], 6.4e6);
    }

    #[test]
    fn a_run_that_was_not_validated_is_no_measurement() {
        let mut report = TrainingReport {
            train_seconds: 1.0,
            ..TrainingReport::default()
        };
        let failure = Row::of("ddp", &report, "", None).unwrap_err().to_string();
        assert!(failure.contains("ddp was not validated"), "{failure}");
        report.train_seconds = 0.0;
        let failure = Row::of("ddp", &report, METRICS, None).unwrap_err();
        assert!(failure.to_string().contains("train_seconds"));
    }
}
