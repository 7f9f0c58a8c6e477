//! A rank of `cargo xtask bench`: it does what the benchmark orders, line by line, and says how
//! long that took. And the store of `cargo xtask store`, which benchmarks start too, and a rank of
//! `cargo xtask doctor`.
//!
//! The benchmark starts one process a rank with the launcher's environment and keeps all of them
//! until it is done, so that ours and the peer can be measured in turn, seconds apart. An order is
//! a line of JSON on standard input that goes to every rank ([`rank::Order`]); every rank answers
//! with one line on standard output. The end of the input is the end of the process, so nothing is
//! left behind when the benchmark is killed.
#![allow(clippy::print_stdout, reason = "answers go to standard output")]
#![allow(clippy::print_stderr, reason = "errors go to standard error")]

mod collective;
mod doctor;
mod link;
mod memory;
mod rank;
mod store;
mod store_client;

use std::error::Error;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "everburn-measure", about = "Run by `cargo xtask bench`")]
struct Cli {
    #[command(subcommand)]
    part: Part,
}

#[derive(Subcommand)]
enum Part {
    #[command(bin_name = "cargo xtask store")]
    Store(store::StoreArguments),
    /// Be a client of a store: carry out the orders on standard input
    StoreClient,
    /// Be a rank: carry out the orders on standard input
    Rank(rank::RankOptions),
    /// Be a rank of `cargo xtask doctor`: examine the ways to all others
    Doctor(doctor::DoctorOptions),
}

/// Whatever ends a rank; all of it is told to the person who runs the benchmark.
type Failure = Box<dyn Error>;

fn main() -> ExitCode {
    let done = match Cli::parse().part {
        Part::Store(arguments) => store::serve(&arguments),
        Part::StoreClient => store_client::run(),
        Part::Rank(options) => rank::run(&options),
        Part::Doctor(options) => doctor::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
