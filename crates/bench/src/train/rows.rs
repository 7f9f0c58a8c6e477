//! What `bench train` found: as a table and as JSON.

use everburn_record::statistics::{Spread, median_ratio};
use everburn_record::table::aligned;
use serde_json::{Value, json};

use super::options::Case;
use crate::cells::{mark, times};

/// The measurements of a case, one a round.
#[derive(Debug, Clone)]
pub(crate) struct CaseMeasurement {
    pub(super) case: Case,
    pub(super) steps: usize,
    /// Samples/s.
    pub(super) ours: Vec<f64>,
    /// The peer's; empty where there is none.
    pub(super) peers: Vec<f64>,
    /// The data set of our runs.
    pub(super) dataset: String,
    /// The peer's: `real` or `random`.
    pub(super) peer_data: Option<String>,
}

impl CaseMeasurement {
    /// Nothing yet.
    pub(super) fn new(case: Case, steps: usize) -> Self {
        Self {
            case,
            steps,
            ours: Vec::new(),
            peers: Vec::new(),
            dataset: String::new(),
            peer_data: None,
        }
    }
}

/// A line of the result.
#[derive(Debug)]
struct Row<'a> {
    measured: &'a CaseMeasurement,
    ours: Spread,
    /// How much faster than one rank; absent where one rank was not measured.
    speedup: Option<f64>,
    peer: Option<(Spread, f64)>,
}

impl Row<'_> {
    fn is_steady(&self) -> bool {
        let peer = self.peer.as_ref().map(|(spread, _)| spread);
        [Some(&self.ours), peer]
            .into_iter()
            .flatten()
            .all(Spread::is_steady)
    }
}

fn rows(all: &[CaseMeasurement]) -> impl Iterator<Item = Row<'_>> {
    all.iter().filter_map(|measured| {
        let speedup = one_rank(all, &measured.case)
            .and_then(|one_rank| median_ratio(&measured.ours, &one_rank.ours));
        let ratio = median_ratio(&measured.ours, &measured.peers);
        Some(Row {
            measured,
            ours: Spread::of(&measured.ours)?,
            speedup,
            peer: Spread::of(&measured.peers).zip(ratio),
        })
    })
}

/// What one process makes of the same work with as many threads as it was given.
fn one_rank<'a>(all: &'a [CaseMeasurement], case: &Case) -> Option<&'a CaseMeasurement> {
    all.iter()
        .filter(|other| {
            let other = &other.case;
            other.ranks == 1 && other.model == case.model && other.batch == case.batch
        })
        .max_by_key(|other| other.case.threads)
}

/// The result for a reader. `peer` names whom we were measured against, if anybody.
pub(super) fn table(all: &[CaseMeasurement], peer: Option<&str>) -> String {
    let mut header = vec!["model", "ranks", "threads", "batch", "steps", "of"];
    header.extend(["a second", "(min-max)", "to 1 rank"]);
    if let Some(peer) = peer {
        header.extend([peer, "(min-max)", "ours/peer"]);
    }
    let lines: Vec<_> = rows(all)
        .map(|row| {
            let CaseMeasurement { case, steps, .. } = row.measured;
            let mut cells = vec![case.model.clone()];
            cells.extend([case.ranks, case.threads, case.batch, *steps].map(|n| n.to_string()));
            let (unit, of_a_sample) = case.unit();
            cells.push(unit.to_owned());
            cells.extend(rate(&row.ours, of_a_sample));
            cells.push(times(row.speedup));
            if peer.is_some() {
                let spread = row
                    .peer
                    .as_ref()
                    .map(|(spread, _)| rate(spread, of_a_sample));
                cells.extend(spread.unwrap_or_else(|| ["none".into(), String::new()]));
                cells.push(times(row.peer.as_ref().map(|(_, ratio)| *ratio)));
            }
            cells.push(mark(row.is_steady()));
            cells
        })
        .collect();
    header.push("");
    aligned(&header, &lines, &[])
}

fn rate(spread: &Spread, of_a_sample: f64) -> [String; 2] {
    let [median, min, max] = [spread.median, spread.min, spread.max].map(|rate| rate * of_a_sample);
    [format!("{median:.0}"), format!("({min:.0}-{max:.0})")]
}

/// The result for a program: an array with an object for each case.
pub(super) fn to_json(all: &[CaseMeasurement], peer: Option<&str>, machine: &Value) -> Value {
    let rows = rows(all).map(|row| {
        let CaseMeasurement {
            case,
            steps,
            dataset,
            peer_data,
            ..
        } = row.measured;
        let (spread, ratio) = row.peer.unzip();
        let tokens = |rate: f64| case.tokens().map(|tokens| rate * tokens as f64);
        json!({
            "model": case.model,
            "ranks": case.ranks,
            "threads": case.threads,
            "batch": case.batch,
            "steps": steps,
            "repeats": row.measured.ours.len(),
            "samples_per_second": row.ours.median,
            "min": row.ours.min,
            "max": row.ours.max,
            "tokens_per_second": tokens(row.ours.median),
            "speedup": row.speedup,
            "peer": peer.filter(|_| spread.is_some()),
            "peer_samples_per_second": spread.map(|spread| spread.median),
            "peer_tokens_per_second": spread.and_then(|spread| tokens(spread.median)),
            "peer_min": spread.map(|spread| spread.min),
            "peer_max": spread.map(|spread| spread.max),
            "peer_data": peer_data,
            "ratio": ratio,
            "dataset": dataset,
            "steady": row.is_steady(),
            "machine": machine,
        })
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(ranks: usize, threads: usize, ours: &[f64], peers: &[f64]) -> CaseMeasurement {
        CaseMeasurement {
            case: Case {
                model: "mnist".into(),
                ranks,
                threads,
                batch: 64,
            },
            steps: 400,
            ours: ours.to_vec(),
            peers: peers.to_vec(),
            dataset: "synthetic-digits".into(),
            peer_data: (!peers.is_empty()).then(|| "random".into()),
        }
    }

    fn three() -> Vec<CaseMeasurement> {
        vec![
            measured(1, 1, &[1000.0, 900.0], &[2000.0, 1800.0]),
            measured(1, 2, &[1500.0, 1700.0, 1600.0], &[1500.0, 1700.0, 1600.0]),
            measured(2, 1, &[3000.0, 3400.0, 1600.0], &[]),
        ]
    }

    #[test]
    fn the_table_has_a_line_for_each_case() {
        let expected = "\
model  ranks  threads  batch  steps       of  a second    (min-max)  to 1 rank
mnist      1        1     64    400  samples       950   (900-1000)      0.60x
mnist      1        2     64    400  samples      1600  (1500-1700)      1.00x
mnist      2        1     64    400  samples      3000  (1600-3400)      2.00x  unsteady";
        assert_eq!(table(&three(), None), expected);
    }

    #[test]
    fn a_peer_adds_columns_and_is_named_none_where_it_was_not_measured() {
        let table = table(&three(), Some("pytorch 2"));
        let ends: Vec<_> = table.lines().map(|line| &line[78..]).collect();
        assert_eq!(
            ends,
            [
                "  pytorch 2    (min-max)  ours/peer",
                "       1900  (1800-2000)      0.50x",
                "       1600  (1500-1700)      1.00x",
                "       none                       -  unsteady",
            ]
        );
    }

    #[test]
    fn models_of_text_are_told_in_tokens() {
        let mut text = measured(1, 1, &[10.0], &[5.0]);
        text.case.model = "gpt-nano".into();
        let table = table(std::slice::from_ref(&text), Some("pytorch 2"));
        let words: Vec<_> = table.split_whitespace().collect();
        let expected = [
            "tokens",
            "640",
            "(640-640)",
            "1.00x",
            "320",
            "(320-320)",
            "2.00x",
        ];
        assert!(words.ends_with(&expected), "{table}");
        let rows = to_json(&[text], Some("pytorch 2"), &machine());
        assert_eq!(rows[0]["samples_per_second"], 10.0);
        assert_eq!(rows[0]["tokens_per_second"], 640.0);
        assert_eq!(rows[0]["peer_tokens_per_second"], 320.0);
        let images = to_json(&three(), None, &machine());
        assert_eq!(images[0]["tokens_per_second"], Value::Null);
    }

    #[test]
    fn without_one_rank_there_is_no_speedup() {
        let alone = [measured(2, 1, &[3000.0], &[])];
        assert!(table(&alone, None).ends_with("  -"));
        let rows = to_json(&alone, Some("pytorch 2"), &machine());
        assert_eq!(rows[0]["speedup"], Value::Null);
        assert_eq!(rows[0]["peer"], Value::Null);
    }

    #[test]
    fn a_row_of_json_says_on_what_it_was_measured() {
        let rows = to_json(&three(), Some("pytorch 2"), &machine());
        assert_eq!(rows.as_array().map(Vec::len), Some(3));
        let row = &rows[1];
        assert_eq!(row["samples_per_second"], 1600.0);
        assert_eq!(row["max"], 1700.0);
        assert_eq!(row["peer"], "pytorch 2");
        assert_eq!(row["peer_data"], "random");
        assert_eq!(row["ratio"], 1.0);
        assert_eq!(row["dataset"], "synthetic-digits");
        assert_eq!(row["steady"], true);
        assert_eq!(rows[2]["steady"], false);
        assert_eq!(row["machine"]["cores"], 2);
        assert_eq!(row["machine"]["cpu"], "Xeon 9");
    }

    fn machine() -> Value {
        json!({ "cores": 2, "cpu": "Xeon 9" })
    }
}
