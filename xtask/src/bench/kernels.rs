//! `bench kernels`: single layers of the models beside PyTorch's.
//!
//! The rows are described here, once, and given to both sides, which fill their tensors with the same
//! numbers. Each side is a process for each number of threads, all of which live all the time; they are
//! given rows in turn, and stand still (`SIGSTOP`) while it is not theirs.

mod found;
mod layer;
mod networks;
mod options;
mod side;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use everburn_record::proc::CpuTime;

use self::found::{Found, Measured};
use self::options::KernelOptions;
use self::side::Side;
use super::machine::Machine;
use super::process::{Children, Failure};
use super::pytorch::Pytorch;
use super::statistics::{geometric_mean, median_ratio};
use super::{temporary_folder, write_file};
use crate::binary;

/// How the peer is called in tables, whatever its version.
const PEER: &str = "pytorch";

/// Runs the benchmark with the arguments after its name.
pub(super) fn run(arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let options = KernelOptions::parse_or_exit(arguments);
    let machine = Machine::look();
    let (rows, threads) = (options.rows()?, options.threads(machine.cores)?);
    let children = Children::listen()?;
    let folder = temporary_folder()?;
    let (peer, skipped) = match options.against {
        None => (None, None),
        Some(_) => match Pytorch::find(&children, folder.path())? {
            Ok(pytorch) => (Some(pytorch), None),
            Err(why) => (None, Some(why)),
        },
    };
    if let Some(why) = &skipped {
        // Now, so that nobody waits for nothing; and again under the table.
        eprintln!("{why}");
    }
    let program = binary::for_measuring().map_err(|error| Failure::new(error.to_string()))?;
    children.check_interrupted()?;
    let Some(program) = program else {
        // Cargo has said why.
        return Ok(ExitCode::FAILURE);
    };
    // From before they start until they have ended: only then do their processor times count as ours.
    let before = CpuTime::now();
    let mut sides = Vec::new();
    for &threads in &threads {
        let start =
            |name: &str, command| Side::start(&children, name, command, threads, folder.path());
        sides.push(Pair {
            ours: start("everburn", side::ours(&program, threads))?,
            peer: match &peer {
                None => None,
                Some(pytorch) => Some(start(PEER, side::pytorch(pytorch, threads))?),
            },
        });
    }
    let mut found = Found::new(rows, threads);
    measure(&mut found, &mut sides, &options)?;
    for pair in sides {
        pair.finish(options.patience())?;
    }
    let meanwhile = before.zip(CpuTime::now());
    let others = meanwhile.and_then(|(before, after)| before.others_share(after));

    let peer = peer.as_ref().map(Pytorch::name);
    println!("{}", machine.describe(others));
    println!("{}\n", notes(&options, peer.as_deref()));
    println!("{}", found.tables(peer.as_ref().map(|_| PEER)));
    if let Some(why) = &skipped {
        println!("\n{why}");
    }
    if let Some(file) = &options.json {
        let found = found.to_json(peer.as_deref(), &machine.to_json(others));
        write_file(file, &format!("{found:#}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Who measures with one number of threads.
struct Pair<'a> {
    ours: Side<'a>,
    peer: Option<Side<'a>>,
}

impl Pair<'_> {
    fn finish(self, patience: Duration) -> Result<(), Failure> {
        self.ours.finish(patience)?;
        self.peer.map_or(Ok(()), |peer| peer.finish(patience))
    }

    /// Measures a row on both sides; in the first round they also compare what comes out.
    fn measure(
        &mut self,
        measured: &mut Measured,
        index: usize,
        round: usize,
        options: &KernelOptions,
    ) -> Result<(), Failure> {
        let row = &measured.row;
        let check = round == 1 && self.peer.is_some();
        let order = row.order(options.milliseconds, check);
        let patience = options.patience();
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
    found: &mut Found,
    pairs: &mut [Pair<'_>],
    options: &KernelOptions,
) -> Result<(), Failure> {
    let groups: Vec<_> = found.groups().map(<[_]>::len).collect();
    for round in 1..=options.repeats {
        let mut rows = found.rows.as_mut_slice();
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
fn progress(group: &[Measured], index: usize, side: &str) -> String {
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
fn notes(options: &KernelOptions, peer: Option<&str>) -> String {
    let rounds = match options.repeats {
        1 => "1 round".to_owned(),
        repeats => format!("medians of {repeats} rounds"),
    };
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

    fn options() -> KernelOptions {
        let line = "--models mnist --rows relu --milliseconds 7 --repeats 3";
        let words: Vec<_> = line.split(' ').map(OsString::from).collect();
        KernelOptions::parse_or_exit(&words)
    }

    fn measured(ours: Command, peer: Option<Command>) -> Result<Found, Failure> {
        let options = options();
        let folder = tempfile::tempdir().unwrap();
        let children = Children::unheard();
        let start = |name, command| Side::start(&children, name, command, 1, folder.path());
        let mut pairs = [Pair {
            ours: start("ours", ours)?,
            peer: peer.map(|peer| start("the peer", peer)).transpose()?,
        }];
        let mut found = Found::new(options.rows()?, vec![1]);
        measure(&mut found, &mut pairs, &options)?;
        let [pair] = pairs;
        pair.finish(options.patience())?;
        Ok(found)
    }

    #[test]
    fn every_row_is_measured_on_both_sides_in_every_round() {
        let found = measured(fake(2.0, "[1.0]"), Some(fake(3.0, "[1.0]"))).unwrap();
        assert_eq!(found.rows.len(), 6);
        for Measured { series, .. } in &found.rows {
            assert_eq!(series[0].ours, [2.0; 3]);
            assert_eq!(series[0].peers, [3.0; 3]);
        }
        let told = progress(&found.rows, 0, "everburn with 1 thread");
        assert_eq!(
            told,
            "mnist, batch 64: 6 rows of everburn with 1 thread, geometric mean 1.50x"
        );
    }

    #[test]
    fn alone_nothing_is_compared() {
        let found = measured(fake(2.0, "null"), None).unwrap();
        assert!(
            found
                .rows
                .iter()
                .all(|measured| measured.series[0].peers.is_empty())
        );
        assert!(found.tables(None).contains("relu on 50, forward"));
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
        assert!(
            alone.contains("medians of 3 rounds, in each the median call of 7 ms"),
            "{alone}"
        );
        assert!(!alone.contains("peer"), "{alone}");
        assert!(notes(&options(), Some("pytorch 2")).contains("pytorch 2, on the same numbers"));
    }
}
