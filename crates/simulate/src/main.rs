//! `everburn-simulate --simulate 1024 --faults 50 --seed 7`, as `cargo xtask soak` passes it on.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command talks to its user"
)]

use std::process::ExitCode;

use clap::Parser;
use everburn_simulate::{Settings, run};

/// Simulates a job with faults, and fails where rendezvous, messages or the time after a fault exceed their bounds.
#[derive(Parser)]
#[command(name = "cargo xtask soak --simulate")]
struct Arguments {
    /// How many ranks to simulate
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=8192))]
    simulate: u32,
    /// How many of them on each machine
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    ranks_per_machine: u32,
    /// How many faults, one after the other
    #[arg(long, default_value_t = 50)]
    faults: usize,
    /// What decides all that is random
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let settings = Settings {
        ranks_per_machine: arguments.ranks_per_machine as usize,
        faults: arguments.faults,
        ..Settings::new(arguments.simulate as usize, arguments.seed)
    };
    let report = run(settings);
    println!("{report}");
    let broken = report.broken();
    for bound in &broken {
        eprintln!("error: {bound}");
    }
    if broken.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "repeat it with: cargo xtask soak --simulate {} --ranks-per-machine {} --faults {} --seed {}",
        arguments.simulate, arguments.ranks_per_machine, arguments.faults, arguments.seed
    );
    ExitCode::FAILURE
}
