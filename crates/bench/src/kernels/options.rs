//! The command line of `bench kernels`, and the rows that it asks for.

use clap::Parser;

use super::layer::{Layer, Order, Pass};
use super::networks::{NETWORKS, Network};
use crate::bench::at_least_1;
use crate::failure::Failure;
use crate::peers::{Peer, one_of};

/// Measures single layers of the models: microseconds of a call.
///
/// Each layer runs through Burn's tensors, as in a model; with `--against pytorch,compile` also in PyTorch,
/// as it comes and compiled, with the same numbers, and the results must agree. All sides are processes that
/// run all the time and are asked row by row in turn, so that a slow minute of the machine falls on all;
/// ratios are medians over the rounds. A peer that is missing is refused at the start.
#[derive(Debug, Parser)]
pub(crate) struct KernelsBench {
    /// The models whose layers are measured; `matmul` is one product of matrices.
    #[arg(long, value_delimiter = ',', default_values_t = NETWORKS.map(|network| network.name.to_owned()))]
    models: Vec<String>,

    /// Threads of each side; more than there are cores are left out.
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_name = "N", value_parser = at_least_1)]
    threads: Vec<usize>,

    /// Samples of a batch [default: 64 for mnist and mnist-bn, 8 and 64 for resnet50 and gpt-nano].
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = at_least_1)]
    batch_size: Vec<usize>,

    /// Only rows in whose name all these words occur, as in `"resnet50 conv k3 backward"`; any of
    /// several such lists, with commas.
    #[arg(long, value_delimiter = ',', value_name = "WORDS")]
    rows: Vec<String>,

    /// How many rounds.
    #[arg(long, default_value_t = 3, value_parser = at_least_1)]
    pub(super) rounds: usize,

    /// How long each side repeats a row in a round, in milliseconds, after a warm-up; what takes
    /// longer runs once.
    #[arg(long, default_value_t = 80, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) milliseconds: u64,

    /// Measure beside these peers, and print the ratio to each and to the fastest.
    #[arg(long, value_name = "PEERS", value_delimiter = ',', value_parser = one_of([Peer::Pytorch, Peer::Compile]))]
    pub(super) against: Vec<Peer>,
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

    /// The order to all sides. `check`: they also report what came out.
    pub(super) fn order(&self, milliseconds: u64, check: bool) -> Order {
        Order {
            layer: self.layer.clone(),
            batch: self.batch.unwrap_or(1),
            pass: self.pass,
            milliseconds,
            check,
        }
    }
}

impl KernelsBench {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &[&str]) -> KernelsBench {
        let words = std::iter::once("bench kernels").chain(line.iter().copied());
        KernelsBench::try_parse_from(words).unwrap()
    }

    fn names(line: &[&str]) -> Vec<String> {
        let rows = options(line).rows().unwrap();
        rows.iter().map(Row::full_name).collect()
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
    fn what_cannot_work_is_said_first() {
        let wrong = |line: &[&str]| options(line).rows().unwrap_err().to_string();
        assert!(wrong(&["--models", "lunch"]).contains("none of mnist, mnist-bn, resnet50"));
        assert!(wrong(&["--rows", "lunch"]).contains("no such row"));
        let none = options(&["--threads", "4,8"]).threads(2).unwrap_err();
        assert!(none.to_string().contains("none fits the 2 cores"));
        assert_eq!(options(&[]).threads(1).unwrap(), [1]);
    }
}
