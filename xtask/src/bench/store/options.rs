//! The command line of `bench store`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::bench::check_place;
use crate::bench::process::Failure;

const SETS_PER_GET: usize = 10;

/// Measures the store over TCP on this machine: gets, adds and sets a second, and many clients at once.
///
/// One client does one operation after the other. With `--against pytorch` both servers run all the
/// time, and PyTorch's client and ours measure both of them in turn, so that servers are compared with
/// the same client, and the two stores each with its own.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask bench store",
    after_help = "Environment:\n  \
        EVERBURN_PYTHON    the Python that can import torch, for --against [default: python3]"
)]
pub(in crate::bench) struct StoreBenchOptions {
    /// Measure beside this peer.
    #[arg(long, value_name = "PEER", value_parser = ["pytorch"])]
    pub(super) against: Option<String>,

    /// Gets and adds in each round, and a tenth of the sets.
    #[arg(long, default_value_t = 20_000)]
    pub(super) calls: usize,

    /// How many rounds.
    #[arg(long, default_value_t = 7)]
    pub(super) rounds: usize,

    /// Clients that connect at once.
    #[arg(long, default_value_t = 1_000)]
    pub(super) clients: usize,

    /// A client that has not connected after this many seconds has failed.
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    pub(super) connect_timeout: u64,

    /// Write the rows to this file too.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,

    /// Give up when one answer takes longer than this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 180)]
    run_timeout: u64,
}

impl StoreBenchOptions {
    /// Parses the arguments after `store`. Prints help and ends the process where that is asked for or
    /// nothing else can be said.
    pub(super) fn parse_or_exit(arguments: &[OsString]) -> Self {
        let name = OsString::from("cargo xtask bench store");
        Self::parse_from([name].into_iter().chain(arguments.iter().cloned()))
    }

    /// Nobody waits for a set, so many take as long as few gets.
    pub(super) fn calls_of(&self, operation: &str) -> usize {
        match operation {
            "set" => self.calls.saturating_mul(SETS_PER_GET),
            _ => self.calls,
        }
    }

    pub(super) fn patience(&self) -> Duration {
        Duration::from_secs(self.run_timeout)
    }

    /// What is wrong with the options, before anything runs.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let zero = [
            ("--calls", self.calls),
            ("--rounds", self.rounds),
            ("--clients", self.clients),
            ("--connect-timeout", usize::from(self.connect_timeout > 0)),
            ("--run-timeout", usize::from(self.run_timeout > 0)),
        ];
        if let Some((flag, _)) = zero.into_iter().find(|(_, number)| *number == 0) {
            return Err(Failure::Usage(format!("{flag} 0: it must be at least 1")));
        }
        self.json
            .as_deref()
            .map_or(Ok(()), |file| check_place("--json", file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> Result<StoreBenchOptions, String> {
        let words = std::iter::once("bench store").chain(line.split_whitespace());
        StoreBenchOptions::try_parse_from(words).map_err(|error| error.to_string())
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        StoreBenchOptions::command().debug_assert();
    }

    #[test]
    fn what_cannot_work_is_said_first() {
        let wrong = |line| options(line).unwrap().check().unwrap_err().to_string();
        assert!(wrong("--calls 0").contains("--calls"));
        assert!(wrong("--clients 0").contains("--clients"));
        assert!(options("--against lunch").unwrap_err().contains("pytorch"));
        assert!(options("--against pytorch").unwrap().check().is_ok());
    }
}
