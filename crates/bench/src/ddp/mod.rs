//! `bench ddp`: how much of the gradients' exchange is hidden behind the backward pass.
//!
//! The ranks are `everburn-bench side ddp`, started anew for each run with the launcher's environment;
//! rank 0 prints a line of JSON.

mod options;
mod order;
#[cfg(not(test))]
pub(crate) mod rank;
mod rows;
mod steps;

use std::time::Duration;

use serde_json::{Value, json};

pub(crate) use self::options::DdpBench;
use self::order::{Mode, Order, Step};
use self::rows::{DdpResults, Setting, table, to_json};
use self::steps::balanced_batch;
use crate::bench::{Bench, Setup};
use crate::failure::Failure;
use crate::job::{Job, JobContext};
use crate::network::Network;
use crate::rounds::Rounds;

impl Bench for DdpBench {
    const NAME: &'static str = "ddp";
    const ABOUT: &'static str =
        "a step's compute and communication, one after the other and overlapped; --link 1gbit";

    type Results = DdpResults;

    fn check(&self) -> Result<(), Failure> {
        self.link.check([self.transport()])
    }

    fn measure(&self, setup: &Setup) -> Result<DdpResults, Failure> {
        let network = self.link.network(self.ranks())?;
        let context = setup.job_context(self.ranks(), network.as_ref());
        let run = |mode, batch| one_run(context, self, (mode, batch), setup.patience);
        measure_all(run, self, network.as_ref())
    }

    fn notes(&self, results: &DdpResults, _: &Setup) -> String {
        notes(&results.setting, self)
    }

    fn table(&self, results: &DdpResults, _: &Setup) -> String {
        table(results)
    }

    fn to_json(&self, results: &DdpResults, _: &Setup, machine: &Value) -> Value {
        to_json(results, machine)
    }
}

/// Has ranks make steps of a mode, with `batch` samples of each rank.
fn one_run(
    context: JobContext<'_>,
    options: &DdpBench,
    (mode, batch): (Mode, usize),
    patience: Duration,
) -> Result<Step, Failure> {
    let name = format!("everburn's {mode} steps");
    let order = json!(Order {
        mode,
        transport: options.transport().to_owned(),
        width: options.width,
        layers: options.layers,
        batch,
        steps: options.steps,
    });
    let job = Job::start(context, &name, |command| {
        command.args(["side", "ddp", &order.to_string()]);
    })?;
    job.result(patience)
}

/// Finds the batch, then runs every mode once a round.
fn measure_all(
    mut run: impl FnMut(Mode, usize) -> Result<Step, Failure>,
    options: &DdpBench,
    network: Option<&Network>,
) -> Result<DdpResults, Failure> {
    let batch = match options.batch {
        Some(batch) => batch,
        None => balanced_batch(&mut run, |batch, compute, communication| {
            eprintln!(
                "[batch {batch}] compute {compute:.1} ms beside {communication:.1} ms of communication"
            );
        })?,
    };
    let run = |_: usize, mode: usize| run(Mode::ALL[mode], batch);
    let rounds = Rounds::in_turn(options.rounds, Mode::ALL.len(), run, |round| {
        let told = Mode::ALL.iter().zip(round);
        let told = told.map(|(mode, step)| format!("{mode} {:.1} ms", step.milliseconds));
        told.collect::<Vec<_>>().join(", ")
    })?;
    Ok(DdpResults {
        setting: Setting {
            ranks: options.ranks(),
            transport: options.transport().to_owned(),
            width: options.width,
            layers: options.layers,
            batch,
            steps: options.steps,
            network: network.map(Network::describe),
            link: network.map(|network| network.rate().bytes_per_second()),
            delay_us: network
                .and_then(Network::delay)
                .map(|delay| delay.as_secs_f64() * 1e6),
        },
        rounds,
    })
}

/// What one has to know to judge the table.
fn notes(setting: &Setting, options: &DdpBench) -> String {
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
    notes.extend(setting.network.clone());
    notes.join("\n")
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use everburn_tests::AssertContains;

    use super::rows::tests::setting;
    use super::steps::tests::Machine;
    use super::*;

    fn machine() -> Machine {
        Machine {
            fixed: 10.0,
            each: 2.0,
            communication: 200.0,
            runs: Vec::new(),
        }
    }

    #[test]
    fn every_mode_runs_once_a_round_after_the_batch_is_found() {
        let options = DdpBench::parse_from(["bench ddp", "--rounds", "2"]);
        let mut machine = machine();
        let measured = measure_all(|mode, batch| machine.run(mode, batch), &options, None).unwrap();
        let rounds = &machine.runs[machine.runs.len() - 8..];
        assert_eq!(rounds[..4], Mode::ALL);
        assert!(Mode::ALL.iter().all(|mode| rounds[4..].contains(mode)));
        assert!((126..=140).contains(&measured.setting.batch));
        let table = table(&measured);
        table.assert_contains(["max(compute, communication) = 1.10"]);
    }

    #[test]
    fn a_batch_that_is_named_is_taken() {
        let options = DdpBench::parse_from(["bench ddp", "--batch", "7"]);
        let mut machine = machine();
        let measured = measure_all(|mode, batch| machine.run(mode, batch), &options, None).unwrap();
        assert_eq!(measured.setting.batch, 7);
        assert_eq!(machine.runs.len(), 4 * options.rounds);
        let notes = notes(&setting(), &options);
        notes.assert_contains(["4 ranks over tcp, batch 40 each\n"]);
    }
}
