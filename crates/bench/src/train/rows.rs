//! What `bench train` found: as a table and as JSON.

use std::path::PathBuf;

use everburn_record::statistics::{Spread, median_ratio};
use everburn_record::table::aligned;
use serde_json::{Value, json};

use super::options::Case;
use crate::cells::{mark, times};
use crate::peers::{FoundPeer, to_fastest};

/// The measurements of a case, one a round.
#[derive(Debug, Clone)]
pub(crate) struct CaseMeasurement {
    pub(super) case: Case,
    pub(super) steps: usize,
    /// Samples/s.
    pub(super) ours: Vec<f64>,
    /// In the order in which they were asked for.
    pub(super) peers: Vec<PeerMeasurement>,
    /// The data set of our runs.
    pub(super) dataset: String,
    /// Where its files are, if it has some.
    pub(super) data_path: Option<PathBuf>,
}

/// What a peer makes of the case.
#[derive(Debug, Clone)]
pub(super) struct PeerMeasurement {
    pub(super) found: FoundPeer,
    /// Samples/s; empty where it does not have the model.
    pub(super) rates: Vec<f64>,
    /// `real` or `random`.
    pub(super) data: Option<String>,
}

impl CaseMeasurement {
    /// Nothing yet.
    pub(super) fn new(case: Case, steps: usize, peers: &[FoundPeer]) -> Self {
        let nothing = |found: &FoundPeer| PeerMeasurement {
            found: found.clone(),
            rates: Vec::new(),
            data: None,
        };
        Self {
            case,
            steps,
            ours: Vec::new(),
            peers: peers.iter().map(nothing).collect(),
            dataset: String::new(),
            data_path: None,
        }
    }

    /// What the newest round has brought, in words.
    pub(super) fn last_round(&self) -> String {
        let (unit, of_a_sample) = self.case.unit();
        let last = |rates: &[f64]| rates.last().map(|rate| rate * of_a_sample);
        let mut text = format!("{:.0}", last(&self.ours).unwrap_or_default());
        for PeerMeasurement { found, rates, .. } in &self.peers {
            if let Some(rate) = last(rates) {
                text.push_str(&format!(", {} {rate:.0}", found.peer.name()));
            }
        }
        format!("{text} {unit}/s")
    }
}

/// A line of the result.
#[derive(Debug)]
struct Row<'a> {
    measured: &'a CaseMeasurement,
    ours: Spread,
    /// How much faster than one rank; absent where one rank was not measured.
    speedup: Option<f64>,
    /// Each peer's samples/s, and how many times as fast as it we are; `None` where it was not measured.
    peers: Vec<Option<(Spread, f64)>>,
}

impl Row<'_> {
    fn is_steady(&self) -> bool {
        let mut peers = self.peers.iter().flatten();
        self.ours.is_steady() && peers.all(|(spread, _)| spread.is_steady())
    }

    fn to_fastest(&self) -> Option<f64> {
        to_fastest(self.peers.iter().map(|peer| peer.map(|(_, ratio)| ratio)))
    }
}

fn rows(all: &[CaseMeasurement]) -> impl Iterator<Item = Row<'_>> {
    all.iter().filter_map(|measured| {
        let speedup = one_rank(all, &measured.case)
            .and_then(|one_rank| median_ratio(&measured.ours, &one_rank.ours));
        let peer = |PeerMeasurement { rates, .. }: &PeerMeasurement| {
            Spread::of(rates).zip(median_ratio(&measured.ours, rates))
        };
        Some(Row {
            measured,
            ours: Spread::of(&measured.ours)?,
            speedup,
            peers: measured.peers.iter().map(peer).collect(),
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

/// The result for a reader.
pub(super) fn table(all: &[CaseMeasurement]) -> String {
    let mut header = vec!["model", "ranks", "threads", "batch", "steps", "of"];
    header.extend(["a second", "(min-max)", "to 1 rank"]);
    let peers: &[PeerMeasurement] = all.first().map_or(&[], |measured| &measured.peers);
    let names = peers.iter().map(|peer| peer.found.peer.name());
    let names: Vec<_> = names.map(|name| (name, format!("ours/{name}"))).collect();
    for (name, ratio) in &names {
        header.extend([*name, "(min-max)", ratio.as_str()]);
    }
    if names.len() > 1 {
        header.push("ours/fastest");
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
            for peer in &row.peers {
                let spread = peer.map(|(spread, _)| rate(&spread, of_a_sample));
                cells.extend(spread.unwrap_or_else(|| ["none".into(), String::new()]));
                cells.push(times(peer.map(|(_, ratio)| ratio)));
            }
            if names.len() > 1 {
                cells.push(times(row.to_fastest()));
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

/// The result for a program: an array with an object for each case. `ratio` is to the fastest peer.
pub(super) fn to_json(all: &[CaseMeasurement], machine: &Value) -> Value {
    let rows = rows(all).map(|row| {
        let CaseMeasurement {
            case,
            steps,
            dataset,
            peers,
            ..
        } = row.measured;
        let tokens = |rate: f64| case.tokens().map(|tokens| rate * tokens as f64);
        let peer = |(measured, figures): (&PeerMeasurement, &Option<(Spread, f64)>)| {
            let (spread, ratio) = figures.as_ref()?;
            Some(json!({
                "name": measured.found.peer.name(),
                "version": measured.found.full_name(),
                "samples_per_second": spread.median,
                "min": spread.min,
                "max": spread.max,
                "tokens_per_second": tokens(spread.median),
                "data": measured.data,
                "ratio": ratio,
            }))
        };
        let peers: Vec<Value> = peers.iter().zip(&row.peers).filter_map(peer).collect();
        json!({
            "model": case.model,
            "ranks": case.ranks,
            "threads": case.threads,
            "batch": case.batch,
            "steps": steps,
            "rounds": row.measured.ours.len(),
            "samples_per_second": row.ours.median,
            "min": row.ours.min,
            "max": row.ours.max,
            "tokens_per_second": tokens(row.ours.median),
            "speedup": row.speedup,
            "peers": peers,
            "ratio": row.to_fastest(),
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
    use crate::peers::Peer;

    fn peer(peer: Peer, rates: &[f64]) -> PeerMeasurement {
        PeerMeasurement {
            found: FoundPeer::of_tests(peer, "2"),
            rates: rates.to_vec(),
            data: (!rates.is_empty()).then(|| "random".into()),
        }
    }

    fn measured(ranks: usize, threads: usize, ours: &[f64]) -> CaseMeasurement {
        let case = Case {
            model: "mnist".into(),
            ranks,
            threads,
            batch: 64,
        };
        CaseMeasurement {
            ours: ours.to_vec(),
            dataset: "synthetic-digits".into(),
            ..CaseMeasurement::new(case, 400, &[])
        }
    }

    fn alone() -> Vec<CaseMeasurement> {
        vec![
            measured(1, 1, &[1000.0, 900.0]),
            measured(1, 2, &[1500.0, 1700.0, 1600.0]),
            measured(2, 1, &[3000.0, 3400.0, 1600.0]),
        ]
    }

    fn beside_pytorch() -> Vec<CaseMeasurement> {
        let rates: [&[f64]; 3] = [&[2000.0, 1800.0], &[1500.0, 1700.0, 1600.0], &[]];
        let mut all = alone();
        for (measured, rates) in all.iter_mut().zip(rates) {
            measured.peers.push(peer(Peer::Pytorch, rates));
        }
        all
    }

    #[test]
    fn the_table_has_a_line_for_each_case() {
        let expected = "\
model  ranks  threads  batch  steps       of  a second    (min-max)  to 1 rank
mnist      1        1     64    400  samples       950   (900-1000)      0.60x
mnist      1        2     64    400  samples      1600  (1500-1700)      1.00x
mnist      2        1     64    400  samples      3000  (1600-3400)      2.00x  unsteady";
        assert_eq!(table(&alone()), expected);
    }

    #[test]
    fn a_peer_adds_columns_and_is_named_none_where_it_was_not_measured() {
        let table = table(&beside_pytorch());
        let ends: Vec<_> = table.lines().map(|line| &line[78..]).collect();
        assert_eq!(
            ends,
            [
                "  pytorch    (min-max)  ours/pytorch",
                "     1900  (1800-2000)         0.50x",
                "     1600  (1500-1700)         1.00x",
                "     none                          -  unsteady",
            ]
        );
    }

    #[test]
    fn of_several_peers_the_fastest_has_a_ratio_of_its_own() {
        let mut all = beside_pytorch();
        all[0].peers.push(peer(Peer::Jax, &[500.0, 450.0]));
        all[1]
            .peers
            .push(peer(Peer::Jax, &[3000.0, 3400.0, 3200.0]));
        all[2].peers.push(peer(Peer::Jax, &[]));
        let table = table(&all);
        let lines: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert!(
            lines[0].ends_with(&["jax", "(min-max)", "ours/jax", "ours/fastest"]),
            "{table}"
        );
        assert!(
            lines[1].ends_with(&["0.50x", "475", "(450-500)", "2.00x", "0.50x"]),
            "{table}"
        );
        assert!(
            lines[2].ends_with(&["1.00x", "3200", "(3000-3400)", "0.50x", "0.50x"]),
            "{table}"
        );
        assert!(
            lines[3].ends_with(&["none", "-", "none", "-", "-", "unsteady"]),
            "{table}"
        );
        assert_eq!(
            all[1].last_round(),
            "1600, pytorch 1600, jax 3200 samples/s"
        );
        let rows = to_json(&all, &machine());
        assert_eq!(rows[1]["ratio"], 0.5);
        assert_eq!(rows[0]["peers"][1]["ratio"], 2.0);
        assert_eq!(rows[2]["peers"], json!([]));
    }

    #[test]
    fn models_of_text_are_told_in_tokens() {
        let mut text = measured(1, 1, &[10.0]);
        text.peers.push(peer(Peer::Compile, &[5.0]));
        text.case.model = "gpt-nano".into();
        let table = table(std::slice::from_ref(&text));
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
        let rows = to_json(&[text], &machine());
        assert_eq!(rows[0]["samples_per_second"], 10.0);
        assert_eq!(rows[0]["tokens_per_second"], 640.0);
        assert_eq!(rows[0]["peers"][0]["tokens_per_second"], 320.0);
        let images = to_json(&alone(), &machine());
        assert_eq!(images[0]["tokens_per_second"], Value::Null);
    }

    #[test]
    fn without_one_rank_there_is_no_speedup() {
        let alone = [measured(2, 1, &[3000.0])];
        assert!(table(&alone).ends_with("  -"));
        let rows = to_json(&alone, &machine());
        assert_eq!(rows[0]["speedup"], Value::Null);
        assert_eq!(rows[0]["ratio"], Value::Null);
    }

    #[test]
    fn a_row_of_json_says_on_what_it_was_measured() {
        let rows = to_json(&beside_pytorch(), &machine());
        assert_eq!(rows.as_array().map(Vec::len), Some(3));
        let row = &rows[1];
        assert_eq!(row["samples_per_second"], 1600.0);
        assert_eq!(row["max"], 1700.0);
        assert_eq!(row["peers"][0]["name"], "pytorch");
        assert_eq!(row["peers"][0]["version"], "pytorch 2");
        assert_eq!(row["peers"][0]["data"], "random");
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
