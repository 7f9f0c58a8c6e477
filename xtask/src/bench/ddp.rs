//! `bench ddp`: how much of the gradients' exchange is hidden behind the backward pass.
//!
//! The ranks are `everburn bench-ddp`, started anew for each run with the launcher's environment;
//! rank 0 prints a line of JSON.

mod options;
mod rows;
mod steps;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use everburn_record::proc::CpuTime;

use self::options::DdpOptions;
use self::rows::{Measured, Setting, table, to_json};
use self::steps::{Mode, Step, Steps, balanced_batch};
use super::job::{Job, Place};
use super::machine::Machine;
use super::network::Network;
use super::process::{Children, Failure};
use super::{temporary_folder, write_file};
use crate::binary;

/// Runs the benchmark with the arguments after its name.
pub(super) fn run(arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let options = DdpOptions::parse_or_exit(arguments);
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
    // Declared before what runs in it, so that it goes last.
    let network = match options.link.link {
        Some(rate) => Some(Network::create(options.ranks(), rate, options.link.delay)?),
        None => None,
    };
    let mut ranks = Ranks {
        place: Place {
            children: &children,
            folder: folder.path(),
            network: network.as_ref(),
            ranks: options.ranks(),
        },
        measure: &measure,
        everburn: &everburn,
        options: &options,
    };
    let before = CpuTime::now();
    let measured = measure_all(&mut ranks, &options, network.as_ref())?;
    let meanwhile = before.zip(CpuTime::now());
    let others = meanwhile.and_then(|(before, after)| before.others_share(after));

    println!("{}", machine.describe(others));
    println!("{}\n", notes(&measured.setting, &options, network.as_ref()));
    println!("{}", table(&measured));
    if let Some(file) = &options.json {
        let rows = to_json(&measured, &machine.to_json(others));
        write_file(file, &format!("{rows:#}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Ranks of `everburn`, which make steps.
struct Ranks<'a> {
    place: Place<'a>,
    measure: &'a Path,
    everburn: &'a Path,
    options: &'a DdpOptions,
}

impl Steps for Ranks<'_> {
    fn run(&mut self, mode: Mode, batch: usize) -> Result<Step, Failure> {
        let name = format!("everburn's {mode} steps");
        let options = self.options;
        let job = Job::start(self.place, self.measure, self.everburn, &name, |command| {
            command.args(["bench-ddp", "--mode", mode.name(), "--json"]);
            command.args(["--transport", options.transport()]);
            for (flag, number) in [
                ("--width", options.width),
                ("--layers", options.layers),
                ("--batch", batch),
                ("--steps", options.steps),
            ] {
                command.arg(flag).arg(number.to_string());
            }
        })?;
        Step::parse(&job.finish(options.patience())?, mode)
    }
}

/// Finds the batch, then runs every mode once a round.
fn measure_all(
    steps: &mut impl Steps,
    options: &DdpOptions,
    network: Option<&Network>,
) -> Result<Measured, Failure> {
    let batch = match options.batch {
        Some(batch) => batch,
        None => balanced_batch(steps, |batch, compute, exchange| {
            eprintln!(
                "[batch {batch}] compute {compute:.1} ms beside {exchange:.1} ms of exchange"
            );
        })?,
    };
    let mut rounds = Vec::new();
    for round in 1..=options.rounds {
        let [compute, communication, sequential, overlapped] =
            Mode::ALL.map(|mode| steps.run(mode, batch));
        let four = [compute?, communication?, sequential?, overlapped?];
        let told = Mode::ALL.iter().zip(&four);
        let told = told.map(|(mode, step)| format!("{mode} {:.1} ms", step.milliseconds));
        let told = told.collect::<Vec<_>>().join(", ");
        eprintln!("[round {round}/{}] {told}", options.rounds);
        rounds.push(four);
    }
    Ok(Measured {
        setting: Setting {
            ranks: options.ranks(),
            transport: options.transport().to_owned(),
            width: options.width,
            layers: options.layers,
            batch,
            steps: options.steps,
            link: network.map(|network| network.rate().bytes_per_second()),
            delay_us: network
                .and_then(Network::delay)
                .map(|delay| delay.as_secs_f64() * 1e6),
        },
        rounds,
    })
}

/// What one has to know to judge the table.
fn notes(setting: &Setting, options: &DdpOptions, network: Option<&Network>) -> String {
    let Setting {
        ranks,
        transport,
        width,
        layers,
        batch,
        steps,
        ..
    } = setting;
    let chosen = match options.batch {
        Some(_) => "",
        None => ", chosen so that compute takes about as long as communication",
    };
    let mut notes = vec![
        format!(
            "model:   {layers} linear layers of {width} features; {ranks} ranks over {transport}, \
             batch {batch} each{chosen}"
        ),
        format!(
            "method:  medians of {} rounds, each of {steps} steps of every kind in processes of \
             its own;\n         `unsteady`: the rounds differ by more than a quarter",
            options.rounds
        ),
    ];
    notes.extend(network.map(Network::describe));
    notes.join("\n")
}

#[cfg(test)]
mod tests {
    use super::rows::tests::setting;
    use super::steps::tests::Machine;
    use super::*;

    fn machine() -> Machine {
        Machine {
            fixed: 10.0,
            each: 2.0,
            exchange: 200.0,
            runs: Vec::new(),
        }
    }

    #[test]
    fn every_mode_runs_once_a_round_after_the_batch_is_found() {
        let words = ["--rounds", "2"].map(OsString::from);
        let options = DdpOptions::parse_or_exit(&words);
        let mut machine = machine();
        let measured = measure_all(&mut machine, &options, None).unwrap();
        let rounds = &machine.runs[machine.runs.len() - 8..];
        assert_eq!(rounds, [Mode::ALL, Mode::ALL].concat());
        assert!((126..=140).contains(&measured.setting.batch));
        let table = table(&measured);
        assert!(
            table.contains("max(compute, communication) = 1.10"),
            "{table}"
        );
    }

    #[test]
    fn a_batch_that_is_named_is_taken() {
        let options = DdpOptions::parse_or_exit(&["--batch".into(), "7".into()]);
        let mut machine = machine();
        let measured = measure_all(&mut machine, &options, None).unwrap();
        assert_eq!(measured.setting.batch, 7);
        assert_eq!(machine.runs.len(), 4 * options.rounds);
        let notes = notes(&setting(), &options, None);
        assert!(
            notes.contains("4 ranks over tcp, batch 40 each\n"),
            "{notes}"
        );
    }
}
