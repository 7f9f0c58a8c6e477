//! `everburn`: trains models on any number of ranks.
//!
//! The same program plays three parts. Started by a user with one rank, it trains in its own
//! process. Started with several, it is the *launcher*: it checks everything that can be checked,
//! then starts itself once a rank. Started by a launcher (ours, `torchrun`, anything that sets
//! `RANK` and `WORLD_SIZE`), it is a *rank*.

#![allow(clippy::print_stdout, clippy::print_stderr)]

mod arguments;
mod config;
mod data;
mod devices;
mod error;
mod eval;
mod launching;
mod list;
mod rank;
mod train;

use std::process::ExitCode;

use clap::Parser;
use everburn_launch::RankEnvironment;

use crate::arguments::{Arguments, Command};

fn main() -> ExitCode {
    let rank = match rank::from_environment() {
        Ok(rank) => rank,
        Err(error) => {
            eprintln!("{:?}", miette::Report::new(error));
            return ExitCode::from(error::EXIT_USAGE);
        }
    };
    let arguments = Arguments::parse();
    start_logging(rank.as_ref());
    let result = match &arguments.command {
        Command::Train(train) if train.list => list::run(),
        Command::Train(train) => train::run(train, rank.as_ref()),
        Command::Eval(eval) => eval::run(eval, rank.as_ref()),
    };
    match result {
        Ok(code) => code,
        Err(error) => rank::fail(error, rank.as_ref()),
    }
}

/// Messages go to standard error, which is the log's end of a rank; `EVERBURN_LOG` chooses them.
fn start_logging(rank: Option<&RankEnvironment>) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("EVERBURN_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn,everburn=info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false);
    if rank.is_some() {
        builder.init();
    } else {
        builder.without_time().init();
    }
}
