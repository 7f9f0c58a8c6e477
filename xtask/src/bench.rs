//! `cargo xtask bench`: what is claimed about speed, measured in one run beside its peer.

mod chart;
mod collectives;
mod ddp;
mod everburn;
mod gloo;
pub(crate) mod job;
mod kernels;
mod machine;
mod network;
mod owner;
mod pipeline;
pub(crate) mod process;
mod pytorch;
mod quantity;
mod recompute;
mod resilience;
mod statistics;
mod store;
mod sync;
pub(crate) mod team;
mod train;
mod train_options;
mod train_rows;

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use tempfile::TempDir;

use self::owner::Owner;

/// The exit code for a command line that cannot work, as `clap` has it.
const BAD_COMMAND_LINE: u8 = 2;

/// 128 + SIGINT, as a shell has it.
const INTERRUPTED: u8 = 130;

/// A benchmark: its name, what it measures and how it is run with the arguments after its name.
struct Bench {
    name: &'static str,
    about: &'static str,
    run: fn(&[OsString]) -> Result<ExitCode, process::Failure>,
}

/// The first is run where none is named.
const BENCHES: [Bench; 9] = [
    Bench {
        name: "train",
        about: "samples/s of `everburn train` by model, ranks and batch size; --against pytorch",
        run: train::run,
    },
    Bench {
        name: "kernels",
        about: "microseconds of the models' layers by threads and batch size; --against pytorch",
        run: kernels::run,
    },
    Bench {
        name: "collectives",
        about: "time and GB/s of collectives by size, ranks and transport; --against gloo",
        run: collectives::run,
    },
    Bench {
        name: "ddp",
        about: "a step's compute and exchange, one after the other and overlapped; --link 1gbit",
        run: ddp::run,
    },
    Bench {
        name: "pipeline",
        about: "idle share and memory of pipelines by schedule, beside theory",
        run: pipeline::run,
    },
    Bench {
        name: "recompute",
        about: "memory that activation checkpointing saves in a step of a decoder, and its time",
        run: recompute::run,
    },
    Bench {
        name: "resilience",
        about: "what heartbeats, comparisons, checkpoints and readiness to lose ranks cost a step",
        run: resilience::run,
    },
    Bench {
        name: "store",
        about: "gets, adds and sets a second, and 1,000 clients at once; --against pytorch",
        run: store::run,
    },
    Bench {
        name: "sync",
        about: "bytes, time and loss of ranks that become equal every so many steps; --link 10mbit",
        run: sync::run,
    },
];

/// What the arguments after `bench` ask for.
enum Asked<'a> {
    Run(&'static Bench, &'a [OsString]),
    List,
    Unknown(String),
}

fn asked_for(arguments: &[OsString]) -> Asked<'_> {
    let Some(first) = arguments.first() else {
        return Asked::Run(&BENCHES[0], arguments);
    };
    let word = first.to_string_lossy();
    match &*word {
        "--help" | "-h" | "--list" => Asked::List,
        _ if word.starts_with('-') => Asked::Run(&BENCHES[0], arguments),
        _ => match BENCHES.iter().find(|bench| bench.name == word) {
            Some(bench) => Asked::Run(bench, &arguments[1..]),
            None => Asked::Unknown(word.into_owned()),
        },
    }
}

/// Runs the benchmark that `arguments` name.
pub fn run(arguments: &[OsString]) -> miette::Result<ExitCode> {
    let result = match asked_for(arguments) {
        Asked::Run(bench, rest) => (bench.run)(rest),
        Asked::List => {
            println!("{}", listing());
            return Ok(ExitCode::SUCCESS);
        }
        Asked::Unknown(name) => {
            eprintln!("there is no benchmark `{name}` yet\n\n{}", listing());
            return Ok(ExitCode::from(BAD_COMMAND_LINE));
        }
    };
    match result {
        Ok(code) => Ok(code),
        Err(process::Failure::Interrupted) => {
            eprintln!("interrupted: all processes of the benchmark have been ended");
            Ok(ExitCode::from(INTERRUPTED))
        }
        Err(process::Failure::Usage(what)) => {
            eprintln!("{what}");
            Ok(ExitCode::from(BAD_COMMAND_LINE))
        }
        Err(process::Failure::Failed(what)) => Err(miette::miette!("{what}")),
    }
}

fn listing() -> String {
    let lines: Vec<_> = BENCHES
        .iter()
        .map(|bench| format!("  {:<12} {}", bench.name, bench.about))
        .collect();
    format!(
        "The benchmarks (`cargo xtask bench <name> --help` shows the options of one):\n{}",
        lines.join("\n")
    )
}

/// Removed when the value goes, also on an interrupt. What killed runs have left goes now.
pub(crate) fn temporary_folder() -> Result<TempDir, process::Failure> {
    let parent = std::env::temp_dir();
    remove_leftovers(&parent);
    tempfile::Builder::new()
        .prefix(&Owner::this_process()?.name(""))
        .tempdir_in(parent)
        .map_err(|error| process::Failure::new(format!("no temporary folder: {error}")))
}

/// Removes folders of benchmarks that are no more.
fn remove_leftovers(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let owner = name.to_str().and_then(Owner::of_name);
        if owner.is_some_and(|owner| !owner.lives()) {
            // Another user's, or just being removed by another run: no harm is done.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Refuses what `flag` names if it cannot be written: known now, not after an hour of measuring.
fn check_place(flag: &str, file: &Path) -> Result<(), process::Failure> {
    let folder = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    if file.is_dir() || folder.is_some_and(|folder| !folder.is_dir()) {
        let what = format!("{flag} {}: not a place for a file", file.display());
        return Err(process::Failure::Usage(what));
    }
    Ok(())
}

fn write_file(file: &Path, text: &str) -> Result<(), process::Failure> {
    fs::write(file, text)
        .map_err(|error| process::Failure::new(format!("cannot write {}: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn folders_of_killed_runs_go() {
        let parent = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let folder = parent.path().join(name);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("stderr"), "").unwrap();
            folder
        };
        let ours = make(&Owner::this_process().unwrap().name("x"));
        let foreign = make("everburn-bench-of-mine");
        let left = make("everburn-bench-4294967295-1-x");
        remove_leftovers(parent.path());
        assert!(ours.exists() && foreign.exists() && !left.exists());
    }

    #[test]
    fn train_is_meant_where_nothing_is_named() {
        for line in ["", "train", "train --ranks 1", "--ranks 1"] {
            let words = words(line);
            let Asked::Run(bench, rest) = asked_for(&words) else {
                panic!("{line}: not run")
            };
            assert_eq!(bench.name, "train");
            assert_eq!(rest.len(), if line.contains("--ranks") { 2 } else { 0 });
        }
        assert!(matches!(asked_for(&words("--list")), Asked::List));
    }

    #[test]
    fn an_unknown_name_is_named_and_the_known_ones_are_listed() {
        let words = words("lunch --ranks 2");
        let Asked::Unknown(name) = asked_for(&words) else {
            panic!("lunch is known")
        };
        assert_eq!(name, "lunch");
        assert!(listing().contains("\n  train "), "{}", listing());
    }
}
