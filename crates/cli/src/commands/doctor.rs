//! `everburn doctor`: what this machine has and lacks for training; with `--ranks`, also the ways between ranks, by
//! processes that do what a training's ranks would.

mod host;
mod libraries;
mod limits;
mod network;
mod newest_run;
mod rank;
mod ranks;
mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::ToolError;
use clap::Args;
use everburn_record::{Finding, RUNS, Verdict, invocation};

pub(crate) use self::rank::RankArguments;
pub(super) use self::rank::run as run_rank;
use crate::missing_run;
use crate::terminal::columns;

/// Check this machine for training: CPU, memory, GPUs, NCCL. With `--ranks N`, also test the connections between ranks
#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// The folder of a run, or a folder of runs, of which the newest is examined. Exits with 1 if a named run has failed, was
    /// cut off or does not exist
    #[arg(value_name = "RUN", default_value = RUNS)]
    run: PathBuf,

    /// Also test the connections between N ranks on this machine [default with --nodes: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    ranks: Option<u16>,

    /// The number of machines, each with the same number of ranks; start the same command on each
    #[arg(long, value_name = "M", requires = "rendezvous", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    nodes: u16,

    /// This machine's number, from 0
    #[arg(long, value_name = "K", default_value_t = 0)]
    node_rank: u16,

    /// HOST:PORT of machine 0, where the ranks meet; machines share EVERBURN_JOB_TOKEN
    #[arg(long, value_name = "HOST:PORT", requires = "nodes")]
    rendezvous: Option<String>,

    /// The longest wait for the other ranks in any step, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    timeout: u16,
}

impl DoctorArguments {
    fn ranks_here(&self) -> usize {
        usize::from(self.ranks.unwrap_or(1))
    }

    fn world_size(&self) -> usize {
        self.ranks_here() * usize::from(self.nodes)
    }

    /// Whether more than this machine is to be examined.
    fn wants_ranks(&self) -> bool {
        self.ranks.is_some() || self.nodes > 1
    }
}

/// Prints the report, the problems last; where something is wrong with a run that was named, without what is well on this
/// machine, and without warnings that are not about that run. Fails only where training on the CPU could not work, where a run
/// that was named has failed, or where ranks found something wrong.
pub(super) fn run(options: &DoctorArguments) -> Result<ExitCode, ToolError> {
    let mut of_run = newest_run::findings(&options.run);
    of_run.extend(absent(&options.run));
    let is_named = options.run != Path::new(RUNS);
    let of_run_only = is_named && of_run.iter().any(|it| it.verdict != Verdict::Ok);
    let limits = limits::findings(options.world_size(), &options.run);
    let mut asked: Vec<Finding> = of_run.iter().chain(&limits).cloned().collect();
    let mut findings = host::findings();
    findings.extend(limits);
    // A run that was named is what is asked for.
    match is_named {
        true => drop(findings.splice(0..0, of_run)),
        false => findings.append(&mut of_run),
    }
    findings.extend(network::findings());
    if let Some(rendezvous) = &options.rendezvous {
        let found = network::rendezvous(rendezvous, options.node_rank == 0);
        asked.push(found.clone());
        findings.push(found);
    }
    findings.extend(libraries::findings());
    let is_shown = |it: &&Finding| match it.verdict {
        _ if !of_run_only => true,
        Verdict::Ok => false,
        Verdict::Warn => asked.contains(*it),
        Verdict::Fail => true,
    };
    let shown: Vec<&Finding> = findings.iter().filter(is_shown).collect();
    let columns = columns(&std::io::stdout());
    for finding in &shown {
        say!("{}", finding.wrapped(columns));
    }
    let problems = match options.wants_ranks() {
        true => {
            let examined = ranks::examine(options)?;
            say!("\n{}", examined.table.trim_end());
            examined.problems
        }
        false => Vec::new(),
    };
    Ok(conclude(&shown, findings.len(), &problems))
}

/// That a folder is not there which was named, and which run may be meant.
fn absent(run: &Path) -> Option<Finding> {
    let is_absent = run != Path::new(RUNS) && !run.exists();
    is_absent.then(|| {
        let found = format!("there is no {}", run.display());
        Finding::fail("run", found, missing_run::help(run))
    })
}

/// Says what is wrong once more, with what to do, as the last lines of all. Of `checked` findings some were `shown`.
fn conclude(shown: &[&Finding], checked: usize, problems: &[Finding]) -> ExitCode {
    let count = |verdict| shown.iter().filter(|it| it.verdict == verdict).count();
    let (warnings, failures) = (count(Verdict::Warn), count(Verdict::Fail));
    let left_out = match checked - shown.len() {
        0 => String::new(),
        count => format!(
            "; {count} of this machine are not shown, `{} doctor` shows them",
            invocation::name()
        ),
    };
    say!(
        "\n{checked} checked, {warnings} to look at, {} failed{left_out}",
        failures + problems.len()
    );
    if !problems.is_empty() {
        for finding in shown {
            if finding.verdict == Verdict::Fail {
                say!(
                    "- {}: {}\n  -> {}",
                    finding.subject,
                    finding.found,
                    finding.advice
                );
            }
        }
    }
    for problem in problems {
        say!("- {}\n  -> {}", problem.found, problem.advice);
    }
    match failures + problems.len() {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_is_misspelt_is_not_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("mnist-1");
        std::fs::create_dir(&run).unwrap();
        std::fs::write(run.join("config.toml"), "").unwrap();
        assert_eq!(absent(&run), None);
        let line = absent(&folder.path().join("mnist-1a")).unwrap().to_string();
        let meant = format!("did you mean `{}`?", run.display());
        assert!(
            line.starts_with("FAIL  run ") && line.contains("there is no "),
            "{line}"
        );
        assert!(line.ends_with(&meant), "{line}");
    }

    #[test]
    fn this_machine_can_be_examined() {
        for finding in host::findings().into_iter().chain(libraries::findings()) {
            assert_eq!(
                finding.advice.is_empty(),
                finding.verdict == Verdict::Ok,
                "{finding}"
            );
        }
    }
}
