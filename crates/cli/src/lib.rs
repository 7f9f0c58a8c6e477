//! Every command of Everburn, for any tasks: an [`App`] is the entry point of a program.
//!
//! The same program plays three parts. Started by a user with one rank, it trains in its own
//! process. Started with several, it is the *launcher*: it checks everything that can be checked,
//! then starts itself once per rank. Started by a launcher (Everburn's, `torchrun`, `srun`, `mpirun`, anything
//! that sets `RANK` and `WORLD_SIZE`), it is a *rank*.
//!
//! `everburn` registers the included tasks, `everburn-bench` the same ones, to measure what users run, and your own
//! program registers its own.

/// Prints a line; where nobody reads any more (`| head`), the work continues all the same.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write;
        // At once: several processes may write to one terminal.
        let line = format!("{}\n", format_args!($($text)*));
        let _ = std::io::stdout().write_all(line.as_bytes());
    }};
}

/// The same on the standard error.
macro_rules! say_error {
    ($($text:tt)*) => {{
        use std::io::Write;
        let line = format!("{}\n", format_args!($($text)*));
        let _ = std::io::stderr().write_all(line.as_bytes());
    }};
}

mod app;
mod arguments;
mod bottleneck;
mod chat;
mod commands;
mod config;
pub mod devices;
#[cfg(test)]
mod documents;
mod elastic;
mod error;
mod eval;
mod finders;
#[cfg(test)]
mod flag_table;
mod generate;
mod gradient_backend;
mod kept_memory;
pub mod kernels;
mod launching;
mod list;
mod logging;
mod mesh;
mod missing_run;
mod model_parallel;
mod monitor;
mod over_ranks;
mod plan;
mod predict;
mod pretrained;
mod process_sensor;
mod rank;
mod recording;
mod sampling;
mod simulate;
mod summary;
mod tasks;
mod terminal;
mod train;
mod trained;
mod weights;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::ExitCode;

use everburn_collectives::worker::message_of;
use everburn_launch::{PanicPlaces, RankEnvironment};
use everburn_record::{file as files, plain};

pub use crate::app::App;
use crate::arguments::{Arguments, Command};
use crate::error::CliError;
use crate::logging::LogOutput;

/// What commands use of the façade's prelude.
mod prelude {
    pub(crate) use everburn_collectives::group::ProcessGroup;
    pub(crate) use everburn_train::{
        RunDirectory, TrainError, Trainer, TrainingReport, data_parallel,
    };
}

/// A name or a path that was given, without what a terminal would obey, and no longer than a message should be.
fn legible(name: impl std::fmt::Display) -> String {
    plain::line(&name.to_string(), 300)
}

/// The text of a file that the user names, of at most `most` bytes.
fn read_given(path: &Path, most: u64) -> io::Result<String> {
    let mut text = String::new();
    let read = File::open(path)?.take(most + 1).read_to_string(&mut text)?;
    match read as u64 > most {
        true => Err(io::Error::other(format!("it has more than {most} bytes"))),
        false => Ok(text),
    }
}

/// Whether a command line is right, and one of a command that takes the same memory again and again.
fn trains(words: &[OsString]) -> bool {
    let arguments = Arguments::try_of(words.iter().cloned());
    arguments.is_ok_and(|arguments| arguments.command.trains())
}

/// Does what a command line asks for, whose first word is the program's name.
fn run(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = Arguments::of(words);
    let rank = match rank::from_environment(&arguments.command) {
        Ok(rank) => rank,
        Err(error) => {
            error.print();
            return ExitCode::from(error::EXIT_USAGE);
        }
    };
    let log = LogOutput::start();
    let work = || carry_out(&arguments.command, rank.as_ref(), &log);
    let result = match &rank {
        // Its panics are reported to its launcher.
        Some(_) => work(),
        None => with_place_of_panic(work),
    };
    match result {
        Ok(code) => rank::finish(code, rank.as_ref()),
        Err(error) => {
            let code = rank::fail(&error, rank.as_ref());
            if rank.is_none() {
                launching::give_up(&arguments.command, &error);
            }
            code
        }
    }
}

/// Does `work`; after a panic that ends it, what Rust's message leaves out is said.
fn with_place_of_panic<R>(work: impl FnOnce() -> R) -> R {
    let places = PanicPlaces::watch();
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        if let Some(place) = places.of(message_of(&*panic)) {
            say_error!("{place}");
        }
        resume_unwind(panic)
    })
}

fn carry_out(
    command: &Command,
    rank: Option<&RankEnvironment>,
    log: &LogOutput,
) -> Result<ExitCode, CliError> {
    match command {
        Command::Train(train) if train.list => list::run(),
        Command::Train(train) => train::run(train, rank, log),
        Command::Bottleneck(bottleneck) => bottleneck::run(bottleneck, log),
        Command::Eval(eval) => eval::run(eval, rank),
        Command::Predict(predict) => predict::run(predict, rank),
        Command::Generate(generate) => generate::run(generate),
        Command::Chat(chat) => chat::run(chat),
        Command::Export(export) => weights::export(export),
        Command::Import(import) => weights::import(import),
        Command::Monitor(monitor) => monitor::run(monitor),
        Command::Report(report) => recording::report(report),
        Command::Compare(compare) => recording::compare(compare),
        Command::Simulate(simulate) => simulate::run(simulate),
        Command::Tool(tool) => Ok(tool.run()),
    }
}
