//! What `bench kernels` found: as tables and as JSON.

use everburn_record::statistics::{Spread, geometric_mean, median_ratio};
use everburn_record::table::aligned;
use serde_json::{Value, json};

use super::layer::Pass;
use super::options::Row;
use crate::cells::{mark, times};

/// Microseconds of a row with some number of threads, one value a round.
#[derive(Debug, Clone, Default)]
pub(super) struct Series {
    pub(super) ours: Vec<f64>,
    /// Empty where there is no peer.
    pub(super) peers: Vec<f64>,
}

impl Series {
    /// How many times as fast as the peer we are.
    fn ratio(&self) -> Option<f64> {
        median_ratio(&self.peers, &self.ours)
    }

    fn is_steady(&self) -> bool {
        [&self.ours, &self.peers]
            .into_iter()
            .filter_map(|times| Spread::of(times))
            .all(|spread| spread.is_steady())
    }
}

/// A row with its numbers.
#[derive(Debug, Clone)]
pub(super) struct BenchmarkRow {
    pub(super) row: Row,
    /// By number of threads, in the order in which they were asked for.
    pub(super) series: Vec<Series>,
}

/// All rows, those of a model and a batch together.
#[derive(Debug)]
pub(crate) struct KernelResults {
    pub(super) threads: Vec<usize>,
    pub(super) rows: Vec<BenchmarkRow>,
}

/// Some rows with one number of threads, in a few numbers.
#[derive(Debug)]
struct Summary<'a> {
    model: &'static str,
    /// Absent for all batches together.
    batch: Option<usize>,
    threads: usize,
    rows: usize,
    geometric_mean: Option<f64>,
    /// Rows in which the peer is faster.
    slower: usize,
    slowest: Option<(f64, &'a Row)>,
    /// Milliseconds of the layers in a training step, ours and the peer's.
    step: Option<(f64, Option<f64>)>,
}

impl KernelResults {
    pub(super) fn new(rows: Vec<Row>, threads: Vec<usize>) -> Self {
        let series = vec![Series::default(); threads.len()];
        let rows = rows.into_iter().map(|row| BenchmarkRow {
            row,
            series: series.clone(),
        });
        Self {
            rows: rows.collect(),
            threads,
        }
    }

    /// The rows of each model and batch.
    pub(super) fn groups(&self) -> impl Iterator<Item = &[BenchmarkRow]> {
        self.rows
            .chunk_by(|a, b| (a.row.model, a.row.batch) == (b.row.model, b.row.batch))
    }

    /// The result for a reader. `peer` names whom we were measured against, if anybody.
    pub(super) fn tables(&self, peer: Option<&str>) -> String {
        let tables = self.groups().filter_map(|rows| {
            let Row { model, batch, .. } = &rows.first()?.row;
            let batch = batch.map_or(String::new(), |batch| format!(", batch {batch}"));
            Some(format!("{model}{batch}\n{}", self.table(rows, peer)))
        });
        let summary = self.summary(peer);
        let all: Vec<_> = tables.chain([summary]).collect();
        all.join("\n\n")
    }

    fn table(&self, rows: &[BenchmarkRow], peer: Option<&str>) -> String {
        let mut header = vec!["microseconds of a call".to_owned(), "count".to_owned()];
        for &threads in &self.threads {
            header.push(match threads {
                1 => "1 thread".to_owned(),
                _ => format!("{threads} threads"),
            });
            if let Some(peer) = peer {
                header.extend([peer.to_owned(), "ratio".to_owned()]);
            }
        }
        header.push(String::new());
        let header: Vec<_> = header.iter().map(String::as_str).collect();
        let lines = rows.iter().map(|BenchmarkRow { row, series }| {
            let count = match row.count {
                0 => "part".to_owned(),
                count => count.to_string(),
            };
            let mut cells = vec![row.name(), count];
            for series in series {
                cells.push(microseconds(&series.ours));
                if peer.is_some() {
                    cells.push(microseconds(&series.peers));
                    cells.push(times(series.ratio()));
                }
            }
            cells.push(mark(series.iter().all(Series::is_steady)));
            cells
        });
        aligned(&header, &lines.collect::<Vec<_>>(), &[])
    }

    fn summary(&self, peer: Option<&str>) -> String {
        let mut header = vec!["all rows", "batch", "threads", "rows", "ms of a step"];
        if let Some(peer) = peer {
            header.extend([peer, "ratio", "geometric mean", "below 1x", "lowest", ""]);
        }
        let milliseconds =
            |time: Option<f64>| time.map_or_else(|| "-".to_owned(), |time| format!("{time:.1}"));
        let lines = self.summaries().into_iter().map(|summary| {
            let (ours, theirs) = summary.step.unzip();
            let theirs = theirs.flatten();
            let batch = summary.batch.map_or_else(|| "-".into(), |n| n.to_string());
            let mut cells = vec![summary.model.to_owned(), batch];
            cells.extend([summary.threads, summary.rows].map(|number| number.to_string()));
            cells.push(milliseconds(ours));
            if peer.is_some() {
                cells.push(milliseconds(theirs));
                cells.push(times(theirs.zip(ours).map(|(theirs, ours)| theirs / ours)));
                cells.push(times(summary.geometric_mean));
                cells.push(summary.slower.to_string());
                let (lowest, row) = summary.slowest.unzip();
                cells.push(times(lowest));
                cells.push(row.map_or_else(String::new, Row::name));
            }
            cells
        });
        aligned(&header, &lines.collect::<Vec<_>>(), &[])
    }

    /// By model, batch and threads; where a model was measured with several batches, of all together.
    fn summaries(&self) -> Vec<Summary<'_>> {
        let mut summaries = Vec::new();
        let models = self.rows.chunk_by(|a, b| a.row.model == b.row.model);
        for model in models {
            let groups: Vec<_> = model.chunk_by(|a, b| a.row.batch == b.row.batch).collect();
            for (index, &threads) in self.threads.iter().enumerate() {
                let one = |rows| summarize(rows, index, threads);
                summaries.extend(groups.iter().filter_map(|rows| one(rows)));
                if groups.len() > 1 {
                    let all = one(model).map(|all| Summary {
                        batch: None,
                        step: None,
                        ..all
                    });
                    summaries.extend(all);
                }
            }
        }
        summaries
    }

    /// The result for a program.
    pub(super) fn to_json(&self, peer: Option<&str>, machine: &Value) -> Value {
        let rows = self.rows.iter().flat_map(|BenchmarkRow { row, series }| {
            self.threads
                .iter()
                .zip(series)
                .map(move |(threads, series)| {
                    json!({
                        "model": row.model,
                        "batch": row.batch,
                        "layer": row.layer.to_string(),
                        "pass": row.pass,
                        "count": row.count,
                        "threads": threads,
                        "repeats": series.ours.len(),
                        "microseconds": Spread::of(&series.ours),
                        "peer_microseconds": Spread::of(&series.peers),
                        "ratio": series.ratio(),
                        "steady": series.is_steady(),
                    })
                })
        });
        let models = self.summaries().into_iter().map(|summary| {
            let (ours, theirs) = summary.step.unzip();
            json!({
                "model": summary.model,
                "batch": summary.batch,
                "threads": summary.threads,
                "rows": summary.rows,
                "geometric_mean": summary.geometric_mean,
                "below_1": summary.slower,
                "lowest": summary.slowest.map(|(ratio, _)| ratio),
                "lowest_row": summary.slowest.map(|(_, row)| row.name()),
                "step_ms": ours,
                "peer_step_ms": theirs.flatten(),
            })
        });
        json!({
            "machine": machine,
            "peer": peer,
            "rows": rows.collect::<Vec<_>>(),
            "models": models.collect::<Vec<_>>(),
        })
    }
}

/// The rows with the number of threads at `index`.
fn summarize(rows: &[BenchmarkRow], index: usize, threads: usize) -> Option<Summary<'_>> {
    let first = &rows.first()?.row;
    let ratios = rows.iter().filter_map(|measured| {
        let ratio = measured.series[index].ratio()?;
        Some((ratio, &measured.row))
    });
    let ratios: Vec<_> = ratios.collect();
    let only: Vec<_> = ratios.iter().map(|(ratio, _)| *ratio).collect();
    Some(Summary {
        model: first.model,
        batch: first.batch,
        threads,
        rows: rows.len(),
        geometric_mean: geometric_mean(&only),
        slower: only.iter().filter(|ratio| **ratio < 1.0).count(),
        slowest: ratios.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)),
        step: step(rows, index),
    })
}

/// What the layers of a training step take together, each as often as the model has it.
fn step(rows: &[BenchmarkRow], index: usize) -> Option<(f64, Option<f64>)> {
    let trained = rows
        .iter()
        .filter(|measured| measured.row.pass != Pass::Forward);
    let sum = |times: fn(&Series) -> &[f64]| {
        let milliseconds = trained.clone().map(|BenchmarkRow { row, series }| {
            let spread = Spread::of(times(&series[index]))?;
            Some(row.count as f64 * spread.median / 1e3)
        });
        let sum: Option<f64> = milliseconds.sum();
        sum.filter(|sum| *sum > 0.0)
    };
    Some((sum(|series| &series.ours)?, sum(|series| &series.peers)))
}

fn microseconds(times: &[f64]) -> String {
    match Spread::of(times) {
        None => "none".to_owned(),
        Some(Spread { median, .. }) if median < 100.0 => format!("{median:.1}"),
        Some(Spread { median, .. }) => format!("{median:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::layer::Layer;
    use super::*;

    fn row(batch: usize, pass: Pass, count: usize) -> Row {
        Row {
            model: "mnist",
            batch: Some(batch),
            layer: Layer::Relu { shape: vec![50] },
            pass,
            count,
        }
    }

    fn results(peers: bool) -> KernelResults {
        let rows = vec![
            row(8, Pass::Forward, 2),
            row(8, Pass::Backward, 2),
            row(64, Pass::Forward, 2),
            row(64, Pass::Backward, 0),
        ];
        let mut results = KernelResults::new(rows, vec![1, 2]);
        for (index, measured) in results.rows.iter_mut().enumerate() {
            let time = 100.0 * (index + 1) as f64;
            for (threads, series) in measured.series.iter_mut().enumerate() {
                series.ours = vec![time, time];
                if peers {
                    // Half as fast as we with one thread, twice as fast with two.
                    let ratio = [2.0, 0.5][threads];
                    series.peers = vec![time * ratio, 1.1 * time * ratio];
                }
            }
        }
        results
    }

    fn lines(text: &str) -> Vec<String> {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        text.lines().map(words).collect()
    }

    #[test]
    fn both_sides_stand_beside_each_other_for_each_number_of_threads() {
        let mut results = results(true);
        results.rows[0].series[0].ours[1] = 90.0;
        results.rows[1].series[1].ours[1] = 300.0;
        let tables = results.tables(Some("pytorch 2"));
        let lines = lines(&tables);
        assert_eq!(
            lines[..4],
            [
                "mnist, batch 8",
                "microseconds of a call count 1 thread pytorch 2 ratio 2 threads pytorch 2 ratio",
                "relu on 50, forward 2 95.0 210 2.22x 100 52.5 0.53x",
                "relu on 50, forward + backward 2 200 420 2.10x 250 105 0.43x unsteady",
            ],
            "{tables}"
        );
        assert!(
            lines.contains(
                &"relu on 50, forward + backward part 400 840 2.10x 400 210 0.53x".into()
            )
        );
    }

    #[test]
    fn a_model_ends_in_its_geometric_mean_and_the_time_of_a_step() {
        let mut results = results(true);
        results.rows[0].series[0].peers = vec![800.0, 800.0];
        let summary = lines(&results.summary(Some("pytorch")));
        // Of 8 and 2.1: 4.10. A step has the second row twice: 2 * 0.2 ms.
        let expected = "mnist 8 1 2 0.4 0.8 2.10x 4.10x 0 2.10x relu on 50, forward + backward";
        assert_eq!(summary[1], expected);
        // What counts for nothing leaves no step.
        let expected = "mnist 64 1 2 - - - 2.10x 0 2.10x relu on 50, forward";
        assert_eq!(summary[2], expected);
        assert!(
            summary[3].starts_with("mnist - 1 4 - - - 2.93x 0 2.10x"),
            "{summary:?}"
        );
        assert_eq!(summary.len(), 7);
        assert!(summary[4].contains("0.53x 2 0.53x"), "{summary:?}");
    }

    #[test]
    fn without_a_peer_there_is_no_ratio() {
        let results = results(false);
        let tables = results.tables(None);
        assert!(
            !tables.contains("ratio") && !tables.contains('x'),
            "{tables}"
        );
        let json = results.to_json(None, &Value::Null);
        assert_eq!(json["rows"].as_array().map(Vec::len), Some(8));
        assert_eq!(json["rows"][0]["ratio"], Value::Null);
        assert_eq!(json["rows"][2]["microseconds"]["median"], 200.0);
        assert_eq!(json["models"][0]["geometric_mean"], Value::Null);
        assert_eq!(json["models"][0]["step_ms"], 0.4);
    }

    #[test]
    fn a_row_of_json_has_both_sides() {
        let json = results(true).to_json(Some("pytorch 2"), &json!({ "cores": 2 }));
        assert_eq!(json["machine"]["cores"], 2);
        let row = &json["rows"][3];
        assert_eq!(row["threads"], 2);
        assert_eq!(row["pass"], "backward");
        assert_eq!(row["peer_microseconds"]["min"], 100.0);
        assert_eq!(row["ratio"], 0.525);
        assert_eq!(row["steady"], true);
        assert_eq!(json["models"][0]["lowest_row"], "relu on 50, forward");
    }
}
