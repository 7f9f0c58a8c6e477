//! `everburn-bench`: all measurements. `cargo xtask bench` and `cargo xtask gpu-check` build it and become it.
//!
//! The same program is the coordinator of a benchmark (`bench`), the processes that it times (`side`), and everything that
//! `everburn` is: this binary alone measures trainings as users run them.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command talks to its user"
)]
// Optimised, Burn's generic code takes a minute to compile. Unit tests leave out all that uses it: `tests/processes` runs it.
#![cfg_attr(test, allow(dead_code, reason = "the measured processes use it"))]

/// Prints a line; where nobody reads any more (`| head`), the work continues all the same.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

mod bench;
mod cells;
mod chart;
mod collectives;
mod ddp;
mod failure;
mod gpu_check;
mod job;
mod kernels;
mod machine;
mod network;
mod peers;
mod pipeline;
mod quantity;
mod rank;
mod recompute;
mod resilience;
mod rounds;
mod scale;
mod store;
mod sync;
mod train;

use std::ffi::OsString;
#[cfg(not(test))]
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "everburn-bench",
    about = "Run by `cargo xtask bench` and `cargo xtask gpu-check`",
    version
)]
struct Cli {
    #[command(subcommand)]
    part: Part,
}

#[derive(Subcommand)]
enum Part {
    /// Measure, as in `bench train --against pytorch` (`bench --list` shows the benchmarks)
    #[command(disable_help_flag = true)]
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Check a GPU: results against the processor, ranks, throughput against PyTorch
    GpuCheck(Box<gpu_check::GpuCheckArguments>),
    /// Be a process that a benchmark times
    #[command(subcommand, hide = true)]
    Side(Side),
    /// Whatever `everburn` does
    #[command(external_subcommand)]
    Everburn(
        #[cfg_attr(not(test), expect(dead_code, reason = "`App::main` reads it again"))]
        Vec<OsString>,
    ),
}

/// The processes of benchmarks and of a check: ranks, parts, and one side of a comparison.
#[derive(Subcommand)]
enum Side {
    /// Serve a store until the input ends
    Store(store::server::ServerArguments),
    /// Be a client of a store: carry out the orders on standard input
    StoreClient,
    /// Be a rank of `bench collectives`: carry out the orders on standard input
    Collectives(collectives::rank::RankOptions),
    /// Time layers: carry out the orders on standard input
    Kernels {
        #[arg(long)]
        threads: usize,
    },
    /// Be a rank of `bench ddp`
    Ddp(Order),
    /// Be a rank of `bench pipeline`
    Pipeline(Order),
    /// Make steps of `bench recompute`
    Recompute(Order),
    /// Do a part of a check of a GPU
    Part(Order),
}

/// What a process is to do.
#[derive(Args)]
struct Order {
    /// JSON
    order: String,
}

/// Counts nothing unless a training is profiled.
#[global_allocator]
static ALLOCATOR: everburn::profile::CountingAllocator = everburn::profile::CountingAllocator;

#[cfg(not(test))]
fn main() -> ExitCode {
    let done = match Cli::parse().part {
        Part::Bench { arguments } => bench::run(&arguments),
        Part::GpuCheck(arguments) => gpu_check::run(&arguments),
        Part::Side(side) => run_side(&side).map(|()| ExitCode::SUCCESS),
        // It is all of this process's command line.
        Part::Everburn(_) => return everburn::tasks::app().main(),
    };
    done.unwrap_or_else(failure::Failure::tell)
}

#[cfg(not(test))]
fn run_side(side: &Side) -> Result<(), failure::Failure> {
    match side {
        Side::Store(arguments) => store::server::serve(arguments),
        Side::StoreClient => store::client::run(),
        Side::Collectives(options) => collectives::rank::run(options),
        Side::Kernels { threads } => kernels::worker::run(*threads),
        Side::Ddp(Order { order }) => ddp::rank::run(&serde_json::from_str(order)?),
        Side::Pipeline(Order { order }) => pipeline::rank::run(&serde_json::from_str(order)?),
        Side::Recompute(Order { order }) => recompute::steps::run(&serde_json::from_str(order)?),
        Side::Part(Order { order }) => gpu_check::parts::run(&serde_json::from_str(order)?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn what_is_no_part_of_ours_is_everburns() {
        let part = |line: &str| Cli::try_parse_from(line.split(' ')).map(|cli| cli.part);
        let everburn = part("everburn-bench train mnist --ranks 2");
        assert!(matches!(everburn, Ok(Part::Everburn(words)) if words.len() == 4));
        let bench = part("everburn-bench bench train --ranks 2");
        assert!(matches!(bench, Ok(Part::Bench { arguments }) if arguments.len() == 3));
    }
}
