//! `bench train`: samples/s or tokens/s of whole training runs, beside PyTorch's.

pub(crate) mod options;
mod ours;
mod rows;

use std::path::Path;

use serde_json::Value;

use self::options::Case;
pub(crate) use self::options::TrainBench;
use self::ours::{Data, Report};
use self::rows::{CaseMeasurement, table, to_json};
use crate::bench::{Bench, Setup, read_json, temporary_folder};
use crate::cells;
use crate::failure::Failure;
use crate::pytorch::{PeerResult, Pytorch};

/// Steps of the short run that finds how many steps fill the wanted time.
const TRIAL_STEPS: usize = 10;

/// With fewer, the slow first steps would weigh too much.
const FEWEST_STEPS: usize = 30;

impl Bench for TrainBench {
    const NAME: &'static str = "train";
    const ABOUT: &'static str =
        "samples/s of `everburn train` by model, ranks and batch size; --against pytorch";

    type Results = Vec<CaseMeasurement>;

    fn json_file(&self) -> Option<&Path> {
        self.common.json.as_deref()
    }

    fn check(&self) -> Result<(), Failure> {
        self.check_options()
    }

    fn is_against_pytorch(&self) -> bool {
        self.against.is_some()
    }

    /// Every case once a round, ours and the peer's in turn: the machine's moods reach all alike.
    fn measure(&self, setup: &Setup) -> Result<Vec<CaseMeasurement>, Failure> {
        let runs = Runs {
            setup,
            data: self.data()?,
            options: self,
        };
        let mut all = Vec::new();
        for case in self.cases(setup.machine.cores)? {
            let steps = match self.steps {
                Some(steps) => steps,
                None => {
                    let trial = runs.ours(&case, TRIAL_STEPS)?;
                    steps_for(self.seconds, trial.samples_per_second, case.batch)
                }
            };
            all.push(CaseMeasurement::new(case, steps));
        }
        for round in 1..=self.repeats {
            for measured in &mut all {
                runs.add_round(measured)?;
                let (unit, of_a_sample) = measured.case.unit();
                let ours = measured.ours.last().copied().unwrap_or_default() * of_a_sample;
                let peers = measured.peers.last().map(|rate| rate * of_a_sample);
                let peers = peers.map_or(String::new(), |rate| format!(", pytorch {rate:.0}"));
                eprintln!(
                    "[round {round}/{}] {}: {ours:.0}{peers} {unit}/s",
                    self.repeats, measured.case
                );
            }
        }
        Ok(all)
    }

    fn notes(&self, results: &Vec<CaseMeasurement>, setup: &Setup) -> String {
        notes(results, self, setup.peer().as_deref())
    }

    fn table(&self, results: &Vec<CaseMeasurement>, setup: &Setup) -> String {
        table(results, setup.peer().as_deref())
    }

    fn to_json(&self, results: &Vec<CaseMeasurement>, setup: &Setup, machine: &Value) -> Value {
        to_json(results, setup.peer().as_deref(), machine)
    }
}

/// How both sides are run.
struct Runs<'a> {
    setup: &'a Setup,
    data: Data,
    options: &'a TrainBench,
}

impl Runs<'_> {
    fn add_round(&self, measured: &mut CaseMeasurement) -> Result<(), Failure> {
        let (case, steps) = (&measured.case, measured.steps);
        let report = self.ours(case, steps)?;
        measured.ours.push(report.samples_per_second);
        if let Some(peer) = &self.setup.pytorch
            && Pytorch::knows(&case.model)
        {
            let folder = temporary_folder()?;
            let mut command = peer.command(case, steps, report.data_path().as_deref());
            let name = format!("the peer's {case}");
            let patience = self.options.common.patience();
            let children = &self.setup.children;
            let output = children.run(&name, &mut command, folder.path(), patience)?;
            let result = PeerResult::parse(&output, case, steps)?;
            measured.peers.push(result.samples_per_second);
            measured.peer_data = Some(result.data);
        }
        measured.dataset = report.dataset;
        Ok(())
    }

    fn ours(&self, case: &Case, steps: usize) -> Result<Report, Failure> {
        let folder = temporary_folder()?;
        let run_dir = folder.path().join("run");
        let mut command = ours::command(&self.setup.program, case, steps, &self.data, &run_dir);
        let (name, patience) = (format!("everburn's {case}"), self.options.common.patience());
        let children = &self.setup.children;
        children.run(&name, &mut command, folder.path(), patience)?;
        Report::of(&read_json(&run_dir.join("report.json"))?, case, steps)
    }
}

fn steps_for(seconds: f64, samples_per_second: f64, batch: usize) -> usize {
    // A rate that no machine has would only saturate here, and the deadline ends the run.
    let steps = (seconds * samples_per_second / batch as f64).ceil() as usize;
    steps.max(FEWEST_STEPS)
}

/// What one has to know to judge the table.
fn notes(measured: &[CaseMeasurement], options: &TrainBench, peer: Option<&str>) -> String {
    let mut datasets: Vec<_> = measured.iter().map(|case| case.dataset.as_str()).collect();
    datasets.dedup();
    let rounds = cells::rounds(options.repeats);
    let mut notes = vec![
        format!("data:    {}", datasets.join(", ")),
        format!("method:  Adam (gpt-nano: AdamW); {rounds}; batch over all ranks, threads of each rank;"),
        "         `unsteady`: the rounds of a line differ by more than a quarter".into(),
        "         all our steps count, the slow first ones too; \"to 1 rank\" is to the one with the \
         most threads"
            .into(),
    ];
    if let Some(peer) = peer {
        let random = measured
            .iter()
            .any(|case| case.peer_data.as_deref() == Some("random"));
        let data = if random {
            "random data"
        } else {
            "the same data"
        };
        notes.push(format!(
            "peer:    {peer}, {data}, as many steps after a warm-up that does not count; \
             DDP over gloo from 2 ranks on"
        ));
        let mut strangers: Vec<_> = measured
            .iter()
            .map(|case| case.case.model.as_str())
            .filter(|model| !Pytorch::knows(model))
            .collect();
        strangers.dedup();
        if !strangers.is_empty() {
            notes.push(format!("         it has no {}", strangers.join(", ")));
        }
    }
    notes.join("\n")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn steps_fill_the_wanted_time() {
        assert_eq!(steps_for(10.0, 6400.0, 64), 1000);
        assert_eq!(steps_for(10.0, 100.0, 512), FEWEST_STEPS);
    }

    #[test]
    fn the_notes_name_data_and_peer() {
        let measured = |model: &str, data: Option<&str>| {
            let case = Case {
                model: model.into(),
                ranks: 1,
                threads: 2,
                batch: 64,
            };
            CaseMeasurement {
                dataset: "synthetic-digits".into(),
                peer_data: data.map(Into::into),
                ..CaseMeasurement::new(case, 100)
            }
        };
        let options = TrainBench::parse_from(["bench train"]);
        let all = [measured("mnist", Some("random")), measured("mlp", None)];
        let alone = notes(&all, &options, None);
        assert!(alone.starts_with("data:    synthetic-digits\n"), "{alone}");
        assert!(alone.contains("medians of 3 rounds"), "{alone}");
        assert!(!alone.contains("peer"), "{alone}");
        let beside = notes(&all, &options, Some("pytorch 2"));
        assert!(beside.contains("pytorch 2, random data"), "{beside}");
        assert!(beside.ends_with("it has no mlp"), "{beside}");
    }
}
