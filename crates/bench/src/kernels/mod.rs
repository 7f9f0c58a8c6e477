//! `bench kernels`: single layers of the models beside PyTorch's.
//!
//! The rows are described here, once, and given to all sides, which fill their tensors with the same
//! numbers. Each side is a process for each number of threads, all of which live all the time; they are
//! given rows in turn, and stand still (`SIGSTOP`) while it is not theirs.

pub(crate) mod layer;
pub(crate) mod networks;
mod options;
mod results;
mod side;
#[cfg(not(test))]
pub(crate) mod worker;

use std::time::Duration;

use everburn_record::statistics::geometric_mean;
use serde_json::Value;

pub(crate) use self::options::KernelsBench;
use self::results::{BenchmarkRow, KernelResults};
use self::side::{SCRIPT, Side};
use crate::bench::{Bench, Setup};
use crate::cells;
use crate::failure::Failure;
use crate::peers::{FoundPeer, Peer};
use crate::rounds::each_once;

impl Bench for KernelsBench {
    const NAME: &'static str = "kernels";
    const ABOUT: &'static str =
        "microseconds of the models' layers by threads and batch size; --against pytorch,compile";

    type Results = KernelResults;

    fn check(&self) -> Result<(), Failure> {
        self.rows().map(drop)
    }

    fn peers(&self) -> &[Peer] {
        &self.against
    }

    fn measure(&self, setup: &Setup) -> Result<KernelResults, Failure> {
        let (rows, threads) = (self.rows()?, self.threads(setup.machine.cores)?);
        let mut teams = Vec::new();
        for &threads in &threads {
            let start = |name: &str, command| {
                Side::start(&setup.children, name, command, threads, setup.folder())
            };
            let theirs = |found: &FoundPeer| start(found.peer.name(), found.call(SCRIPT));
            teams.push(Team {
                patience: setup.patience,
                ours: start("everburn", setup.side(&["kernels"]))?,
                peers: setup.peers.iter().map(theirs).collect::<Result<_, _>>()?,
            });
        }
        let mut results = KernelResults::new(rows, threads, &setup.peers);
        measure(&mut results, &mut teams, self)?;
        for team in teams {
            team.finish()?;
        }
        Ok(results)
    }

    fn notes(&self, _: &KernelResults, setup: &Setup) -> String {
        notes(self, &setup.peers)
    }

    fn table(&self, results: &KernelResults, _: &Setup) -> String {
        results.tables()
    }

    fn to_json(&self, results: &KernelResults, _: &Setup, machine: &Value) -> Value {
        results.to_json(machine)
    }
}

/// Who measures with one number of threads.
struct Team<'a> {
    /// For each answer.
    patience: Duration,
    ours: Side<'a>,
    peers: Vec<Side<'a>>,
}

impl Team<'_> {
    fn finish(self) -> Result<(), Failure> {
        self.ours.finish(self.patience)?;
        let mut peers = self.peers.into_iter();
        peers.try_for_each(|peer| peer.finish(self.patience))
    }

    /// Measures a row on all sides; in the first round what comes out is compared, too.
    fn measure(
        &mut self,
        measured: &mut BenchmarkRow,
        index: usize,
        round: usize,
        options: &KernelsBench,
    ) -> Result<(), Failure> {
        let row = &measured.row;
        let check = round == 0 && !self.peers.is_empty();
        let order = row.order(options.milliseconds, check);
        let patience = self.patience;
        let sides = std::iter::once(&mut self.ours).chain(&mut self.peers);
        let mut sides: Vec<_> = sides.collect();
        let answers = each_once(round, sides.len(), |side| {
            sides[side].measure(row, &order, patience)
        })?;
        if let [ours, theirs @ ..] = answers.as_slice() {
            theirs
                .iter()
                .try_for_each(|theirs| ours.compare(theirs, row))?;
        }
        let times = answers.iter().map(|answer| answer.microseconds);
        measured.series[index].add(times);
        Ok(())
    }
}

/// Every row once a round on every side; `teams` are in the order of the threads.
fn measure(
    results: &mut KernelResults,
    teams: &mut [Team<'_>],
    options: &KernelsBench,
) -> Result<(), Failure> {
    let groups: Vec<_> = results.groups().map(<[_]>::len).collect();
    for round in 0..options.rounds {
        let mut rows = results.rows.as_mut_slice();
        for &length in &groups {
            let (group, rest) = rows.split_at_mut(length);
            rows = rest;
            for (index, team) in teams.iter_mut().enumerate() {
                for measured in &mut *group {
                    team.measure(measured, index, round, options)?;
                }
                let progress = progress(group, index, &team.ours.name);
                let rounds = options.rounds;
                eprintln!("[round {}/{rounds}] {progress}", round + 1);
            }
        }
    }
    Ok(())
}

/// Where the rounds so far have brought some rows.
fn progress(group: &[BenchmarkRow], index: usize, side: &str) -> String {
    let ratios: Vec<_> = group
        .iter()
        .filter_map(|measured| measured.series[index].to_fastest())
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
fn notes(options: &KernelsBench, peers: &[FoundPeer]) -> String {
    let rounds = cells::rounds(options.rounds);
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
    for found in peers {
        notes.push(format!(
            "peer:    {}, on the same numbers with equal results, which is checked;\n         \
             \"ratio\": its time by ours, so that we are faster above 1.00x",
            found.full_name()
        ));
    }
    if peers.len() > 1 {
        notes.push(
            "         \"to fastest\": the ratio to the peer that is the fastest in a row".into(),
        );
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

    /// Nothing here is about time.
    const PATIENCE: Duration = Duration::from_secs(120);

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
        let line = "--models mnist --rows relu --milliseconds 7 --rounds 3";
        KernelsBench::parse_from(["bench kernels"].into_iter().chain(line.split(' ')))
    }

    fn found(peer: Peer) -> FoundPeer {
        FoundPeer::of_tests(peer, "2")
    }

    fn measured(
        ours: Command,
        peers: impl IntoIterator<Item = Command>,
    ) -> Result<KernelResults, Failure> {
        let options = options();
        let folder = tempfile::tempdir().unwrap();
        let children = Children::listen().unwrap();
        let start = |name, command| Side::start(&children, name, command, 1, folder.path());
        let peers = peers.into_iter().map(|peer| start("a peer", peer));
        let mut teams = [Team {
            patience: PATIENCE,
            peers: peers.collect::<Result<_, _>>()?,
            ours: start("ours", ours)?,
        }];
        let both = [found(Peer::Pytorch), found(Peer::Compile)];
        let peers = &both[..teams[0].peers.len()];
        let mut results = KernelResults::new(options.rows()?, vec![1], peers);
        measure(&mut results, &mut teams, &options)?;
        let [team] = teams;
        team.finish()?;
        Ok(results)
    }

    #[test]
    fn every_row_is_measured_on_all_sides_in_every_round() {
        let peers = [fake(4.0, "[1.0]"), fake(3.0, "[1.0]")];
        let results = measured(fake(2.0, "[1.0]"), peers).unwrap();
        assert_eq!(results.rows.len(), 6);
        for BenchmarkRow { series, .. } in &results.rows {
            assert_eq!(series[0].ours, [2.0; 3]);
            assert_eq!(series[0].peers, [[4.0; 3], [3.0; 3]]);
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
        assert!(results.tables().contains("relu on 50, forward"));
    }

    #[test]
    fn a_side_that_computes_something_else_or_fails_is_named() {
        let peers = [fake(3.0, "[1.0]"), fake(3.0, "[2.0]")];
        let other = measured(fake(2.0, "[1.0]"), peers).unwrap_err();
        assert!(
            other.to_string().contains("compute different things"),
            "{other}"
        );
        let mut silent = Command::new("sh");
        silent.args(["-c", "echo no such layer >&2; exit 1"]);
        let failed = measured(fake(2.0, "[1.0]"), [silent])
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
        let alone = notes(&options(), &[]);
        alone.assert_contains(["medians of 3 rounds, in each the median call of 7 ms"]);
        assert!(!alone.contains("peer"), "{alone}");
        let peers = [found(Peer::Pytorch), found(Peer::Compile)];
        let one = notes(&options(), &peers[..1]);
        assert!(one.ends_with("faster above 1.00x"), "{one}");
        notes(&options(), &peers).assert_contains([
            "peer:    pytorch 2, on the same numbers",
            "peer:    torch.compile of pytorch 2, on the same numbers",
            "\"to fastest\"",
        ]);
    }
}
