//! `bench sync`: what a training costs in bytes and time, and what it learns, where ranks become equal in each
//! step, and where they do every N steps.
//!
//! Each side is `everburn train` on ranks that a launcher other than ours has started, in namespaces with
//! links of their own where `--link` asks for it.

mod rows;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use clap::Parser;
use serde_json::Value;

use self::rows::{Row, Setting, SyncResults, table, to_json};
use crate::bench::{Bench, Setup, at_least_1};
use crate::failure::Failure;
use crate::job::Job;
use crate::network::{LinkOptions, Network};

/// Samples that a side is validated on.
const VALIDATION_SAMPLES: usize = 256;

/// Measures ranks that become equal in each step (DDP) beside ranks that take many steps by themselves
/// (DiLoCo), as they are, with differences of 8 bits, and with differences of 4 bits in fragments that nobody waits for: bytes,
/// time, waits and validation loss of the same number of steps.
#[derive(Debug, Parser)]
pub(crate) struct SyncBench {
    /// The model to train.
    #[arg(long, default_value = "gpt-nano")]
    model: String,

    /// The number of ranks.
    #[arg(long, default_value_t = 4, value_parser = at_least_1)]
    ranks: usize,

    /// Samples that all ranks together read a step.
    #[arg(long, default_value_t = 32, value_parser = at_least_1)]
    batch: usize,

    /// Steps of each side.
    #[arg(long, default_value_t = 100, value_parser = at_least_1)]
    steps: usize,

    /// How many steps per rank takes by itself.
    #[arg(long, default_value_t = 50, value_name = "H", value_parser = at_least_1)]
    every: usize,

    /// In how many fragments the last side exchanges the model.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = at_least_1)]
    fragments: usize,

    /// How many bits the differences of the last side have: 8, 4 or 2.
    #[arg(long, default_value = "4", value_name = "BITS", value_parser = ["8", "4", "2"])]
    bits: String,

    /// The inner learning rate of the sides with local steps [default: that of DDP].
    #[arg(long, value_name = "RATE")]
    learning_rate: Option<f64>,

    /// The outer learning rate [default: DiLoCo's].
    #[arg(long, value_name = "RATE")]
    outer_learning_rate: Option<f64>,

    /// The outer momentum [default: DiLoCo's].
    #[arg(long, value_name = "SHARE")]
    outer_momentum: Option<f64>,

    #[command(flatten)]
    link: LinkOptions,

    /// Only the sides whose names have this in them: ddp, every, int8, in (fragments).
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,

    /// Flags of `everburn train` for all sides, after `--`.
    #[arg(last = true, value_name = "FLAGS")]
    flags: Vec<String>,
}

impl SyncBench {
    /// The name of each side, and what it is told besides what all are.
    fn sides(&self) -> Vec<(String, Vec<String>)> {
        let rounds = |more: &[&str]| {
            let mut flags = vec!["--local-steps".to_owned(), self.every.to_string()];
            for (flag, number) in [
                ("--outer-learning-rate", self.outer_learning_rate),
                ("--outer-momentum", self.outer_momentum),
                ("--learning-rate", self.learning_rate),
            ] {
                flags.extend(
                    number
                        .into_iter()
                        .flat_map(|it| [flag.to_owned(), it.to_string()]),
                );
            }
            flags.extend(more.iter().map(|word| (*word).to_owned()));
            flags
        };
        let every = format!("every={}", self.every);
        let fragments = self.fragments.to_string();
        let sides = [
            ("ddp".to_owned(), Vec::new()),
            (every.clone(), rounds(&[])),
            (
                format!("{every} int8"),
                rounds(&["--compress-outer", "int8"]),
            ),
            (
                format!("{every} int{} in {fragments}", self.bits),
                rounds(&[
                    "--compress-outer",
                    &format!("int{}", self.bits),
                    "--outer-fragments",
                    &fragments,
                ]),
            ),
        ];
        let only = self.only.as_deref().unwrap_or_default();
        let wanted = sides.into_iter().filter(|(name, _)| name.contains(only));
        wanted.collect()
    }

    fn training(&self, command: &mut Command, flags: &[String], run: &Path, timeout: Duration) {
        command
            // As another launcher's, so that the run directory is made here.
            .env_remove("EVERBURN_LAUNCHER_PID")
            .args(["train", &self.model, "--no-dashboard"])
            .args(["--batch-size", &self.batch.to_string()])
            .args(["--steps", &self.steps.to_string(), "--epochs", "1000"])
            .args(["--validation-samples", &VALIDATION_SAMPLES.to_string()])
            .args(["--test-samples", "64", "--compare-every", "0"])
            .args(["--timeout", &timeout.as_secs().to_string()])
            .arg("--run-dir")
            .arg(run)
            .args(&self.flags)
            .args(flags);
        if self.link.link.is_some() {
            command.args(["--transport", "tcp"]);
        }
    }
}

impl Bench for SyncBench {
    const NAME: &'static str = "sync";
    const ABOUT: &'static str = "bytes, time and loss of DDP and of local steps; --link 10mbit";
    const RUN_TIMEOUT: &'static str = "3600";

    type Results = SyncResults;

    fn check(&self) -> Result<(), Failure> {
        if self.ranks < 2 {
            let what = "--ranks: an exchange needs 2 ranks or more";
            return Err(Failure::usage(what));
        }
        if self.sides().is_empty() {
            let what = "--only: no side has this in its name; there are ddp, every, int8 and in";
            return Err(Failure::usage(what));
        }
        Ok(())
    }

    fn measure(&self, setup: &Setup) -> Result<SyncResults, Failure> {
        // Declared before what runs in it, so that it goes last.
        let network = self.link.network(self.ranks)?;
        let context = setup.job_context(self.ranks, network.as_ref());
        let mut rows = Vec::new();
        for (number, (name, flags)) in self.sides().into_iter().enumerate() {
            let run = setup.folder().join(format!("run-{number}"));
            let sent = || network.as_ref().map(Network::sent_bytes).transpose();
            let sent_before = sent()?;
            let job = Job::start(context, &name, |command| {
                self.training(command, &flags, &run, setup.patience);
            })?;
            job.finish(setup.patience)?;
            let wire = sent()?
                .zip(sent_before)
                .map(|(after, before)| after - before);
            let row = Row::read(&name, &run, wire)?;
            eprintln!("[{name}] {}", row.sentence());
            rows.push(row);
        }
        Ok(SyncResults {
            setting: Setting {
                model: self.model.clone(),
                ranks: self.ranks,
                batch: self.batch,
                steps: self.steps,
                every: self.every,
                network: network.as_ref().map(Network::describe),
                link: network
                    .as_ref()
                    .map(|network| network.rate().bytes_per_second()),
            },
            rows,
        })
    }

    fn notes(&self, results: &SyncResults, _: &Setup) -> String {
        results.setting.describe()
    }

    fn table(&self, results: &SyncResults, _: &Setup) -> String {
        table(results)
    }

    fn to_json(&self, results: &SyncResults, _: &Setup, machine: &Value) -> Value {
        to_json(results, machine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(words: &str) -> SyncBench {
        let words = words.split_whitespace();
        SyncBench::try_parse_from(["bench sync"].into_iter().chain(words)).unwrap()
    }

    #[test]
    fn the_sides_differ_in_how_ranks_become_equal() {
        let options = options("--every 20 --outer-learning-rate 0.5 --link 10mbit");
        let sides = options.sides();
        let lines = sides.iter().map(|(_, flags)| {
            let mut command = Command::new("e");
            options.training(&mut command, flags, Path::new("/run"), Duration::ZERO);
            let words = command
                .get_args()
                .map(|word| word.to_string_lossy().into_owned());
            words.collect::<Vec<_>>().join(" ")
        });
        let lines = lines.collect::<Vec<_>>();
        assert!(
            lines[0].ends_with("--run-dir /run --transport tcp"),
            "{}",
            lines[0]
        );
        let every = "--local-steps 20 --outer-learning-rate 0.5";
        assert!(lines[1].contains(every) && !lines[1].contains("int8"));
        assert!(lines[2].contains(&format!("{every} --compress-outer int8")));
        assert!(lines[3].contains(&format!(
            "{every} --compress-outer int4 --outer-fragments 5"
        )));
    }

    #[test]
    fn sides_can_be_left_out_and_nonsense_is_refused() {
        let names = |words: &str| {
            let sides = options(words).sides().into_iter();
            sides.map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(names("--only ddp"), ["ddp"]);
        assert_eq!(
            names("--only every --bits 2"),
            ["every=50", "every=50 int8", "every=50 int2 in 5"]
        );
        for words in ["--ranks 1", "--only lunch"] {
            let refused = options(words).check();
            assert!(matches!(refused, Err(Failure::Usage(_))), "{words}");
        }
        assert_eq!(options("").check(), Ok(()));
    }
}
