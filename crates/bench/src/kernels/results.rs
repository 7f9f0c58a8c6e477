//! What `bench kernels` found: as tables and as JSON.

use everburn_record::statistics::{Spread, geometric_mean};
use everburn_record::table::aligned;
use everburn_record::units::counted;
use serde_json::{Value, json};

use super::layer::Pass;
use super::options::Row;
use crate::cells::{mark, or_dash, times};
use crate::peers::FoundPeer;
use crate::rounds::Beside;

/// A row with its numbers.
#[derive(Debug, Clone)]
pub(super) struct BenchmarkRow {
    pub(super) row: Row,
    /// Microseconds by number of threads, in the order in which they were asked for.
    pub(super) series: Vec<Beside>,
}

/// All rows, those of a model and a batch together.
#[derive(Debug)]
pub(crate) struct KernelResults {
    pub(super) threads: Vec<usize>,
    pub(super) rows: Vec<BenchmarkRow>,
    peers: Vec<FoundPeer>,
}

/// Some rows with one number of threads, in a few numbers.
#[derive(Debug)]
struct Summary<'a> {
    model: &'static str,
    /// Absent for all batches together.
    batch: Option<usize>,
    threads: usize,
    rows: usize,
    /// Of the ratios to each peer, and of those to the fastest.
    geometric_means: Vec<Option<f64>>,
    to_fastest: Option<f64>,
    /// Rows in which a peer is faster.
    slower: usize,
    slowest: Option<(f64, &'a Row)>,
    /// Milliseconds of the layers in a training step: ours, then each peer's.
    steps: Vec<Option<f64>>,
}

impl KernelResults {
    pub(super) fn new(rows: Vec<Row>, threads: Vec<usize>, peers: &[FoundPeer]) -> Self {
        let nothing = Beside {
            peers: vec![Vec::new(); peers.len()],
            ..Beside::default()
        };
        let series = vec![nothing; threads.len()];
        let rows = rows.into_iter().map(|row| BenchmarkRow {
            row,
            series: series.clone(),
        });
        Self {
            rows: rows.collect(),
            threads,
            peers: peers.to_vec(),
        }
    }

    /// The rows of each model and batch.
    pub(super) fn groups(&self) -> impl Iterator<Item = &[BenchmarkRow]> {
        self.rows
            .chunk_by(|a, b| (a.row.model, a.row.batch) == (b.row.model, b.row.batch))
    }

    /// The result for a reader.
    pub(super) fn tables(&self) -> String {
        let tables = self.groups().filter_map(|rows| {
            let Row { model, batch, .. } = &rows.first()?.row;
            let batch = batch.map_or(String::new(), |batch| format!(", batch {batch}"));
            Some(format!("{model}{batch}\n{}", self.table(rows)))
        });
        let summary = self.summary();
        let all: Vec<_> = tables.chain([summary]).collect();
        all.join("\n\n")
    }

    fn table(&self, rows: &[BenchmarkRow]) -> String {
        let mut header = vec!["microseconds of a call".to_owned(), "count".to_owned()];
        for &threads in &self.threads {
            header.push(counted(threads, "thread"));
            for found in &self.peers {
                header.extend([found.peer.name(), "ratio"].map(str::to_owned));
            }
            if self.peers.len() > 1 {
                header.push("to fastest".to_owned());
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
                for (peer, ratio) in series.peers.iter().zip(series.ratios()) {
                    cells.extend([microseconds(peer), times(ratio)]);
                }
                if series.peers.len() > 1 {
                    cells.push(times(series.to_fastest()));
                }
            }
            cells.push(mark(series.iter().all(Beside::is_steady)));
            cells
        });
        aligned(&header, &lines.collect::<Vec<_>>(), &[])
    }

    fn summary(&self) -> String {
        let mut header = vec!["all rows", "batch", "threads", "rows", "ms of a step"];
        for found in &self.peers {
            header.extend([found.peer.name(), "ratio", "geometric mean"]);
        }
        if self.peers.len() > 1 {
            header.push("to fastest");
        }
        if !self.peers.is_empty() {
            header.extend(["below 1x", "lowest", ""]);
        }
        let milliseconds = |time: Option<f64>| or_dash(time, |time| format!("{time:.1}"));
        let lines = self.summaries().into_iter().map(|summary| {
            let ours = summary.steps[0];
            let batch = or_dash(summary.batch, |n| n.to_string());
            let mut cells = vec![summary.model.to_owned(), batch];
            cells.extend([summary.threads, summary.rows].map(|number| number.to_string()));
            cells.push(milliseconds(ours));
            for (&theirs, mean) in summary.steps[1..].iter().zip(&summary.geometric_means) {
                cells.push(milliseconds(theirs));
                cells.push(times(theirs.zip(ours).map(|(theirs, ours)| theirs / ours)));
                cells.push(times(*mean));
            }
            if self.peers.len() > 1 {
                cells.push(times(summary.to_fastest));
            }
            if !self.peers.is_empty() {
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
                        steps: vec![None; all.steps.len()],
                        ..all
                    });
                    summaries.extend(all);
                }
            }
        }
        summaries
    }

    /// The result for a program. `ratio` and `geometric_mean` are to the fastest peer.
    pub(super) fn to_json(&self, machine: &Value) -> Value {
        let names = || self.peers.iter().map(|found| found.peer.name());
        let rows = self.rows.iter().flat_map(|BenchmarkRow { row, series }| {
            self.threads
                .iter()
                .zip(series)
                .map(move |(threads, series)| {
                    let peer = |((name, times), ratio): ((&str, &Vec<f64>), Option<f64>)| {
                        json!({ "name": name, "microseconds": Spread::of(times), "ratio": ratio })
                    };
                    let peers = names().zip(&series.peers).zip(series.ratios()).map(peer);
                    json!({
                        "model": row.model,
                        "batch": row.batch,
                        "layer": row.layer.to_string(),
                        "pass": row.pass,
                        "count": row.count,
                        "threads": threads,
                        "rounds": series.ours.len(),
                        "microseconds": Spread::of(&series.ours),
                        "peers": peers.collect::<Vec<_>>(),
                        "ratio": series.to_fastest(),
                        "steady": series.is_steady(),
                    })
                })
        });
        let models = self.summaries().into_iter().map(|summary| {
            let peer = |((name, step), mean): ((&str, &Option<f64>), &Option<f64>)| {
                json!({ "name": name, "step_ms": step, "geometric_mean": mean })
            };
            let means = &summary.geometric_means;
            let peers = names().zip(&summary.steps[1..]).zip(means).map(peer);
            json!({
                "model": summary.model,
                "batch": summary.batch,
                "threads": summary.threads,
                "rows": summary.rows,
                "peers": peers.collect::<Vec<_>>(),
                "geometric_mean": summary.to_fastest,
                "below_1": summary.slower,
                "lowest": summary.slowest.map(|(ratio, _)| ratio),
                "lowest_row": summary.slowest.map(|(_, row)| row.name()),
                "step_ms": summary.steps[0],
            })
        });
        json!({
            "machine": machine,
            "peers": self.peers.iter().map(FoundPeer::full_name).collect::<Vec<_>>(),
            "rows": rows.collect::<Vec<_>>(),
            "models": models.collect::<Vec<_>>(),
        })
    }
}

/// The rows with the number of threads at `index`.
fn summarize(rows: &[BenchmarkRow], index: usize, threads: usize) -> Option<Summary<'_>> {
    let first = &rows.first()?.row;
    let ratios = rows.iter().filter_map(|measured| {
        let ratio = measured.series[index].to_fastest()?;
        Some((ratio, &measured.row))
    });
    let ratios: Vec<_> = ratios.collect();
    let only: Vec<_> = ratios.iter().map(|(ratio, _)| *ratio).collect();
    let to_peer = |peer: usize| {
        let each = rows.iter().map(|measured| &measured.series[index]);
        let each = each.filter_map(|series| series.ratios().nth(peer).flatten());
        geometric_mean(&each.collect::<Vec<_>>())
    };
    Some(Summary {
        model: first.model,
        batch: first.batch,
        threads,
        rows: rows.len(),
        geometric_means: (0..rows[0].series[index].peers.len())
            .map(to_peer)
            .collect(),
        to_fastest: geometric_mean(&only),
        slower: only.iter().filter(|ratio| **ratio < 1.0).count(),
        slowest: ratios.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)),
        steps: steps(rows, index),
    })
}

/// What the layers of a training step take together, each as often as the model has it: ours, then each peer's.
fn steps(rows: &[BenchmarkRow], index: usize) -> Vec<Option<f64>> {
    let trained = rows
        .iter()
        .filter(|measured| measured.row.pass != Pass::Forward);
    let sum = |side: usize| {
        let milliseconds = trained.clone().map(|BenchmarkRow { row, series }| {
            let Beside { ours, peers, .. } = &series[index];
            let spread = Spread::of(if side == 0 { ours } else { &peers[side - 1] })?;
            Some(row.count as f64 * spread.median / 1e3)
        });
        milliseconds.sum::<Option<f64>>().filter(|sum| *sum > 0.0)
    };
    (0..=rows[0].series[index].peers.len()).map(sum).collect()
}

fn microseconds(times: &[f64]) -> String {
    match Spread::of(times) {
        None => "none".to_owned(),
        Some(Spread { median, .. }) if median < 100.0 => format!("{median:.1}"),
        Some(Spread { median, .. }) => format!("{median:.0}"),
    }
}

#[cfg(test)]
mod tests;
