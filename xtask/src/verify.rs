//! `cargo xtask verify`: trains the same steps on several numbers of ranks, and compares all that was
//! learnt, step by step, to the bit.

mod compare;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Parser;
use miette::{IntoDiagnostic, WrapErr, miette};
use serde_json::Value;

use self::compare::{Difference, compare};
use crate::binary;

/// Trains the same steps of a model on several numbers of ranks, with as many virtual ranks on each, and
/// compares parameters, buffers, optimizer state and loss after each step, to the bit.
///
/// Ends with 1 and names the first step and tensor that differ, if any do. At the end it prints what the
/// order of virtual ranks costs beside one share a rank.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask verify", no_binary_name = true)]
struct Options {
    /// The model to train.
    model: String,

    /// On how many ranks.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,2,3,4",
        value_name = "RANKS"
    )]
    ranks: Vec<usize>,

    /// Into how many shares each global batch is cut [default: the most ranks].
    #[arg(long, value_name = "V")]
    virtual_ranks: Option<usize>,

    /// How many steps are trained.
    #[arg(long, default_value_t = 50)]
    steps: usize,

    /// By which transports: auto, shm, tcp.
    #[arg(long, value_delimiter = ',', default_value = "auto")]
    transport: Vec<String>,

    /// Do not measure what it costs.
    #[arg(long)]
    no_cost: bool,

    /// More flags of `train`, behind `--`, as in `-- --batch-size 128 --data synthetic`.
    #[arg(last = true, value_name = "FLAGS")]
    train: Vec<OsString>,
}

/// A training of the comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    ranks: usize,
    transport: String,
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let noun = if self.ranks == 1 { "rank" } else { "ranks" };
        write!(f, "{} {noun}, {}", self.ranks, self.transport)
    }
}

impl Options {
    fn check(&self) -> Result<usize, String> {
        let most = self.ranks.iter().copied().max().unwrap_or(0);
        if self.ranks.contains(&0) || most == 0 {
            return Err("--ranks are numbers from 1, as in 1,2,4".to_string());
        }
        let virtual_ranks = self.virtual_ranks.unwrap_or(most);
        if virtual_ranks < most {
            return Err(format!(
                "--virtual-ranks {virtual_ranks} cannot be shared out to {most} ranks"
            ));
        }
        if self.steps == 0 {
            return Err("--steps must be at least 1".to_string());
        }
        Ok(virtual_ranks)
    }

    /// Transport makes no difference to one rank, which runs once.
    fn runs(&self) -> Vec<Run> {
        let mut runs = Vec::new();
        for transport in &self.transport {
            for ranks in &self.ranks {
                let run = Run {
                    ranks: *ranks,
                    transport: transport.clone(),
                };
                let alone = |run: &Run| run.ranks == 1;
                if !(alone(&run) && runs.iter().any(alone)) {
                    runs.push(run);
                }
            }
        }
        runs
    }
}

/// Runs the command.
pub fn run(arguments: &[OsString]) -> miette::Result<ExitCode> {
    let options = match Options::try_parse_from(arguments) {
        Ok(options) => options,
        Err(error) => error.exit(),
    };
    let virtual_ranks = options.check().map_err(|error| miette!("{error}"))?;
    let Some(everburn) = binary::for_measuring()? else {
        return Ok(ExitCode::FAILURE);
    };
    let folder = tempfile::tempdir().into_diagnostic()?;
    let train = |name: &str, run: &Run, flags: &[String]| {
        train(&everburn, &options, folder.path(), name, run, flags)
    };
    println!(
        "{}: {} steps over {virtual_ranks} virtual ranks",
        options.model, options.steps
    );
    let over_virtual = ["--virtual-ranks".to_string(), virtual_ranks.to_string()];
    let hashed = [&over_virtual[..], &["--hash-every".into(), "1".into()]].concat();
    let mut first: Option<(Run, Vec<Value>)> = None;
    let mut differences = 0;
    for (number, run) in options.runs().into_iter().enumerate() {
        let path = train(&format!("run-{number}"), &run, &hashed)?;
        let hashes = read_hashes(&path)?;
        let Some((reference, expected)) = &first else {
            println!("  {run}: {} steps, {}", hashes.len(), last_of(&hashes));
            first = Some((run, hashes));
            continue;
        };
        match compare(expected, &hashes) {
            None => println!("  {run}: the same bits, {}", last_of(&hashes)),
            Some(Difference { step, what }) => {
                differences += 1;
                println!("  {run}: DIFFERS from {reference} at step {step}: {what}");
            }
        }
    }
    if !options.no_cost {
        let most = options.ranks.iter().copied().max().unwrap_or(1);
        let run = Run {
            ranks: most,
            transport: options.transport[0].clone(),
        };
        let ours = speed(&train("virtual", &run, &over_virtual)?)?;
        let free = speed(&train("free", &run, &[])?)?;
        println!(
            "on {run}: {ours:.0} samples/s with virtual ranks, {free:.0} with a share for each rank: {:.2}x",
            ours / free
        );
    }
    if differences > 0 {
        println!("{differences} of the trainings learnt something else");
        return Ok(ExitCode::FAILURE);
    }
    println!("every training learnt the same, to the bit");
    Ok(ExitCode::SUCCESS)
}

/// Trains into the run directory `name` of `folder`, which it returns.
fn train(
    everburn: &Path,
    options: &Options,
    folder: &Path,
    name: &str,
    run: &Run,
    flags: &[String],
) -> miette::Result<PathBuf> {
    let directory = folder.join(name);
    let mut command = Command::new(everburn);
    command
        .args(["train", &options.model])
        .args(["--ranks", &run.ranks.to_string()])
        .args(["--transport", &run.transport])
        .args(["--steps", &options.steps.to_string(), "--no-dashboard"])
        .arg("--run-dir")
        .arg(&directory)
        .args(flags)
        .args(&options.train)
        .stdin(Stdio::null());
    binary::keep_freed_memory(&mut command);
    let output = command
        .output()
        .into_diagnostic()
        .wrap_err_with(|| format!("cannot run {}", everburn.display()))?;
    if output.status.success() {
        return Ok(directory);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(miette!(
        "the training on {run} failed ({}):\n{said}",
        output.status
    ))
}

fn read_hashes(run: &Path) -> miette::Result<Vec<Value>> {
    let path = run.join("hashes.jsonl");
    let text = std::fs::read_to_string(&path).into_diagnostic();
    let text = text.wrap_err_with(|| format!("cannot read {}", path.display()))?;
    let lines = text
        .lines()
        .map(|line| serde_json::from_str(line).into_diagnostic());
    lines.collect()
}

/// Training samples a second, as the run's report has them.
fn speed(run: &Path) -> miette::Result<f64> {
    let path = run.join("report.json");
    let text = std::fs::read_to_string(&path).into_diagnostic();
    let text = text.wrap_err_with(|| format!("cannot read {}", path.display()))?;
    let report: Value = serde_json::from_str(&text).into_diagnostic()?;
    let speed = report["samples_per_second"].as_f64();
    speed.ok_or_else(|| miette!("{} does not tell samples_per_second", path.display()))
}

/// A short name of the state in the end.
fn last_of(hashes: &[Value]) -> String {
    let last = hashes.last().map(Value::to_string).unwrap_or_default();
    format!("state {:016x}", compare::digest(last.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> Options {
        Options::try_parse_from(line.split(' ')).unwrap()
    }

    #[test]
    fn one_rank_runs_once() {
        let runs = options("mnist --ranks 1,2 --transport shm,tcp").runs();
        let names = runs.iter().map(Run::to_string).collect::<Vec<_>>();
        assert_eq!(names, ["1 rank, shm", "2 ranks, shm", "2 ranks, tcp"]);
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        assert_eq!(options("mnist").check(), Ok(4));
        assert!(options("mnist --ranks 1,0").check().is_err());
        assert!(
            options("mnist --ranks 3 --virtual-ranks 2")
                .check()
                .is_err()
        );
        assert!(options("mnist --steps 0").check().is_err());
        let flags = options("mnist -- --data synthetic").train;
        assert_eq!(flags, ["--data", "synthetic"]);
    }
}
