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

    #[command(flatten)]
    link: LinkOptions,

    /// Flags of `everburn train` for all sides, after `--`.
    #[arg(last = true, value_name = "FLAGS")]
    flags: Vec<String>,
}

impl SyncBench {
    /// The name of each side, and its flags besides those of all.
    fn sides(&self) -> [(String, Vec<String>); 4] {
        let every = format!("every={}", self.every);
        let rounds = |more: &str| {
            let flags = format!("--local-steps {} {more}", self.every);
            flags.split_whitespace().map(str::to_owned).collect()
        };
        [
            ("ddp".to_owned(), Vec::new()),
            (every.clone(), rounds("")),
            (format!("{every} int8"), rounds("--compress-outer int8")),
            (
                format!("{every} int4 in 5"),
                rounds("--compress-outer int4 --outer-fragments 5"),
            ),
        ]
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
        let options = options("--every 20 --link 10mbit -- --outer-momentum 0.5");
        let sides = options.sides();
        let lines = sides.iter().map(|(_, flags)| {
            let mut command = Command::new("e");
            options.training(&mut command, flags, Path::new("/run"), Duration::ZERO);
            everburn_tests::words_of(&command)
        });
        let lines = lines.collect::<Vec<_>>();
        assert!(
            lines[0].ends_with("--run-dir /run --outer-momentum 0.5 --transport tcp"),
            "{}",
            lines[0]
        );
        let every = "--outer-momentum 0.5 --local-steps 20";
        assert!(lines[1].contains(every) && !lines[1].contains("int8"));
        assert!(lines[2].contains(&format!("{every} --compress-outer int8")));
        assert!(lines[3].contains(&format!(
            "{every} --compress-outer int4 --outer-fragments 5"
        )));
    }

    #[test]
    fn one_rank_exchanges_nothing() {
        let refused = options("--ranks 1").check();
        assert!(matches!(refused, Err(Failure::Usage(_))));
        assert_eq!(options("").check(), Ok(()));
    }
}
