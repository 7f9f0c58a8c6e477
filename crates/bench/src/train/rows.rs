//! What `bench train` found: as a table and as JSON.

use std::path::PathBuf;

use everburn_record::statistics::{Spread, median_ratio};
use everburn_record::table::aligned;
use serde_json::{Value, json};

use super::options::Case;
use crate::cells::{mark, times};
use crate::peers::FoundPeer;
use crate::rounds::Beside;

/// The measurements of a case.
#[derive(Debug, Clone)]
pub(crate) struct CaseMeasurement {
    pub(super) case: Case,
    pub(super) steps: usize,
    /// Samples/s; a peer that does not have the model has none.
    pub(super) rates: Beside,
    /// The data set of our runs.
    pub(super) dataset: String,
    /// Where its files are, if it has some: peers read them too.
    pub(super) data_path: Option<PathBuf>,
}

impl CaseMeasurement {
    /// Nothing yet.
    pub(super) fn new(case: Case, steps: usize, peers: usize) -> Self {
        Self {
            case,
            steps,
            rates: Beside {
                are_rates: true,
                peers: vec![Vec::new(); peers],
                ..Beside::default()
            },
            dataset: String::new(),
            data_path: None,
        }
    }

    /// What the peers' scripts call their data.
    pub(super) fn kind_of_data(&self) -> &'static str {
        match self.data_path {
            Some(_) => "real",
            None => "random",
        }
    }

    /// What the newest round has brought, in words.
    pub(super) fn last_round(&self, peers: &[FoundPeer]) -> String {
        let (unit, of_a_sample) = self.case.unit();
        let last = |rates: &[f64]| rates.last().map(|rate| rate * of_a_sample);
        let mut text = format!("{:.0}", last(&self.rates.ours).unwrap_or_default());
        for (found, rates) in peers.iter().zip(&self.rates.peers) {
            if let Some(rate) = last(rates) {
                text.push_str(&format!(", {} {rate:.0}", found.peer.name()));
            }
        }
        format!("{text} {unit}/s")
    }

    /// How much faster than one rank; absent where one rank was not measured.
    fn speedup(&self, all: &[Self]) -> Option<f64> {
        let one_rank = one_rank(all, &self.case)?;
        median_ratio(&self.rates.ours, &one_rank.rates.ours)
    }
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
pub(super) fn table(all: &[CaseMeasurement], peers: &[FoundPeer]) -> String {
    let mut header = vec!["model", "ranks", "threads", "batch", "steps", "of"];
    header.extend(["a second", "(min-max)", "to 1 rank"]);
    let names = peers.iter().map(|found| found.peer.name());
    let names: Vec<_> = names.map(|name| (name, format!("ours/{name}"))).collect();
    for (name, ratio) in &names {
        header.extend([*name, "(min-max)", ratio.as_str()]);
    }
    if names.len() > 1 {
        header.push("ours/fastest");
    }
    let lines = all.iter().filter_map(|measured| {
        let CaseMeasurement {
            case, steps, rates, ..
        } = measured;
        let mut cells = vec![case.model.clone()];
        cells.extend([case.ranks, case.threads, case.batch, *steps].map(|n| n.to_string()));
        let (unit, of_a_sample) = case.unit();
        cells.push(unit.to_owned());
        cells.extend(rate(&Spread::of(&rates.ours)?, of_a_sample));
        cells.push(times(measured.speedup(all)));
        for (theirs, ratio) in rates.peers.iter().zip(rates.ratios()) {
            let spread = Spread::of(theirs).map(|spread| rate(&spread, of_a_sample));
            cells.extend(spread.unwrap_or_else(|| ["none".into(), String::new()]));
            cells.push(times(ratio));
        }
        if names.len() > 1 {
            cells.push(times(rates.to_fastest()));
        }
        cells.push(mark(rates.is_steady()));
        Some(cells)
    });
    let lines: Vec<_> = lines.collect();
    header.push("");
    aligned(&header, &lines, &[])
}

fn rate(spread: &Spread, of_a_sample: f64) -> [String; 2] {
    let [median, min, max] = [spread.median, spread.min, spread.max].map(|rate| rate * of_a_sample);
    [format!("{median:.0}"), format!("({min:.0}-{max:.0})")]
}

/// The result for a program: an array with an object for each case. `ratio` is to the fastest peer.
pub(super) fn to_json(all: &[CaseMeasurement], peers: &[FoundPeer], machine: &Value) -> Value {
    let rows = all.iter().filter_map(|measured| {
        let CaseMeasurement { case, rates, .. } = measured;
        let tokens = |rate: f64| case.tokens().map(|tokens| rate * tokens as f64);
        let ours = Spread::of(&rates.ours)?;
        let peer = |((found, theirs), ratio): ((&FoundPeer, &Vec<f64>), Option<f64>)| {
            let spread = Spread::of(theirs)?;
            Some(json!({
                "name": found.peer.name(),
                "version": found.full_name(),
                "samples_per_second": spread.median,
                "min": spread.min,
                "max": spread.max,
                "tokens_per_second": tokens(spread.median),
                "data": measured.kind_of_data(),
                "ratio": ratio,
            }))
        };
        let peers = peers.iter().zip(&rates.peers).zip(rates.ratios());
        Some(json!({
            "model": case.model,
            "ranks": case.ranks,
            "threads": case.threads,
            "batch": case.batch,
            "steps": measured.steps,
            "rounds": rates.ours.len(),
            "samples_per_second": ours.median,
            "min": ours.min,
            "max": ours.max,
            "tokens_per_second": tokens(ours.median),
            "speedup": measured.speedup(all),
            "peers": peers.filter_map(peer).collect::<Vec<_>>(),
            "ratio": rates.to_fastest(),
            "dataset": measured.dataset,
            "steady": rates.is_steady(),
            "machine": machine,
        }))
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::Peer;
    use crate::train::options::tests::case;

    fn peers(peers: &[Peer]) -> Vec<FoundPeer> {
        let found = |peer: &Peer| FoundPeer::of_tests(*peer, "2");
        peers.iter().map(found).collect()
    }

    fn measured(ranks: usize, threads: usize, ours: &[f64]) -> CaseMeasurement {
        let case = Case {
            ranks,
            threads,
            ..case()
        };
        let mut measured = CaseMeasurement::new(case, 400, 0);
        measured.rates.ours = ours.to_vec();
        measured.dataset = "synthetic-digits".into();
        measured
    }

    fn alone() -> Vec<CaseMeasurement> {
        vec![
            measured(1, 1, &[1000.0, 900.0]),
            measured(1, 2, &[1500.0, 1700.0, 1600.0]),
            measured(2, 1, &[3000.0, 3400.0, 1600.0]),
        ]
    }

    fn beside(theirs: [&[&[f64]]; 3]) -> Vec<CaseMeasurement> {
        let mut all = alone();
        for (measured, theirs) in all.iter_mut().zip(theirs) {
            measured.rates.peers = theirs.iter().map(|rates| rates.to_vec()).collect();
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
        assert_eq!(table(&alone(), &[]), expected);
    }

    #[test]
    fn a_peer_adds_columns_and_is_named_none_where_it_was_not_measured() {
        let all = beside([
            &[&[2000.0, 1800.0], &[500.0, 450.0]],
            &[&[1500.0, 1700.0, 1600.0], &[3000.0, 3400.0, 3200.0]],
            &[&[], &[]],
        ]);
        let peers = peers(&[Peer::Pytorch, Peer::Jax]);
        let table = table(&all, &peers);
        let ends: Vec<_> = table.lines().map(|line| &line[78..]).collect();
        assert_eq!(
            ends,
            [
                "  pytorch    (min-max)  ours/pytorch   jax    (min-max)  ours/jax  ours/fastest",
                "     1900  (1800-2000)         0.50x   475    (450-500)     2.00x         0.50x",
                "     1600  (1500-1700)         1.00x  3200  (3000-3400)     0.50x         0.50x",
                "     none                          -  none                      -             -  unsteady",
            ]
        );
        assert_eq!(
            all[1].last_round(&peers),
            "1600, pytorch 1600, jax 3200 samples/s"
        );
        let rows = to_json(&all, &peers, &Value::Null);
        assert_eq!(
            (&rows[0]["ratio"], &rows[1]["ratio"]),
            (&json!(0.5), &json!(0.5))
        );
        assert_eq!(rows[0]["peers"][1]["ratio"], 2.0);
        assert_eq!(
            (&rows[2]["peers"], &rows[2]["ratio"]),
            (&json!([]), &Value::Null)
        );
    }

    #[test]
    fn models_of_text_are_counted_in_tokens() {
        let mut text = measured(1, 1, &[10.0]);
        text.rates.peers = vec![vec![5.0]];
        text.case.model = "gpt-nano".into();
        let (all, peers) = ([text], peers(&[Peer::Compile]));
        let table = table(&all, &peers);
        let line = table.lines().last().unwrap();
        let words: Vec<_> = line.split_whitespace().skip(5).collect();
        let expected = "tokens 640 (640-640) 1.00x 320 (320-320) 2.00x";
        assert_eq!(words.join(" "), expected, "{table}");
        let rows = to_json(&all, &peers, &Value::Null);
        assert_eq!(rows[0]["samples_per_second"], 10.0);
        assert_eq!(rows[0]["tokens_per_second"], 640.0);
        assert_eq!(rows[0]["peers"][0]["tokens_per_second"], 320.0);
    }

    #[test]
    fn without_one_rank_there_is_no_speedup() {
        let alone = [measured(2, 1, &[3000.0])];
        assert!(table(&alone, &[]).ends_with("  -"));
        let rows = to_json(&alone, &[], &Value::Null);
        assert_eq!(rows[0]["speedup"], Value::Null);
    }

    #[test]
    fn a_row_of_json_says_on_what_it_was_measured() {
        let all = beside([&[&[1900.0]], &[&[1600.0]], &[&[]]]);
        let machine = json!({ "cores": 2, "cpu": "Xeon 9" });
        let rows = to_json(&all, &peers(&[Peer::Pytorch]), &machine);
        assert_eq!(rows.as_array().map(Vec::len), Some(3));
        let row = &rows[1];
        assert_eq!(row["samples_per_second"], 1600.0);
        assert_eq!(row["max"], 1700.0);
        assert_eq!(row["tokens_per_second"], Value::Null);
        assert_eq!(row["peers"][0]["version"], "pytorch 2");
        assert_eq!(row["peers"][0]["data"], "random");
        assert_eq!(row["dataset"], "synthetic-digits");
        assert_eq!(
            (&row["steady"], &rows[2]["steady"]),
            (&json!(true), &json!(false))
        );
        assert_eq!(row["machine"], machine);
    }
}
