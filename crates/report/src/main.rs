//! `everburn-report`: reports and comparisons without Burn. `cargo xtask report` and `cargo xtask compare` run it.
#![allow(clippy::print_stderr, reason = "a command talks to its user")]

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use everburn_record::invocation;
use everburn_report::{CompareCommand, ReportCommand};

#[derive(Parser)]
#[command(about = "What a run directory says", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a run's report: one HTML file with curves, ranks, events, configuration and results
    Report(ReportCommand),
    /// Compare runs: configurations, results, speed
    Compare(CompareCommand),
}

fn main() -> ExitCode {
    let mut output = std::io::stdout();
    let mut parser = Cli::command().bin_name(invocation::file_name());
    let matches = parser.get_matches_mut();
    let parsed = Cli::from_arg_matches(&matches);
    let done = match parsed
        .unwrap_or_else(|error| error.format(&mut parser).exit())
        .command
    {
        Command::Report(command) => command.run(&mut output),
        Command::Compare(command) => command.run(&mut output),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
