//! `bench train`: samples/s or tokens/s of whole training runs, beside PyTorch's and JAX's.

pub(crate) mod options;
mod ours;
mod rows;
mod theirs;

use std::path::Path;

use serde_json::Value;

use self::options::Case;
pub(crate) use self::options::TrainBench;
use self::ours::{Data, Report};
use self::rows::{CaseMeasurement, PeerMeasurement, table, to_json};
use crate::bench::{Bench, Setup, read_json, temporary_folder};
use crate::cells;
use crate::failure::Failure;
use crate::peers::{FoundPeer, Peer};

/// Steps of the short run that finds how many steps fill the wanted time.
const TRIAL_STEPS: usize = 10;

/// With fewer, the slow first steps would weigh too much.
const FEWEST_STEPS: usize = 30;

impl Bench for TrainBench {
    const NAME: &'static str = "train";
    const ABOUT: &'static str = "samples/s of `everburn train` by model, ranks and batch size; --against pytorch,compile,jax";
    const RUN_TIMEOUT: &'static str = "600";

    type Results = Vec<CaseMeasurement>;

    fn check(&self) -> Result<(), Failure> {
        self.check_options()
    }

    fn peers(&self) -> &[Peer] {
        &self.against
    }

    /// Every case once a round, ours and the peers' in turn: the machine's moods reach all alike.
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
            all.push(CaseMeasurement::new(case, steps, &setup.peers));
        }
        for round in 1..=self.rounds {
            for measured in &mut all {
                runs.add_round(round, measured)?;
                let (case, rounds) = (&measured.case, self.rounds);
                eprintln!("[round {round}/{rounds}] {case}: {}", measured.last_round());
            }
        }
        Ok(all)
    }

    fn notes(&self, results: &Vec<CaseMeasurement>, setup: &Setup) -> String {
        notes(results, self, &setup.peers)
    }

    fn table(&self, results: &Vec<CaseMeasurement>, _: &Setup) -> String {
        table(results)
    }

    fn to_json(&self, results: &Vec<CaseMeasurement>, _: &Setup, machine: &Value) -> Value {
        to_json(results, machine)
    }
}

/// How all sides are run.
struct Runs<'a> {
    setup: &'a Setup,
    data: Data,
    options: &'a TrainBench,
}

impl Runs<'_> {
    /// All sides once: ours, which finds the data, then the peers; backwards in every other round.
    fn add_round(&self, round: usize, measured: &mut CaseMeasurement) -> Result<(), Failure> {
        let backwards = round.is_multiple_of(2);
        if !backwards {
            self.add_ours(measured)?;
        }
        self.add_peers(backwards, measured)?;
        if backwards {
            self.add_ours(measured)?;
        }
        Ok(())
    }

    fn add_ours(&self, measured: &mut CaseMeasurement) -> Result<(), Failure> {
        let report = self.ours(&measured.case, measured.steps)?;
        measured.ours.push(report.samples_per_second);
        measured.data_path = report.data_path();
        measured.dataset = report.dataset;
        Ok(())
    }

    fn add_peers(&self, backwards: bool, measured: &mut CaseMeasurement) -> Result<(), Failure> {
        let (case, steps) = (&measured.case, measured.steps);
        let path = measured.data_path.as_deref();
        let mut peers: Vec<&mut PeerMeasurement> = measured.peers.iter_mut().collect();
        if backwards {
            peers.reverse();
        }
        for peer in peers.into_iter().filter(|_| theirs::trains(&case.model)) {
            let rate = self.theirs(&peer.found, case, steps, path)?;
            peer.rates.push(rate);
            peer.data = Some(theirs::kind_of_data(path).to_owned());
        }
        Ok(())
    }

    fn theirs(
        &self,
        found: &FoundPeer,
        case: &Case,
        steps: usize,
        data: Option<&Path>,
    ) -> Result<f64, Failure> {
        let folder = temporary_folder()?;
        let mut command = theirs::command(found, case, steps, data);
        let who = format!("{}'s {case}", found.peer.name());
        let (children, patience) = (&self.setup.children, self.setup.patience);
        let output = children.run(&who, &mut command, folder.path(), patience)?;
        theirs::samples_per_second(&who, &output, case, steps, theirs::kind_of_data(data))
    }

    fn ours(&self, case: &Case, steps: usize) -> Result<Report, Failure> {
        let folder = temporary_folder()?;
        let run_dir = folder.path().join("run");
        let mut command = ours::command(&self.setup.program, case, steps, &self.data, &run_dir);
        let (name, patience) = (format!("everburn's {case}"), self.setup.patience);
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
fn notes(measured: &[CaseMeasurement], options: &TrainBench, peers: &[FoundPeer]) -> String {
    let mut datasets: Vec<_> = measured.iter().map(|case| case.dataset.as_str()).collect();
    datasets.dedup();
    let rounds = cells::rounds(options.rounds);
    let mut notes = vec![
        format!("data:    {}", datasets.join(", ")),
        format!("method:  Adam (gpt-nano: AdamW); {rounds}; batch over all ranks, threads of each rank;"),
        "         `unsteady`: the rounds of a line differ by more than a quarter".into(),
        "         all our steps count, the slow first ones too; \"to 1 rank\" is to the one with the \
         most threads"
            .into(),
    ];
    for (index, found) in peers.iter().enumerate() {
        let random = measured
            .iter()
            .any(|case| case.peers[index].data.as_deref() == Some("random"));
        let data = if random {
            "random data"
        } else {
            "the same data"
        };
        let ranks = match found.peer {
            Peer::Jax => "one process, with a device for each rank",
            _ => "DDP over gloo from 2 ranks on",
        };
        notes.push(format!(
            "peer:    {}, {data}, as many steps after a warm-up that does not count; {ranks}",
            found.full_name()
        ));
    }
    if peers.len() > 1 {
        notes.push("         \"ours/fastest\": to the peer that is the fastest in a line".into());
    }
    let mut strangers: Vec<_> = measured
        .iter()
        .map(|case| case.case.model.as_str())
        .filter(|model| !peers.is_empty() && !theirs::trains(model))
        .collect();
    strangers.dedup();
    if !strangers.is_empty() {
        notes.push(format!("         no peer has {}", strangers.join(", ")));
    }
    notes.join("\n")
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use everburn_tests::AssertContains;

    use super::*;

    #[test]
    fn steps_fill_the_wanted_time() {
        assert_eq!(steps_for(10.0, 6400.0, 64), 1000);
        assert_eq!(steps_for(10.0, 100.0, 512), FEWEST_STEPS);
    }

    #[test]
    fn the_notes_name_data_and_peers() {
        let peers = [(Peer::Pytorch, "2"), (Peer::Jax, "0.9")]
            .map(|(peer, version)| FoundPeer::of_tests(peer, version));
        let measured = |model: &str, data: [Option<&str>; 2]| {
            let case = Case {
                model: model.into(),
                ranks: 1,
                threads: 2,
                batch: 64,
            };
            let mut measured = CaseMeasurement::new(case, 100, &peers);
            measured.dataset = "synthetic-digits".into();
            for (peer, data) in measured.peers.iter_mut().zip(data) {
                peer.data = data.map(Into::into);
            }
            measured
        };
        let options = TrainBench::parse_from(["bench train"]);
        let all = [
            measured("mnist", [Some("random"), Some("real")]),
            measured("mlp", [None; 2]),
        ];
        let alone = notes(&all, &options, &[]);
        assert!(alone.starts_with("data:    synthetic-digits\n"), "{alone}");
        assert!(alone.contains("medians of 3 rounds"), "{alone}");
        assert!(!alone.contains("peer"), "{alone}");
        let beside = notes(&all, &options, &peers);
        beside.assert_contains([
            "peer:    pytorch 2, random data, as many",
            "peer:    jax 0.9, the same data, as many",
            "\"ours/fastest\"",
        ]);
        assert!(beside.ends_with("no peer has mlp"), "{beside}");
        let one = notes(&all, &options, &peers[..1]);
        assert!(!one.contains("fastest"), "{one}");
    }
}
