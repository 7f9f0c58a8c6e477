//! `bench recompute`: the memory that activation checkpointing saves, and the time that it costs.
//!
//! Each side is `everburn bench-recompute` in a process of its own, whose peak is its own.

mod options;
pub(super) mod rows;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(super) use self::options::RecomputeOptions;
use everburn_record::proc::CpuTime;

use self::rows::Side;
pub(super) use self::rows::{Measured, table, to_json};
use super::job::{Job, Place};
use super::machine::Machine;
use super::process::{Children, Failure};
use super::{temporary_folder, write_file};
use crate::binary;

/// Runs the benchmark with the arguments after its name.
pub(super) fn run(arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let options = RecomputeOptions::parse_or_exit(arguments);
    options.check()?;
    let machine = Machine::look();
    let children = Children::listen()?;
    let folder = temporary_folder()?;
    let built = |program: miette::Result<Option<PathBuf>>| {
        let program = program.map_err(|error| Failure::new(error.to_string()))?;
        children.check_interrupted()?;
        Ok::<_, Failure>(program)
    };
    let (Some(measure), Some(everburn)) =
        (built(binary::measure())?, built(binary::for_measuring())?)
    else {
        // Cargo has said why.
        return Ok(ExitCode::FAILURE);
    };
    let place = Place {
        children: &children,
        folder: folder.path(),
        network: None,
        ranks: 1,
    };
    let before = CpuTime::now();
    let measured = sides(place, &measure, &everburn, &options)?;
    let meanwhile = before.zip(CpuTime::now());
    let others = meanwhile.and_then(|(before, after)| before.others_share(after));

    println!("{}", machine.describe(others));
    println!("{}\n", options.describe());
    println!("{}", table(&measured));
    if let Some(file) = &options.json {
        let rows = to_json(&measured, &options, &machine.to_json(others));
        write_file(file, &format!("{rows:#}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures every side in a process of its own in `place`, which is that of one rank.
pub(super) fn sides(
    place: Place<'_>,
    measure: &Path,
    everburn: &Path,
    options: &RecomputeOptions,
) -> Result<Measured, Failure> {
    measure_all(options, |how| {
        one_side(place, measure, everburn, options, how)
    })
}

fn one_side(
    place: Place<'_>,
    measure: &Path,
    everburn: &Path,
    options: &RecomputeOptions,
    how: &str,
) -> Result<Side, Failure> {
    let name = format!("everburn's steps with `{how}`");
    let job = Job::start(place, measure, everburn, &name, |command| {
        command.args(["bench-recompute", "--json"]);
        command.args(["--activation-checkpointing", how]);
        for (flag, number) in options.numbers() {
            command.arg(flag).arg(number.to_string());
        }
    })?;
    Side::parse(&job.finish(options.patience())?, how)
}

/// Runs every side once a round.
fn measure_all(
    options: &RecomputeOptions,
    mut run: impl FnMut(&str) -> Result<Side, Failure>,
) -> Result<Measured, Failure> {
    let mut rounds = Vec::new();
    for round in 1..=options.rounds {
        let sides = options.sides();
        let sides = sides.iter().map(|how| run(how));
        let sides = sides.collect::<Result<Vec<_>, _>>()?;
        let told = sides.iter().map(Side::describe).collect::<Vec<_>>();
        eprintln!("[round {round}/{}] {}", options.rounds, told.join(", "));
        rounds.push(sides);
    }
    Ok(Measured {
        sides: options.sides(),
        rounds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_side_runs_once_a_round_and_the_plain_one_first() {
        let words = ["--rounds", "2", "--against", "blocks"].map(OsString::from);
        let options = RecomputeOptions::parse_or_exit(&words);
        let mut runs = Vec::new();
        let measured = measure_all(&options, |how| {
            runs.push(how.to_string());
            Ok(rows::tests::side(how))
        });
        assert_eq!(runs, ["none", "blocks", "none", "blocks"]);
        let table = table(&measured.unwrap());
        assert!(table.contains("-60 %"), "{table}");
    }
}
