//! `bench kernels`: single layers of the models beside PyTorch's.
//!
//! The rows are described here, once, and given to both sides, which fill their tensors with the same
//! numbers. Each side is a process for each number of threads, all of which live all the time; they are
//! given rows in turn, and stand still (`SIGSTOP`) while it is not theirs.

pub(crate) mod layer;
mod networks;
mod options;
mod results;
mod side;
pub(crate) mod worker;

use std::path::Path;

use everburn_record::statistics::{geometric_mean, median_ratio};
use serde_json::Value;

pub(crate) use self::options::KernelsBench;
use self::results::{BenchmarkRow, KernelResults};
use self::side::Side;
use crate::bench::{Bench, Setup};
use crate::cells;
use crate::failure::Failure;

/// How the peer is called in tables, whatever its version.
const PEER: &str = "pytorch";

impl Bench for KernelsBench {
    const NAME: &'static str = "kernels";
    const ABOUT: &'static str =
        "microseconds of the models' layers by threads and batch size; --against pytorch";

    type Results = KernelResults;

    fn json_file(&self) -> Option<&Path> {
        self.common.json.as_deref()
    }

    fn check(&self) -> Result<(), Failure> {
        self.rows().map(drop)
    }

    fn is_against_pytorch(&self) -> bool {
        self.against.is_some()
    }

    fn measure(&self, setup: &Setup) -> Result<KernelResults, Failure> {
        let (rows, threads) = (self.rows()?, self.threads(setup.machine.cores)?);
        let mut pairs = Vec::new();
        for &threads in &threads {
            let start = |name: &str, command| {
                Side::start(&setup.children, name, command, threads, setup.folder())
            };
            pairs.push(Pair {
                ours: start("everburn", side::ours(&setup.program, threads))?,
                peer: match &setup.pytorch {
                    None => None,
                    Some(pytorch) => Some(start(PEER, side::pytorch(pytorch, threads))?),
                },
            });
        }
        let mut results = KernelResults::new(rows, threads);
        measure(&mut results, &mut pairs, self)?;
        for pair in pairs {
            pair.finish(self.common.patience())?;
        }
        Ok(results)
    }

    fn notes(&self, _: &KernelResults, setup: &Setup) -> String {
        notes(self, setup.peer().as_deref())
    }

    fn table(&self, results: &KernelResults, setup: &Setup) -> String {
        results.tables(setup.pytorch.as_ref().map(|_| PEER))
    }

    fn to_json(&self, results: &KernelResults, setup: &Setup, machine: &Value) -> Value {
        results.to_json(setup.peer().as_deref(), machine)
    }
}

/// Who measures with one number of threads.
struct Pair<'a> {
    ours: Side<'a>,
    peer: Option<Side<'a>>,
}

impl Pair<'_> {
    fn finish(self, patience: std::time::Duration) -> Result<(), Failure> {
        self.ours.finish(patience)?;
        self.peer.map_or(Ok(()), |peer| peer.finish(patience))
    }

    /// Measures a row on both sides; in the first round they also compare what comes out.
    fn measure(
        &mut self,
        measured: &mut BenchmarkRow,
        index: usize,
        round: usize,
        options: &KernelsBench,
    ) -> Result<(), Failure> {
        let row = &measured.row;
        let check = round == 1 && self.peer.is_some();
        let order = row.order(options.milliseconds, check);
        let patience = options.common.patience();
        let ask = |side: &mut Side<'_>| side.measure(row, &order, patience);
        // Who comes first has the caches of whoever came before.
        let peer_first = round.is_multiple_of(2);
        let mut theirs = None;
        if let (true, Some(peer)) = (peer_first, &mut self.peer) {
            theirs = Some(ask(peer)?);
        }
        let ours = ask(&mut self.ours)?;
        if let (false, Some(peer)) = (peer_first, &mut self.peer) {
            theirs = Some(ask(peer)?);
        }
        let series = &mut measured.series[index];
        series.ours.push(ours.microseconds);
        if let Some(theirs) = theirs {
            ours.compare(&theirs, row)?;
            series.peers.push(theirs.microseconds);
        }
        Ok(())
    }
}

/// Every row once a round on every side; `pairs` are in the order of the threads.
fn measure(
    results: &mut KernelResults,
    pairs: &mut [Pair<'_>],
    options: &KernelsBench,
) -> Result<(), Failure> {
    let groups: Vec<_> = results.groups().map(<[_]>::len).collect();
    for round in 1..=options.repeats {
        let mut rows = results.rows.as_mut_slice();
        for &length in &groups {
            let (group, rest) = rows.split_at_mut(length);
            rows = rest;
            for (index, pair) in pairs.iter_mut().enumerate() {
                for measured in &mut *group {
                    pair.measure(measured, index, round, options)?;
                }
                let progress = progress(group, index, &pair.ours.name);
                eprintln!("[round {round}/{}] {progress}", options.repeats);
            }
        }
    }
    Ok(())
}

/// Where the rounds so far have brought some rows.
fn progress(group: &[BenchmarkRow], index: usize, side: &str) -> String {
    let ratios: Vec<_> = group
        .iter()
        .filter_map(|measured| {
            let series = &measured.series[index];
            median_ratio(&series.peers, &series.ours)
        })
        .collect();
    let mean = geometric_mean(&ratios)
        .map_or(String::new(), |mean| format!(", geometric mean {mean:.2}x"));
    let batch = group.first().and_then(|measured| measured.row.batch);
    let batch = batch.map_or(String::new(), |batch| format!(", batch {batch}"));
    let model = group
        .first()
        .map_or("nothing", |measured| measured.row.model);
    format!("{model}{batch}: {} rows of {side}{mean}", group.len())
}

/// What one has to know to judge the tables.
fn notes(options: &KernelsBench, peer: Option<&str>) -> String {
    let rounds = cells::rounds(options.repeats);
    let milliseconds = options.milliseconds;
    let mut notes = vec![
        format!(
            "method:  {rounds}, in each the median call of {milliseconds} ms after a warm-up; f32;"
        ),
        "         backward starts from a given gradient; freed memory is kept for the next call;"
            .into(),
        "         \"count\": how often the model has the layer, \"part\": it is in another row;"
            .into(),
        "         \"ms of a step\": all rows with gradients, each as often as the model has it;"
            .into(),
        "         `unsteady`: the rounds of a line differ by more than a quarter".into(),
    ];
    if let Some(peer) = peer {
        notes.push(format!(
            "peer:    {peer}, on the same numbers with equal results, which is checked;\n         \
             \"ratio\": its time by ours, so that we are faster above 1.00x"
        ));
    }
    notes.join("\n")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use clap::Parser;
    use everburn::launch::Children;
    use everburn_tests::AssertContains;

    use super::*;

    /// A side that answers each order with the same numbers, and fails at what it is not told.
    fn fake(microseconds: f64, check: &str) -> Command {
        let script = format!(
            "while read -r line; do case \"$line\" in \
             *'\"check\":true'*) check='{check}';; *'\"check\":false'*) check=null;; *) exit 3;; esac; \
             case \"$line\" in *'\"kind\":\"relu\"'*'\"milliseconds\":7,'*) ;; *) exit 4;; esac; \
             echo \"{{\\\"microseconds\\\": {microseconds}, \\\"threads\\\": 1, \\\"check\\\": $check}}\"; \
             done"
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        command
    }

    fn options() -> KernelsBench {
        let line = "--models mnist --rows relu --milliseconds 7 --repeats 3";
        KernelsBench::parse_from(["bench kernels"].into_iter().chain(line.split(' ')))
    }

    fn measured(ours: Command, peer: Option<Command>) -> Result<KernelResults, Failure> {
        let options = options();
        let folder = tempfile::tempdir().unwrap();
        let children = Children::listen().unwrap();
        let start = |name, command| Side::start(&children, name, command, 1, folder.path());
        let mut pairs = [Pair {
            ours: start("ours", ours)?,
            peer: peer.map(|peer| start("the peer", peer)).transpose()?,
        }];
        let mut results = KernelResults::new(options.rows()?, vec![1]);
        measure(&mut results, &mut pairs, &options)?;
        let [pair] = pairs;
        pair.finish(options.common.patience())?;
        Ok(results)
    }

    #[test]
    fn every_row_is_measured_on_both_sides_in_every_round() {
        let results = measured(fake(2.0, "[1.0]"), Some(fake(3.0, "[1.0]"))).unwrap();
        assert_eq!(results.rows.len(), 6);
        for BenchmarkRow { series, .. } in &results.rows {
            assert_eq!(series[0].ours, [2.0; 3]);
            assert_eq!(series[0].peers, [3.0; 3]);
        }
        let told = progress(&results.rows, 0, "everburn with 1 thread");
        assert_eq!(
            told,
            "mnist, batch 64: 6 rows of everburn with 1 thread, geometric mean 1.50x"
        );
    }

    #[test]
    fn alone_nothing_is_compared() {
        let results = measured(fake(2.0, "null"), None).unwrap();
        assert!(
            results
                .rows
                .iter()
                .all(|measured| measured.series[0].peers.is_empty())
        );
        assert!(results.tables(None).contains("relu on 50, forward"));
    }

    #[test]
    fn a_side_that_computes_something_else_or_fails_is_named() {
        let other = measured(fake(2.0, "[1.0]"), Some(fake(3.0, "[2.0]"))).unwrap_err();
        assert!(
            other.to_string().contains("compute different things"),
            "{other}"
        );
        let mut silent = Command::new("sh");
        silent.args(["-c", "echo no such layer >&2; exit 1"]);
        let failed = measured(fake(2.0, "[1.0]"), Some(silent))
            .unwrap_err()
            .to_string();
        assert!(
            failed.starts_with("mnist, batch 64, relu on 10x12x12, forward: rank 0 of"),
            "{failed}"
        );
        assert!(failed.ends_with("no such layer"), "{failed}");
    }

    #[test]
    fn the_notes_say_who_is_faster() {
        let alone = notes(&options(), None);
        alone.assert_contains(["medians of 3 rounds, in each the median call of 7 ms"]);
        assert!(!alone.contains("peer"), "{alone}");
        assert!(notes(&options(), Some("pytorch 2")).contains("pytorch 2, on the same numbers"));
    }
}
