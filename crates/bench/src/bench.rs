//! What all benchmarks share: the trait, who runs one, what it is run with, and what it leaves.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::{Args, FromArgMatches, Parser};
use everburn::launch::{Children, WorkerPool, forget_ranks};
use everburn_record::proc::CpuTime;
use everburn_record::{Owner, TrainingReport};
use serde_json::Value;
use tempfile::TempDir;

use crate::collectives::CollectivesBench;
use crate::ddp::DdpBench;
use crate::failure::Failure;
use crate::job::JobContext;
use crate::kernels::KernelsBench;
use crate::machine::Machine;
use crate::network::Network;
use crate::peers::{FoundPeer, Peer};
use crate::pipeline::PipelineBench;
use crate::recompute::RecomputeBench;
use crate::resilience::ResilienceBench;
use crate::scale::ScaleBench;
use crate::store::StoreBench;
use crate::sync::SyncBench;
use crate::train::TrainBench;

/// A built binary that benchmarks measure instead of this one.
const BUILT_BINARY: &str = "EVERBURN_BIN";

/// A benchmark: its options are its fields, parsed by clap.
pub(crate) trait Bench: Parser {
    /// Its name after `cargo xtask bench`.
    const NAME: &'static str;

    /// What it measures, in a line.
    const ABOUT: &'static str;

    /// How many seconds one run or answer may take, unless `--run-timeout` says so.
    const RUN_TIMEOUT: &'static str = "300";

    /// The results, from which tables and JSON are made.
    type Results;

    /// Checks the options beyond what clap does, before anything runs.
    fn check(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// Who is measured too, in the same rounds.
    fn peers(&self) -> &[Peer] {
        &[]
    }

    /// Measures.
    fn measure(&self, setup: &Setup) -> Result<Self::Results, Failure>;

    /// What a reader needs to judge the tables.
    fn notes(&self, results: &Self::Results, setup: &Setup) -> String;

    /// The result for a reader.
    fn table(&self, results: &Self::Results, setup: &Setup) -> String;

    /// The result for a program.
    fn to_json(&self, results: &Self::Results, setup: &Setup, machine: &Value) -> Value;

    /// Writes other files than that of `--json`.
    fn write_more(&self, _: &Self::Results, _: &Setup) -> Result<(), Failure> {
        Ok(())
    }

    /// Whether the measured program works at all.
    fn works(_: &Self::Results) -> bool {
        true
    }
}

// The options that every benchmark has. (Its documentation would take the place of the benchmark's.)
#[derive(Debug, Args)]
struct OfAll {
    /// Write the rows to this file too.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Give up when one run or answer takes longer than this many seconds.
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = clap::value_parser!(u64).range(1..))]
    run_timeout: u64,
}

const ENVIRONMENT: &str = "Environment:
  EVERBURN_BIN       a built everburn-bench, or everburn for whole trainings, to measure in place of this one
  EVERBURN_DATA_DIR  the folder of the data files
  EVERBURN_PYTHON    the Python that can import torch or jax, for --against [default: python3]
  PATH               has mpicc and mpirun, for --against mpi";

/// The command line of a benchmark.
fn command<B: Bench>() -> clap::Command {
    OfAll::augment_args(B::command())
        .name(format!("cargo xtask bench {}", B::NAME))
        .mut_arg("run_timeout", |timeout| {
            timeout.default_value(B::RUN_TIMEOUT)
        })
        .after_help(ENVIRONMENT)
}

/// Parses a number of at least 1.
pub(crate) fn at_least_1(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("it must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

/// The setup of a benchmark.
pub(crate) struct Setup {
    pub(crate) children: Children,
    folder: TempDir,
    /// The binary whose processes are timed: the one that `EVERBURN_BIN` names, else this one.
    pub(crate) program: PathBuf,
    pub(crate) machine: Machine,
    /// In the order in which they were asked for.
    pub(crate) peers: Vec<FoundPeer>,
    /// How long one run or answer may take.
    pub(crate) patience: Duration,
}

impl Setup {
    /// Refuses peers that are missing: nobody waits for half of a comparison.
    fn new(peers: &[Peer], patience: Duration) -> Result<Self, Failure> {
        let program = measured_program()?;
        let (children, folder) = (Children::listen()?, temporary_folder()?);
        let mut found: Vec<FoundPeer> = Vec::new();
        for peer in peers {
            if found.iter().all(|other| other.peer != *peer) {
                found.push(peer.find(&children, folder.path())?);
            }
        }
        Ok(Self {
            children,
            folder,
            program,
            machine: Machine::look(),
            peers: found,
            patience,
        })
    }

    /// For files of the run; it goes with this value, also on an interrupt.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A process of the program that is measured: the part of it that a [`Side`](crate::Side) names.
    pub(crate) fn side(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("side").args(words);
        command
    }

    /// Starts a process that takes orders.
    pub(crate) fn worker(
        &self,
        name: &str,
        mut command: Command,
    ) -> Result<WorkerPool<'_>, Failure> {
        forget_ranks(&mut command);
        let (children, folder) = (&self.children, self.folder());
        Ok(WorkerPool::start(children, name, vec![command], folder)?)
    }

    /// The context of `ranks` ranks: each in its namespace if there is a network, otherwise on this machine.
    pub(crate) fn job_context<'a>(
        &'a self,
        ranks: usize,
        network: Option<&'a Network>,
    ) -> JobContext<'a> {
        JobContext {
            children: &self.children,
            program: &self.program,
            folder: self.folder(),
            network,
            ranks,
        }
    }
}

/// Runs a benchmark with the arguments after its name.
fn run_one<B: Bench>(arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let name = OsString::from(format!("cargo xtask bench {}", B::NAME));
    let words = [name].into_iter().chain(arguments.iter().cloned());
    let matches = command::<B>().get_matches_from(words);
    let bench = B::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let of_all = OfAll::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    check_place("--json", of_all.json.as_deref())?;
    bench.check()?;
    let setup = Setup::new(bench.peers(), Duration::from_secs(of_all.run_timeout))?;
    let before = CpuTime::now();
    let results = bench.measure(&setup)?;
    let meanwhile = before.zip(CpuTime::now());
    let others = meanwhile.and_then(|(before, after)| before.others_share(after));

    println!("{}", setup.machine.describe(others));
    println!("{}\n", bench.notes(&results, &setup));
    println!("{}", bench.table(&results, &setup));
    let rows = bench.to_json(&results, &setup, &setup.machine.to_json(others));
    if let Some(file) = &of_all.json {
        write_file(file, &format!("{rows:#}\n"))?;
    }
    bench.write_more(&results, &setup)?;
    Ok(match B::works(&results) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// A benchmark of the list.
struct Entry {
    name: &'static str,
    about: &'static str,
    run: fn(&[OsString]) -> Result<ExitCode, Failure>,
    #[cfg(test)]
    command: fn() -> clap::Command,
}

const fn entry<B: Bench>() -> Entry {
    Entry {
        name: B::NAME,
        about: B::ABOUT,
        run: run_one::<B>,
        #[cfg(test)]
        command: command::<B>,
    }
}

/// The first is run where none is named.
const BENCHES: [Entry; 10] = [
    entry::<TrainBench>(),
    entry::<KernelsBench>(),
    entry::<CollectivesBench>(),
    entry::<DdpBench>(),
    entry::<PipelineBench>(),
    entry::<RecomputeBench>(),
    entry::<ResilienceBench>(),
    entry::<ScaleBench>(),
    entry::<StoreBench>(),
    entry::<SyncBench>(),
];

/// The benchmark that `arguments` name, and the rest of them; the first where none is named.
fn named(arguments: &[OsString]) -> Result<(&'static Entry, &[OsString]), Failure> {
    let first = arguments.first().map(|first| first.to_string_lossy());
    let Some(name) = first.filter(|first| !first.starts_with('-')) else {
        return Ok((&BENCHES[0], arguments));
    };
    let bench = BENCHES.iter().find(|bench| bench.name == name);
    let unknown = || format!("there is no benchmark `{name}` yet\n\n{}", listing());
    let bench = bench.ok_or_else(|| Failure::Usage(unknown()))?;
    Ok((bench, &arguments[1..]))
}

/// Runs the benchmark that `arguments` name.
pub(crate) fn run(arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let asks_for = |word: &str| arguments.first().is_some_and(|first| first == word);
    if ["--help", "-h", "--list"].into_iter().any(asks_for) {
        println!("{}", listing());
        return Ok(ExitCode::SUCCESS);
    }
    let (bench, rest) = named(arguments)?;
    (bench.run)(rest)
}

fn listing() -> String {
    let lines: Vec<_> = BENCHES
        .iter()
        .map(|bench| format!("  {:<12} {}", bench.name, bench.about))
        .collect();
    format!(
        "The benchmarks (`cargo xtask bench <name> --help` shows the options of one):\n{}",
        lines.join("\n")
    )
}

fn measured_program() -> Result<PathBuf, Failure> {
    match std::env::var_os(BUILT_BINARY).filter(|path| !path.is_empty()) {
        None => Ok(std::env::current_exe()?),
        // Children run elsewhere.
        Some(path) => match std::path::absolute(&path)? {
            path if path.is_file() => Ok(path),
            path => Err(Failure::usage(format!(
                "{BUILT_BINARY} names {}, which is no file",
                path.display()
            ))),
        },
    }
}

/// Removed when the value goes, also on an interrupt. What killed runs have left goes now.
pub(crate) fn temporary_folder() -> Result<TempDir, Failure> {
    let parent = std::env::temp_dir();
    remove_leftovers(&parent);
    tempfile::Builder::new()
        .prefix(&Owner::this_process()?.name(""))
        .tempdir_in(parent)
        .map_err(|error| Failure::new(format!("no temporary folder: {error}")))
}

/// Removes folders of benchmarks that are no more.
fn remove_leftovers(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let owner = name.to_str().and_then(Owner::of_name);
        if owner.is_some_and(|owner| !owner.lives()) {
            // Another user's, or just being removed by another run: no harm is done.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Refuses the file that `flag` names if it cannot be written: known now, not after an hour of measuring.
pub(crate) fn check_place(flag: &str, file: Option<&Path>) -> Result<(), Failure> {
    let Some(file) = file else {
        return Ok(());
    };
    let folder = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    if file.is_dir() || folder.is_some_and(|folder| !folder.is_dir()) {
        let what = format!("{flag} {}: not a place for a file", file.display());
        return Err(Failure::Usage(what));
    }
    Ok(())
}

pub(crate) fn write_file(file: &Path, text: &str) -> Result<(), Failure> {
    fs::write(file, text)
        .map_err(|error| Failure::new(format!("cannot write {}: {error}", file.display())))
}

/// What the run in a folder has reported at its end.
pub(crate) fn report_of(run: &Path) -> Result<TrainingReport, Failure> {
    TrainingReport::of_run(run).map_err(|error| {
        let path = run.join(TrainingReport::FILE);
        Failure::new(format!("{}: {error}", path.display()))
    })
}

#[cfg(test)]
mod tests;
