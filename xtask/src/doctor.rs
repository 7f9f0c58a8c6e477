//! `cargo xtask doctor`: what this machine has and lacks for training, without building Burn; with
//! `--ranks`, also the ways between ranks, by processes that do what a training's ranks would.

mod host;
mod libraries;
mod limits;
mod network;
mod ranks;
mod report;

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use self::report::Problem;

/// What is to be examined.
#[derive(Debug, Args)]
pub struct Options {
    /// Also examine the ways between as many ranks on this machine [default with --nodes: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    ranks: Option<u16>,

    /// How many machines take part, each with as many ranks; start the same command on each
    #[arg(long, value_name = "M", requires = "rendezvous", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    nodes: u16,

    /// This machine's number, from 0
    #[arg(long, value_name = "K", default_value_t = 0)]
    node_rank: u16,

    /// HOST:PORT of machine 0, where the ranks meet; machines share EVERBURN_JOB_TOKEN
    #[arg(long, value_name = "HOST:PORT", requires = "nodes")]
    rendezvous: Option<String>,

    /// Where runs are to be written
    #[arg(long, value_name = "FOLDER", default_value = "runs")]
    run_dir: PathBuf,

    /// How many seconds any step may wait for the other ranks
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    timeout: u16,
}

impl Options {
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

/// One line of the report.
struct Finding {
    verdict: Verdict,
    subject: &'static str,
    found: String,
    /// What to do; empty where all is well.
    advice: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Ok,
    /// Training on the CPU works, something else may not.
    Warn,
    /// Training on the CPU does not work.
    Fail,
}

impl Finding {
    fn ok(subject: &'static str, found: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Ok,
            subject,
            found: found.into(),
            advice: "",
        }
    }

    fn warn(subject: &'static str, found: impl Into<String>, advice: &'static str) -> Self {
        Self {
            verdict: Verdict::Warn,
            subject,
            found: found.into(),
            advice,
        }
    }

    fn fail(subject: &'static str, found: impl Into<String>, advice: &'static str) -> Self {
        Self {
            verdict: Verdict::Fail,
            subject,
            found: found.into(),
            advice,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Verdict::Ok => "ok  ",
            Verdict::Warn => "warn",
            Verdict::Fail => "FAIL",
        };
        write!(f, "{verdict}  {:<16} {}", self.subject, self.found)?;
        if !self.advice.is_empty() {
            write!(f, "\n{:24}-> {}", "", self.advice)?;
        }
        Ok(())
    }
}

/// Prints the report, the problems last. Fails only where training on the CPU could not work, or where
/// ranks found something wrong.
pub fn run(options: &Options) -> miette::Result<ExitCode> {
    let mut findings = host::findings();
    findings.extend(limits::findings(options.world_size(), &options.run_dir));
    findings.extend(network::findings());
    if let Some(rendezvous) = &options.rendezvous {
        findings.push(network::rendezvous(rendezvous, options.node_rank == 0));
    }
    findings.extend(libraries::findings());
    for finding in &findings {
        println!("{finding}");
    }
    let problems = match options.wants_ranks() {
        true => {
            println!();
            let Some(examined) = ranks::examine(options)? else {
                // Cargo has said why.
                return Ok(ExitCode::FAILURE);
            };
            print!("{}", examined.table);
            examined.problems
        }
        false => Vec::new(),
    };
    Ok(conclude(&findings, &problems))
}

/// Says what is wrong once more, with what to do, as the last lines of all.
fn conclude(findings: &[Finding], problems: &[Problem]) -> ExitCode {
    let count = |verdict| {
        findings
            .iter()
            .filter(|finding| finding.verdict == verdict)
            .count()
    };
    let (warnings, failures) = (count(Verdict::Warn), count(Verdict::Fail));
    println!(
        "\n{} checked, {warnings} to look at, {} in the way",
        findings.len(),
        failures + problems.len()
    );
    if !problems.is_empty() {
        for finding in findings {
            if finding.verdict == Verdict::Fail {
                println!(
                    "- {}: {}\n  -> {}",
                    finding.subject, finding.found, finding.advice
                );
            }
        }
    }
    for problem in problems {
        println!("- {}\n  -> {}", problem.what, problem.advice);
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
    fn a_line_says_what_is_wrong_and_what_to_do() {
        let line = Finding::warn("memory", "1 GiB free", "train fewer ranks").to_string();
        assert!(line.starts_with("warn  memory"), "{line}");
        assert!(line.ends_with("-> train fewer ranks"), "{line}");
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
