//! `bench resilience`: what it costs a training to be ready for the loss of ranks.
//!
//! Each side is `everburn train` as its user runs it, by turns, so that a slow minute falls on all.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Parser;
use everburn_record::proc::CpuTime;
use everburn_record::table::aligned;
use serde_json::{Value, json};

use super::machine::Machine;
use super::process::{Children, Failure};
use super::statistics::{Spread, median_ratio};
use super::{check_place, temporary_folder, write_file};
use crate::binary::{self, keep_freed_memory};

/// What each side is told besides what all are.
const SIDES: [(&str, &[&str]); 4] = [
    ("nothing", &NOTHING),
    ("heartbeat and guard", &["--compare-every", "100"]),
    (
        "and a checkpoint every 100 steps",
        &["--compare-every", "100", "--checkpoint-every", "100steps"],
    ),
    (
        "and elastic",
        &[
            "--compare-every",
            "100",
            "--checkpoint-every",
            "100steps",
            "--elastic",
        ],
    ),
];

const NOTHING: [&str; 4] = ["--heartbeat-timeout", "0", "--compare-every", "0"];

/// Measures what heartbeats, the comparison of replicas, checkpoints within an epoch and the readiness to
/// lose ranks cost a training.
///
/// The record of each rank's last collectives cannot be switched off: it is part of every side.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask bench resilience",
    after_help = "Environment:\n  \
        EVERBURN_BIN       a built everburn to measure in place of building one\n  \
        EVERBURN_DATA_DIR  where the data are"
)]
struct ResilienceOptions {
    /// The model to train.
    #[arg(long, default_value = "mnist")]
    model: String,

    /// How many ranks.
    #[arg(long, default_value_t = 2)]
    ranks: usize,

    /// Samples all ranks together read a step.
    #[arg(long, default_value_t = 64)]
    batch: usize,

    /// Steps of each run.
    /// What is done behind a step counts for the next: the last comparison and checkpoint need one.
    #[arg(long, default_value_t = 450)]
    steps: usize,

    /// How many rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,

    /// Write the rows to this file too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Give up when one run takes longer than this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    run_timeout: u64,
}

impl ResilienceOptions {
    fn check(&self) -> Result<(), Failure> {
        let numbers = [
            ("--ranks", self.ranks),
            ("--batch", self.batch),
            ("--steps", self.steps),
            ("--rounds", self.rounds),
        ];
        if let Some((flag, _)) = numbers.into_iter().find(|(_, number)| *number == 0) {
            return Err(Failure::Usage(format!("{flag} 0: it must be at least 1")));
        }
        self.json
            .as_deref()
            .map_or(Ok(()), |file| check_place("--json", file))
    }

    fn training(&self, everburn: &Path, flags: &[&str], run: &Path) -> Command {
        let mut command = Command::new(everburn);
        keep_freed_memory(&mut command);
        command
            .args(["train", &self.model, "--no-dashboard"])
            .args(["--ranks", &self.ranks.to_string()])
            .args(["--batch-size", &self.batch.to_string()])
            .args(["--steps", &self.steps.to_string(), "--epochs", "1000"])
            .args(["--validation-samples", "1000", "--test-samples", "100"])
            .arg("--run-dir")
            .arg(run)
            .args(flags);
        if flags.last() == Some(&"--elastic") {
            command.arg(format!("1:{}", self.ranks));
        }
        command
    }
}

/// Runs the benchmark with the arguments after its name.
pub(super) fn run(arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let name = OsString::from("cargo xtask bench resilience");
    let words = [name].into_iter().chain(arguments.iter().cloned());
    let options = ResilienceOptions::parse_from(words);
    options.check()?;
    let machine = Machine::look();
    let children = Children::listen()?;
    let folder = temporary_folder()?;
    let everburn = binary::for_measuring().map_err(|error| Failure::new(error.to_string()))?;
    let Some(everburn) = everburn else {
        // Cargo has said why.
        return Ok(ExitCode::FAILURE);
    };
    let before = CpuTime::now();
    let rounds = measure_all(options.rounds, |round, side| {
        let (_, flags) = SIDES[side];
        let run = folder.path().join(format!("round-{round}-{side}"));
        let mut command = options.training(&everburn, flags, &run);
        let patience = Duration::from_secs(options.run_timeout);
        children.run("a training", &mut command, folder.path(), patience)?;
        milliseconds_a_step(&run, options.batch)
    })?;
    let meanwhile = before.zip(CpuTime::now());
    let others = meanwhile.and_then(|(before, after)| before.others_share(after));

    println!("{}", machine.describe(others));
    println!(
        "method:  medians of {} rounds of {} steps of {} on {} ranks a side, each in processes of its own; \
         ratios round by round\n",
        options.rounds, options.steps, options.model, options.ranks
    );
    println!("{}", table(&rounds));
    if let Some(file) = &options.json {
        let rows = to_json(&rounds, &options, &machine.to_json(others));
        write_file(file, &format!("{rows:#}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Every side once a round; the milliseconds a step of each.
fn measure_all(
    rounds: usize,
    mut run: impl FnMut(usize, usize) -> Result<f64, Failure>,
) -> Result<Vec<Vec<f64>>, Failure> {
    let mut all = Vec::new();
    for round in 0..rounds {
        // Forwards, then backwards: what grows with time falls on all sides alike.
        let mut order = (0..SIDES.len()).collect::<Vec<_>>();
        if round % 2 == 1 {
            order.reverse();
        }
        let mut sides = vec![f64::NAN; SIDES.len()];
        for side in order {
            sides[side] = run(round, side)?;
        }
        let told = sides.iter().map(|time| format!("{time:.2}"));
        let told = told.collect::<Vec<_>>().join(", ");
        eprintln!("[round {}/{rounds}] {told} ms a step", round + 1);
        all.push(sides);
    }
    Ok(all)
}

fn milliseconds_a_step(run: &Path, batch: usize) -> Result<f64, Failure> {
    let path = run.join("report.json");
    let broken = |what: String| Failure::new(format!("{}: {what}", path.display()));
    let text = std::fs::read_to_string(&path).map_err(|error| broken(error.to_string()))?;
    let report: Value = serde_json::from_str(&text).map_err(|error| broken(error.to_string()))?;
    let rate = report["samples_per_second"].as_f64();
    let rate = rate.filter(|rate| *rate > 0.0);
    let rate = rate.ok_or_else(|| broken("no positive `samples_per_second`".to_string()))?;
    Ok(batch as f64 / rate * 1_000.0)
}

fn side_of(rounds: &[Vec<f64>], side: usize) -> Vec<f64> {
    rounds.iter().map(|round| round[side]).collect()
}

/// How much longer a step takes than with nothing, by side.
fn more(rounds: &[Vec<f64>], side: usize) -> Option<f64> {
    let ratio = median_ratio(&side_of(rounds, side), &side_of(rounds, 0));
    ratio.map(|ratio| ratio - 1.0)
}

fn table(rounds: &[Vec<f64>]) -> String {
    let rows = SIDES.iter().enumerate().map(|(side, (name, _))| {
        let spread = Spread::of(&side_of(rounds, side));
        let (median, range) = spread.map_or_else(Default::default, |spread| {
            let range = format!("({:.2}-{:.2})", spread.min, spread.max);
            (format!("{:.2}", spread.median), range)
        });
        let more = more(rounds, side).map(|more| format!("{:+.1} %", 100.0 * more));
        vec![name.to_string(), median, range, more.unwrap_or_default()]
    });
    let header = ["ready by", "ms a step", "(min-max)", "more than nothing"];
    aligned(&header, &rows.collect::<Vec<_>>(), &[])
}

fn to_json(rounds: &[Vec<f64>], options: &ResilienceOptions, machine: &Value) -> Value {
    let sides = SIDES.iter().enumerate().map(|(side, (name, _))| {
        json!({
            "side": name,
            "step_ms": side_of(rounds, side),
            "more": more(rounds, side),
        })
    });
    json!({
        "benchmark": "resilience",
        "machine": machine,
        "model": options.model,
        "ranks": options.ranks,
        "batch": options.batch,
        "steps": options.steps,
        "sides": sides.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        ResilienceOptions::command().debug_assert();
    }

    #[test]
    fn all_sides_run_once_a_round_forwards_and_backwards() {
        let mut order = Vec::new();
        let rounds = measure_all(2, |_, side| {
            order.push(side);
            Ok(10.0 + side as f64)
        });
        let rounds = rounds.unwrap();
        assert_eq!(order, [0, 1, 2, 3, 3, 2, 1, 0]);
        assert_eq!(more(&rounds, 1), Some(11.0 / 10.0 - 1.0));
        assert!(table(&rounds).contains("+30.0 %"), "{}", table(&rounds));
    }

    #[test]
    fn the_first_side_is_ready_for_nothing() {
        let words = ["bench resilience", "--ranks", "2"];
        let options = ResilienceOptions::try_parse_from(words).unwrap();
        let words = |side: usize| {
            let command = options.training(Path::new("e"), SIDES[side].1, Path::new("/run"));
            let words = command
                .get_args()
                .map(|word| word.to_string_lossy().into_owned());
            words.collect::<Vec<_>>().join(" ")
        };
        assert!(words(0).ends_with("--heartbeat-timeout 0 --compare-every 0"));
        assert!(words(3).ends_with("--checkpoint-every 100steps --elastic 1:2"));
    }
}
