//! `bench resilience`: what it costs a training to be ready for the loss of ranks.
//!
//! Each side is `everburn train` as its user runs it, by turns, so that a slow minute falls on all.

use std::path::Path;
use std::process::Command;

use clap::Parser;
use everburn::launch::keep_freed_memory;
use everburn_record::table::aligned;
use serde_json::{Value, json};

use crate::bench::{Bench, Setup, at_least_1, report_of};
use crate::cells;
use crate::failure::Failure;
use crate::rounds::Rounds;

/// What each side is told besides what all are.
const SIDES: [(&str, &str); 4] = [
    ("nothing", "--heartbeat-timeout 0 --compare-every 0"),
    ("heartbeat and guard", "--compare-every 100"),
    (
        "and a checkpoint every 100 steps",
        "--compare-every 100 --checkpoint-every 100steps",
    ),
    (
        "and elastic",
        "--compare-every 100 --checkpoint-every 100steps --elastic",
    ),
];

/// Measures what heartbeats, the comparison of replicas, checkpoints within an epoch and the readiness to
/// lose ranks cost a training.
///
/// The record of each rank's last collectives cannot be switched off: it is part of every side.
#[derive(Debug, Parser)]
pub(crate) struct ResilienceBench {
    /// The model to train.
    #[arg(long, default_value = "mnist")]
    model: String,

    /// The number of ranks.
    #[arg(long, default_value_t = 2, value_parser = at_least_1)]
    ranks: usize,

    /// Samples all ranks together read a step.
    #[arg(long, default_value_t = 64, value_parser = at_least_1)]
    batch: usize,

    /// Steps of each run.
    /// What is done after a step counts for the next: the last comparison and checkpoint need one.
    #[arg(long, default_value_t = 450, value_parser = at_least_1)]
    steps: usize,

    /// How many rounds.
    #[arg(long, default_value_t = 5, value_parser = at_least_1)]
    rounds: usize,
}

impl ResilienceBench {
    fn training(&self, everburn: &Path, flags: &str, run: &Path) -> Command {
        let mut command = Command::new(everburn);
        keep_freed_memory(&mut command);
        command
            .args(["train", &self.model, "--no-dashboard"])
            .args(["--ranks", &self.ranks.to_string()])
            .args(["--batch-size", &self.batch.to_string()])
            .args(["--steps", &self.steps.to_string(), "--epochs", "1000"])
            .args(["--validation-samples", "1000", "--test-samples", "100"])
            .arg("--run-dir")
            .arg(run)
            .args(flags.split(' '));
        if flags.ends_with("--elastic") {
            command.arg(format!("1:{}", self.ranks));
        }
        command
    }
}

impl Bench for ResilienceBench {
    const NAME: &'static str = "resilience";
    const ABOUT: &'static str =
        "the cost per step of heartbeats, comparisons, checkpoints and --elastic";
    const RUN_TIMEOUT: &'static str = "600";

    /// Milliseconds a step, by round and side.
    type Results = Rounds<f64>;

    fn measure(&self, setup: &Setup) -> Result<Rounds<f64>, Failure> {
        let run = |round: usize, side: usize| {
            let (_, flags) = SIDES[side];
            let run = setup.folder().join(format!("round-{round}-{side}"));
            let mut command = self.training(&setup.program, flags, &run);
            let (children, patience) = (&setup.children, setup.patience);
            children.run("a training", &mut command, setup.folder(), patience)?;
            milliseconds_a_step(&run, self.batch)
        };
        Rounds::in_turn(self.rounds, SIDES.len(), run, |sides| {
            let told = sides.iter().map(|time| format!("{time:.2}"));
            format!("{} ms per step", told.collect::<Vec<_>>().join(", "))
        })
    }

    fn notes(&self, _: &Rounds<f64>, _: &Setup) -> String {
        format!(
            "method:  {} of {} steps of {} on {} ranks a side, each in processes of its own; \
             ratios round by round",
            cells::rounds(self.rounds),
            self.steps,
            self.model,
            self.ranks
        )
    }

    fn table(&self, rounds: &Rounds<f64>, _: &Setup) -> String {
        table(rounds)
    }

    fn to_json(&self, rounds: &Rounds<f64>, _: &Setup, machine: &Value) -> Value {
        let sides = SIDES.iter().enumerate().map(|(side, (name, _))| {
            json!({
                "side": name,
                "step_ms": rounds.of(side, milliseconds),
                "more": rounds.more(side, milliseconds),
            })
        });
        json!({
            "benchmark": "resilience",
            "machine": machine,
            "model": self.model,
            "ranks": self.ranks,
            "batch": self.batch,
            "steps": self.steps,
            "sides": sides.collect::<Vec<_>>(),
        })
    }
}

fn milliseconds_a_step(run: &Path, batch: usize) -> Result<f64, Failure> {
    let rate = Some(report_of(run)?.samples_per_second);
    let rate = rate.filter(|rate| *rate > 0.0);
    let rate = rate
        .ok_or_else(|| Failure::new(format!("{} trains no samples per second", run.display())))?;
    Ok(batch as f64 / rate * 1_000.0)
}

fn milliseconds(step: &f64) -> f64 {
    *step
}

fn table(rounds: &Rounds<f64>) -> String {
    let rows = SIDES.iter().enumerate().map(|(side, (name, _))| {
        let spread = rounds.spread(side, milliseconds);
        let [median, range] = spread.map_or_else(Default::default, |all| cells::spread(all, 2));
        let more = cells::more(rounds.more(side, milliseconds), 1);
        vec![name.to_string(), median, range, more]
    });
    let header = ["ready by", "ms / step", "(min-max)", "more than nothing"];
    aligned(&header, &rows.collect::<Vec<_>>(), &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_is_compared_with_the_first() {
        let rounds = Rounds(vec![vec![10.0, 11.0, 12.0, 13.0]; 2]);
        assert!(table(&rounds).contains("+30.0 %"), "{}", table(&rounds));
    }

    #[test]
    fn the_first_side_is_ready_for_nothing() {
        let words = ["bench resilience", "--ranks", "2"];
        let options = ResilienceBench::try_parse_from(words).unwrap();
        let words = |side: usize| {
            let command = options.training(Path::new("e"), SIDES[side].1, Path::new("/run"));
            everburn_tests::words_of(&command)
        };
        assert!(words(0).ends_with("--heartbeat-timeout 0 --compare-every 0"));
        assert!(words(3).ends_with("--checkpoint-every 100steps --elastic 1:2"));
    }
}
