//! The command line of `bench kernels`, and the rows that it asks for.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use serde_json::{Value, json};

use super::layer::{Layer, Pass};
use super::networks::{NETWORKS, Network};
use crate::bench::check_place;
use crate::bench::process::Failure;

/// Measures single layers of the models: microseconds of a call.
///
/// Each layer runs through Burn's tensors, as in a model; with `--against pytorch` also in PyTorch, with
/// the same numbers, and the results must agree. Both sides are processes that run all the time and are
/// asked row by row in turn, so that a slow minute of the machine falls on both; ratios are medians over
/// the rounds.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask bench kernels",
    after_help = "Environment:\n  \
        EVERBURN_PYTHON    the Python that can import torch, for --against [default: python3]\n  \
        EVERBURN_BIN       a built everburn to measure in place of building one"
)]
pub(in crate::bench) struct KernelOptions {
    /// The models whose layers are measured; `matmul` is one product of matrices.
    #[arg(long, value_delimiter = ',', default_values_t = NETWORKS.map(|network| network.name.to_owned()))]
    models: Vec<String>,

    /// Threads of each side; more than there are cores are left out.
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_name = "N")]
    threads: Vec<usize>,

    /// Samples of a batch [default: 64 for mnist and mnist-bn, 8 and 64 for resnet50 and gpt-nano].
    #[arg(long, value_delimiter = ',', value_name = "N")]
    batch_size: Vec<usize>,

    /// Only rows in whose name all these words occur, as in `"resnet50 conv k3 backward"`; any of
    /// several such lists, with commas.
    #[arg(long, value_delimiter = ',', value_name = "WORDS")]
    rows: Vec<String>,

    /// How many rounds.
    #[arg(long, default_value_t = 3)]
    pub(super) repeats: usize,

    /// How long each side repeats a row in a round, in milliseconds, after a warm-up; what takes
    /// longer runs once.
    #[arg(long, default_value_t = 80, value_name = "N")]
    pub(super) milliseconds: u64,

    /// Measure beside this peer, and print ratios.
    #[arg(long, value_name = "PEER", value_parser = ["pytorch"])]
    pub(super) against: Option<String>,

    /// Write a row for each layer, pass and number of threads to this file too.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,

    /// Give up when one row takes longer than this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    run_timeout: u64,
}

/// What is measured: a layer, what is done with it, and on how many samples.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) model: &'static str,
    /// Absent where the layer does not depend on it.
    pub(super) batch: Option<usize>,
    pub(super) layer: Layer,
    pub(super) pass: Pass,
    /// How often the model has the layer; 0 for what is a part of another row.
    pub(super) count: usize,
}

impl Row {
    /// The layer and the pass: what is unique within a model and a batch.
    pub(super) fn name(&self) -> String {
        format!("{}, {}", self.layer, self.pass)
    }

    /// With its model and batch.
    pub(super) fn full_name(&self) -> String {
        match self.batch {
            Some(batch) => format!("{}, batch {batch}, {}", self.model, self.name()),
            None => format!("{}, {}", self.model, self.name()),
        }
    }

    /// What both sides are told. `check`: they also tell what came out.
    pub(super) fn order(&self, milliseconds: u64, check: bool) -> Value {
        json!({
            "layer": self.layer.to_json(),
            "batch": self.batch.unwrap_or(1),
            "pass": self.pass.key(),
            "milliseconds": milliseconds,
            "check": check,
        })
    }
}

impl KernelOptions {
    /// Parses the arguments after `kernels`. Prints help and ends the process where that is asked for
    /// or nothing else can be said.
    pub(super) fn parse_or_exit(arguments: &[OsString]) -> Self {
        let name = OsString::from("cargo xtask bench kernels");
        Self::parse_from([name].into_iter().chain(arguments.iter().cloned()))
    }

    pub(super) fn patience(&self) -> Duration {
        Duration::from_secs(self.run_timeout)
    }

    /// The numbers of threads that a machine of `cores` cores can run.
    pub(super) fn threads(&self, cores: usize) -> Result<Vec<usize>, Failure> {
        let fit = |threads: &usize| *threads <= cores;
        let threads: Vec<_> = self.threads.iter().copied().filter(fit).collect();
        match threads.is_empty() {
            true => Err(Failure::Usage(format!(
                "--threads: none fits the {cores} cores of this machine"
            ))),
            false => Ok(threads),
        }
    }

    /// All rows, or what is wrong with the options.
    pub(super) fn rows(&self) -> Result<Vec<Row>, Failure> {
        self.check()?;
        let mut rows = Vec::new();
        for name in &self.models {
            let Some(network) = Network::named(name) else {
                let known = NETWORKS.map(|network| network.name).join(", ");
                let what = format!("--models {name}: it is none of {known}");
                return Err(Failure::Usage(what));
            };
            for batch in self.batches(network) {
                for used in network.layers() {
                    let row = |pass| Row {
                        model: network.name,
                        batch,
                        layer: used.layer.clone(),
                        pass,
                        count: used.count,
                    };
                    rows.extend(used.passes().into_iter().map(row));
                }
            }
        }
        rows.retain(|row| self.wants(row));
        match rows.is_empty() {
            true => Err(Failure::Usage(
                "--rows: there is no such row; `--rows conv` leaves all convolutions".into(),
            )),
            false => Ok(rows),
        }
    }

    fn batches(&self, network: &Network) -> Vec<Option<usize>> {
        let batches = match (network.batches, &*self.batch_size) {
            ([], _) => return vec![None],
            (usual, []) => usual,
            (_, asked) => asked,
        };
        batches.iter().copied().map(Some).collect()
    }

    fn wants(&self, row: &Row) -> bool {
        let name = row.full_name();
        let has_all = |words: &String| words.split_whitespace().all(|word| name.contains(word));
        self.rows.is_empty() || self.rows.iter().any(has_all)
    }

    fn check(&self) -> Result<(), Failure> {
        let wrong = |what: String| Err(Failure::Usage(what));
        for (flag, numbers) in [
            ("--threads", &self.threads),
            ("--batch-size", &self.batch_size),
        ] {
            if numbers.contains(&0) {
                return wrong(format!("{flag} 0: each must be at least 1"));
            }
        }
        if self.repeats == 0 || self.milliseconds == 0 || self.run_timeout == 0 {
            let what = "--repeats, --milliseconds and --run-timeout must be at least 1";
            return wrong(what.into());
        }
        self.json
            .as_deref()
            .map_or(Ok(()), |file| check_place("--json", file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &[&str]) -> KernelOptions {
        let words = std::iter::once("bench kernels").chain(line.iter().copied());
        KernelOptions::try_parse_from(words).unwrap()
    }

    fn names(line: &[&str]) -> Vec<String> {
        let rows = options(line).rows().unwrap();
        rows.iter().map(Row::full_name).collect()
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        KernelOptions::command().debug_assert();
    }

    #[test]
    fn all_words_of_a_list_must_occur_and_any_list_will_do() {
        assert_eq!(
            names(&[
                "--models",
                "mnist",
                "--rows",
                "conv weight,linear 50->10 backward"
            ]),
            [
                "mnist, batch 64, conv 1->10 k5 on 28x28, forward + weight gradient",
                "mnist, batch 64, linear 50->10, forward + backward",
            ]
        );
    }

    #[test]
    fn a_batch_that_is_asked_for_replaces_those_of_the_models() {
        let rows = ["--rows", "cross forward,matmul 512x512", "--models"];
        let of = |models: &str, batch: &[&str]| names(&[&rows[..], &[models], batch].concat());
        assert_eq!(of("gpt-nano", &[]).len(), 4);
        assert_eq!(
            of("mnist,gpt-nano,matmul", &["--batch-size", "3"]),
            [
                "mnist, batch 3, cross entropy of 10, forward",
                "mnist, batch 3, cross entropy of 10, forward + backward",
                "gpt-nano, batch 3, cross entropy of 64x65, forward",
                "gpt-nano, batch 3, cross entropy of 64x65, forward + backward",
                "matmul, matmul 512x512 by 512x512, forward",
                "matmul, matmul 512x512 by 512x512, forward + backward",
            ]
        );
    }

    #[test]
    fn names_are_unique() {
        let mut names = names(&[]);
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn an_order_holds_all_that_a_side_must_know() {
        let line = ["--models", "mnist", "--rows", "conv 1->10 weight"];
        let order = options(&line).rows().unwrap()[0].order(80, true);
        assert_eq!(
            order,
            json!({
                "layer": {
                    "kind": "conv2d", "channels": [1, 10], "kernel": 5, "stride": 1, "padding": 0,
                    "side": 28, "bias": true,
                },
                "batch": 64, "pass": "weight-gradient", "milliseconds": 80, "check": true,
            })
        );
    }

    #[test]
    fn what_cannot_work_is_said_first() {
        let wrong = |line: &[&str]| options(line).rows().unwrap_err().to_string();
        assert!(wrong(&["--models", "lunch"]).contains("none of mnist, mnist-bn, resnet50"));
        assert!(wrong(&["--rows", "lunch"]).contains("no such row"));
        assert!(wrong(&["--threads", "1,0"]).contains("--threads 0"));
        assert!(wrong(&["--repeats", "0"]).contains("--repeats"));
        assert!(wrong(&["--json", "/does/not/exist/a.json"]).contains("--json"));
        let none = options(&["--threads", "4,8"]).threads(2).unwrap_err();
        assert!(none.to_string().contains("none fits the 2 cores"));
        assert_eq!(options(&[]).threads(1).unwrap(), [1]);
    }
}
