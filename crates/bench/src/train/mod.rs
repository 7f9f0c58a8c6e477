//! `bench train`: samples/s or tokens/s of whole training runs, beside PyTorch's and JAX's.

pub(crate) mod options;
mod ours;
mod rows;
mod theirs;

use everburn_record::TrainingReport;
use serde_json::Value;

use self::options::Case;
pub(crate) use self::options::TrainBench;
use self::ours::Data;
use self::rows::{CaseMeasurement, table, to_json};
use crate::bench::{Bench, Setup, report_of, temporary_folder};
use crate::cells;
use crate::failure::Failure;
use crate::peers::{FoundPeer, Peer};
use crate::rounds::each_once;

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
            all.push(CaseMeasurement::new(case, steps, setup.peers.len()));
        }
        for round in 0..self.rounds {
            for measured in &mut all {
                runs.add_round(round, measured)?;
                let (case, last) = (&measured.case, measured.last_round(&setup.peers));
                eprintln!("[round {}/{}] {case}: {last}", round + 1, self.rounds);
            }
        }
        Ok(all)
    }

    fn notes(&self, results: &Vec<CaseMeasurement>, setup: &Setup) -> String {
        notes(results, self, &setup.peers)
    }

    fn table(&self, results: &Vec<CaseMeasurement>, setup: &Setup) -> String {
        table(results, &setup.peers)
    }

    fn to_json(&self, results: &Vec<CaseMeasurement>, setup: &Setup, machine: &Value) -> Value {
        to_json(results, &setup.peers, machine)
    }
}

/// How all sides are run.
struct Runs<'a> {
    setup: &'a Setup,
    data: Data,
}

impl Runs<'_> {
    /// All sides once: in the first round ours before the peers, which have its data.
    fn add_round(&self, round: usize, measured: &mut CaseMeasurement) -> Result<(), Failure> {
        let peers = match theirs::trains(&measured.case.model) {
            true => self.setup.peers.as_slice(),
            false => &[],
        };
        let rates = each_once(round, 1 + peers.len(), |side| {
            let Some(peer) = side.checked_sub(1) else {
                let report = self.ours(&measured.case, measured.steps)?;
                measured.data_path = ours::data_path(&report);
                measured.dataset = report.dataset;
                return Ok(report.samples_per_second);
            };
            self.theirs(&peers[peer], measured)
        })?;
        measured.rates.add(rates);
        Ok(())
    }

    fn theirs(&self, found: &FoundPeer, measured: &CaseMeasurement) -> Result<f64, Failure> {
        let (case, steps) = (&measured.case, measured.steps);
        let folder = temporary_folder()?;
        let mut command = theirs::command(found, case, steps, measured.data_path.as_deref());
        let who = format!("{}'s {case}", found.peer.name());
        let (children, patience) = (&self.setup.children, self.setup.patience);
        let output = children.run(&who, &mut command, folder.path(), patience)?;
        theirs::samples_per_second(&who, &output, case, steps, measured.kind_of_data())
    }

    fn ours(&self, case: &Case, steps: usize) -> Result<TrainingReport, Failure> {
        let folder = temporary_folder()?;
        let run_dir = folder.path().join("run");
        let mut command = ours::command(&self.setup.program, case, steps, &self.data, &run_dir);
        let (name, patience) = (format!("everburn's {case}"), self.setup.patience);
        let children = &self.setup.children;
        children.run(&name, &mut command, folder.path(), patience)?;
        let report = report_of(&run_dir)?;
        ours::check(&report, case, steps)?;
        Ok(report)
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
        let mut theirs = measured
            .iter()
            .filter(|case| !case.rates.peers[index].is_empty());
        let random = theirs.any(|case| case.data_path.is_none());
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
        let measured = |model: &str, rates: &[f64], data: Option<&str>| {
            let case = Case {
                model: model.into(),
                ..options::tests::case()
            };
            let mut measured = CaseMeasurement::new(case, 100, 2);
            measured.dataset = "synthetic-digits".into();
            measured.data_path = data.map(Into::into);
            measured.rates.add(rates.iter().copied());
            measured
        };
        let options = TrainBench::parse_from(["bench train"]);
        let all = [
            measured("mnist", &[9.0, 5.0], None),
            measured("mnist", &[9.0, 5.0, 4.0], Some("/data")),
            measured("mlp", &[9.0], None),
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
