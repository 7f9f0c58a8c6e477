//! `bench train`: samples/s or tokens/s of whole training runs, beside PyTorch's.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use everburn_record::proc::CpuTime;

use super::everburn::{self, Data, Report};
use super::machine::Machine;
use super::process::{Children, Failure};
use super::pytorch::{PeerResult, Pytorch};
use super::train_options::{Case, Peer, TrainOptions};
use super::train_rows::{Measured, table, to_json};
use super::{temporary_folder, write_file};
use crate::binary;

/// Steps of the short run that finds how many steps fill the wanted time.
const TRIAL_STEPS: usize = 10;

/// With fewer, the slow first steps would weigh too much.
const FEWEST_STEPS: usize = 30;

/// Runs the benchmark with the arguments after its name.
pub(super) fn run(arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let options = TrainOptions::parse_or_exit(arguments);
    let machine = Machine::look();
    let cases = options.cases(machine.cores)?;
    let data = options.data()?;
    let children = Children::listen()?;
    let folder = temporary_folder()?;
    let (peer, skipped) = match options.against {
        None => (None, None),
        Some(Peer::Pytorch) => match Pytorch::find(&children, folder.path())? {
            Ok(pytorch) => (Some(pytorch), None),
            Err(why) => (None, Some(why)),
        },
    };
    if let Some(why) = &skipped {
        // Now, so that nobody waits for nothing; and again under the table.
        eprintln!("{why}");
    }
    let program = binary::for_measuring().map_err(|error| Failure::new(error.to_string()))?;
    children.check_interrupted()?;
    let Some(program) = program else {
        // Cargo has said why.
        return Ok(ExitCode::FAILURE);
    };
    let runs = Runs {
        children,
        program,
        data,
        peer,
        deadline: options.deadline(),
    };
    let before = CpuTime::now();
    let measured = runs.measure(&cases, &options)?;
    let meanwhile = before.zip(CpuTime::now());
    let others = meanwhile.and_then(|(before, after)| before.others_share(after));

    let peer = runs.peer.as_ref().map(Pytorch::name);
    println!("{}", machine.describe(others));
    println!("{}\n", notes(&measured, &options, peer.as_deref()));
    println!("{}", table(&measured, peer.as_deref()));
    if let Some(why) = &skipped {
        println!("\n{why}");
    }
    if let Some(file) = &options.json {
        let machine = machine.to_json(others);
        let rows = format!("{:#}\n", to_json(&measured, peer.as_deref(), &machine));
        write_file(file, &rows)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// How both sides are run.
struct Runs {
    children: Children,
    program: PathBuf,
    data: Data,
    peer: Option<Pytorch>,
    deadline: Duration,
}

impl Runs {
    /// Every case once a round, ours and the peer's in turn: the machine's moods reach all alike.
    fn measure(&self, cases: &[Case], options: &TrainOptions) -> Result<Vec<Measured>, Failure> {
        let mut all = Vec::new();
        for case in cases {
            let steps = match options.steps {
                Some(steps) => steps,
                None => {
                    let trial = self.ours(case, TRIAL_STEPS)?;
                    steps_for(options.seconds, trial.samples_per_second, case.batch)
                }
            };
            all.push(Measured {
                case: case.clone(),
                steps,
                ours: Vec::new(),
                peers: Vec::new(),
                dataset: String::new(),
                peer_data: None,
            });
        }
        for round in 1..=options.repeats {
            for measured in &mut all {
                self.add_round(measured)?;
                let (unit, of_a_sample) = measured.case.unit();
                let ours = measured.ours.last().copied().unwrap_or_default() * of_a_sample;
                let peers = measured.peers.last().map(|rate| rate * of_a_sample);
                let peers = peers.map_or(String::new(), |rate| format!(", pytorch {rate:.0}"));
                eprintln!(
                    "[round {round}/{}] {}: {ours:.0}{peers} {unit}/s",
                    options.repeats, measured.case
                );
            }
        }
        Ok(all)
    }

    fn add_round(&self, measured: &mut Measured) -> Result<(), Failure> {
        let (case, steps) = (&measured.case, measured.steps);
        let report = self.ours(case, steps)?;
        measured.ours.push(report.samples_per_second);
        if let Some(peer) = &self.peer
            && Pytorch::knows(&case.model)
        {
            let folder = temporary_folder()?;
            let mut command = peer.command(case, steps, report.data_path().as_deref());
            let name = format!("the peer's {case}");
            let output = self
                .children
                .run(&name, &mut command, folder.path(), self.deadline)?;
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
        let mut command = everburn::command(&self.program, case, steps, &self.data, &run_dir);
        let name = format!("everburn's {case}");
        self.children
            .run(&name, &mut command, folder.path(), self.deadline)?;
        Report::parse(&read(&run_dir.join("report.json"))?, case, steps)
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path)
        .map_err(|error| Failure::new(format!("cannot read {}: {error}", path.display())))
}

fn steps_for(seconds: f64, samples_per_second: f64, batch: usize) -> usize {
    // A rate that no machine has would only saturate here, and the deadline ends the run.
    let steps = (seconds * samples_per_second / batch as f64).ceil() as usize;
    steps.max(FEWEST_STEPS)
}

/// What one has to know to judge the table.
fn notes(measured: &[Measured], options: &TrainOptions, peer: Option<&str>) -> String {
    let mut datasets: Vec<_> = measured.iter().map(|case| case.dataset.as_str()).collect();
    datasets.dedup();
    let rounds = match options.repeats {
        1 => "1 round".to_owned(),
        repeats => format!("medians of {repeats} rounds"),
    };
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
    use super::*;

    #[test]
    fn steps_fill_the_wanted_time() {
        assert_eq!(steps_for(10.0, 6400.0, 64), 1000);
        assert_eq!(steps_for(10.0, 100.0, 512), FEWEST_STEPS);
    }

    #[test]
    fn the_notes_name_data_and_peer() {
        let measured = |model: &str, data: Option<&str>| Measured {
            case: Case {
                model: model.into(),
                ranks: 1,
                threads: 2,
                batch: 64,
            },
            steps: 100,
            ours: vec![1.0],
            peers: vec![],
            dataset: "synthetic-digits".into(),
            peer_data: data.map(Into::into),
        };
        let options = TrainOptions::parse_or_exit(&[]);
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
