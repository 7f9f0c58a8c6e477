//! `everburn`: trains models on any number of ranks.
//!
//! The same program plays three parts. Started by a user with one rank, it trains in its own
//! process. Started with several, it is the *launcher*: it checks everything that can be checked,
//! then starts itself once a rank. Started by a launcher (ours, `torchrun`, `srun`, `mpirun`, anything
//! that sets `RANK` and `WORLD_SIZE`), it is a *rank*.

#![allow(clippy::print_stderr, reason = "a command talks to its user")]

/// Prints a line; where nobody reads any more (`| head`), the work goes on all the same.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

mod arguments;
mod bench_ddp;
mod bench_kernels;
mod bench_pipeline;
mod bench_recompute;
mod bottleneck;
mod config;
mod data;
mod devices;
mod elastic;
mod error;
mod eval;
#[cfg(test)]
mod flag_table;
mod generate;
mod gpu_check;
mod gradient_exchange;
mod kernels;
mod launching;
mod list;
mod logging;
mod median;
mod mesh;
mod model_parallel;
mod monitor;
mod over_ranks;
mod plan;
mod preset;
mod rank;
mod recording;
mod sampling;
mod simulate;
mod summary;
mod train;
mod vitals;
mod weights;

use std::process::ExitCode;

use clap::Parser;
use everburn_record::file as files;

use crate::arguments::{Arguments, Command};
use crate::logging::LogOutput;

/// Counts nothing unless a training is profiled.
#[global_allocator]
static ALLOCATOR: everburn_profile::CountingAllocator = everburn_profile::CountingAllocator;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let rank = match rank::from_environment(&arguments.command) {
        Ok(rank) => rank,
        Err(error) => {
            error.print();
            return ExitCode::from(error::EXIT_USAGE);
        }
    };
    let log = LogOutput::start(rank.is_some());
    let result = match &arguments.command {
        Command::Train(train) if train.list => list::run(),
        Command::Train(train) => train::run(train, rank.as_ref(), &log),
        Command::Bottleneck(bottleneck) => bottleneck::run(bottleneck, &log),
        Command::Eval(eval) => eval::run(eval, rank.as_ref()),
        Command::Generate(generate) => generate::run(generate),
        Command::Export(export) => weights::export(export),
        Command::Import(import) => weights::import(import),
        Command::Monitor(monitor) => monitor::run(monitor),
        Command::Report(report) => recording::report(report),
        Command::Compare(compare) => recording::compare(compare),
        Command::Simulate(simulate) => simulate::run(simulate),
        Command::BenchDdp(bench) => bench_ddp::run(bench, rank.as_ref()),
        Command::BenchKernels(bench) => bench_kernels::run(bench),
        Command::BenchPipeline(bench) => bench_pipeline::run(bench, rank.as_ref()),
        Command::BenchRecompute(bench) => bench_recompute::run(bench),
        Command::GpuCheck(check) => gpu_check::run(check),
    };
    match result {
        Ok(code) => rank::finish(code, rank.as_ref()),
        Err(error) => rank::fail(&error, rank.as_ref()),
    }
}
