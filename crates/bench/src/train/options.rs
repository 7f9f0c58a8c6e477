//! The command line of `bench train`, and the cases that it asks for.

use std::fmt;
use std::path::PathBuf;

use clap::Parser;
use everburn_record::units::counted;

use super::ours::Data;
use crate::bench::at_least_1;
use crate::failure::Failure;
use crate::peers::{Peer, one_of};

/// Measures samples/s of `everburn train` in real processes; of text models, tokens/s.
///
/// Every case runs once a round, each beside its peers, so that a slow minute of the machine falls
/// on all; ratios are medians over the rounds. A peer that is missing is refused at the start.
#[derive(Debug, Parser)]
pub(crate) struct TrainBench {
    /// The models.
    #[arg(long, value_delimiter = ',', default_value = "mnist")]
    models: Vec<String>,

    /// How many ranks train together on this machine.
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_parser = at_least_1)]
    ranks: Vec<usize>,

    /// CPU threads of each rank; cases with more threads than cores are left out [default: cores /
    /// ranks].
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = at_least_1)]
    threads_per_rank: Vec<usize>,

    /// How many samples all ranks together read a step.
    #[arg(long, value_delimiter = ',', default_value = "64,512", value_parser = at_least_1)]
    batch_size: Vec<usize>,

    /// Steps of each run [default: as many as fill --seconds, found by a short run].
    #[arg(long, value_parser = at_least_1)]
    pub(super) steps: Option<usize>,

    /// How long each of our runs should train.
    #[arg(long, default_value_t = 10.0, conflicts_with = "steps")]
    pub(super) seconds: f64,

    /// How many rounds.
    #[arg(long, default_value_t = 3, value_parser = at_least_1)]
    pub(super) rounds: usize,

    /// auto, mnist, fashion-mnist or synthetic; tinyshakespeare or embedded for text models.
    #[arg(long, value_name = "NAME", default_value = "auto")]
    data: String,

    /// The folder of the data files.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,

    /// Measure these peers in the same rounds, and print the ratio to each and to the fastest.
    #[arg(long, value_name = "PEERS", value_delimiter = ',', value_parser = one_of([Peer::Pytorch, Peer::Compile, Peer::Jax]))]
    pub(super) against: Vec<Peer>,
}

/// Text models, and the tokens of a sample.
const TEXT_MODELS: [(&str, usize); 2] = [("gpt-nano", 64), ("gpt2-124m", 1024)];

/// What is measured: a line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) model: String,
    pub(crate) ranks: usize,
    /// Of each rank.
    pub(crate) threads: usize,
    /// Samples per step of all ranks together.
    pub(crate) batch: usize,
}

impl Case {
    /// The tokens of a sample, for a text model: its speed is in tokens.
    pub(crate) fn tokens(&self) -> Option<usize> {
        let known = TEXT_MODELS.iter().find(|(model, _)| *model == self.model);
        known.map(|(_, tokens)| *tokens)
    }

    /// What is counted, and how many of them a sample is.
    pub(crate) fn unit(&self) -> (&'static str, f64) {
        match self.tokens() {
            None => ("samples", 1.0),
            Some(tokens) => ("tokens", tokens as f64),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = counted(self.ranks, "rank");
        let threads = counted(self.threads, "thread");
        let (model, batch) = (&self.model, self.batch);
        write!(f, "{model}, {ranks} x {threads}, batch {batch}")
    }
}

impl TrainBench {
    pub(super) fn data(&self) -> Result<Data, Failure> {
        let folder = self.data_dir.as_ref().map(std::path::absolute).transpose();
        let folder = folder.map_err(|error| Failure::Usage(format!("--data-dir: {error}")))?;
        Ok(Data {
            name: self.data.clone(),
            folder,
        })
    }

    /// All cases on a machine of `cores` cores, or what is wrong with the options.
    pub(super) fn cases(&self, cores: usize) -> Result<Vec<Case>, Failure> {
        let mut cases = Vec::new();
        for model in &self.models {
            for &batch in &self.batch_size {
                for &ranks in &self.ranks {
                    for threads in self.threads_of(ranks, cores) {
                        cases.push(Case {
                            model: model.clone(),
                            ranks,
                            threads,
                            batch,
                        });
                    }
                }
            }
        }
        if cases.is_empty() {
            let what = format!("no case is left: each needs more threads than the {cores} cores");
            return Err(Failure::Usage(what));
        }
        Ok(cases)
    }

    /// As the launcher does it, unless told otherwise.
    fn threads_of(&self, ranks: usize, cores: usize) -> Vec<usize> {
        if self.threads_per_rank.is_empty() {
            return vec![(cores / ranks).max(1)];
        }
        let fit = |threads: &usize| ranks * threads <= cores;
        self.threads_per_rank.iter().copied().filter(fit).collect()
    }

    pub(super) fn check_options(&self) -> Result<(), Failure> {
        let wrong = |what: String| Err(Failure::Usage(what));
        if !(self.seconds.is_finite() && self.seconds > 0.0) {
            return wrong(format!("--seconds {}: it must be positive", self.seconds));
        }
        let most = self.ranks.iter().max().copied().unwrap_or(1);
        if let Some(batch) = self.batch_size.iter().find(|batch| **batch < most) {
            return wrong(format!(
                "--batch-size {batch} with --ranks {most}: each rank needs a sample of every batch"
            ));
        }
        self.check_jax()
    }

    /// JAX's devices have equal shares of a batch.
    fn check_jax(&self) -> Result<(), Failure> {
        if !self.against.contains(&Peer::Jax) {
            return Ok(());
        }
        let uneven = |batch: &usize| {
            self.ranks
                .iter()
                .find(|ranks| !batch.is_multiple_of(**ranks))
        };
        let found = self
            .batch_size
            .iter()
            .find_map(|batch| Some((batch, uneven(batch)?)));
        let Some((batch, ranks)) = found else {
            return Ok(());
        };
        Err(Failure::Usage(format!(
            "--batch-size {batch} with --ranks {ranks} and --against jax: JAX divides a batch into \
             equal parts only; take a multiple of {ranks}"
        )))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Of `mnist` on two ranks of one thread.
    pub(in crate::train) fn case() -> Case {
        Case {
            model: "mnist".into(),
            ranks: 2,
            threads: 1,
            batch: 64,
        }
    }

    fn options(line: &str) -> TrainBench {
        let words = std::iter::once("bench train").chain(line.split_whitespace());
        TrainBench::try_parse_from(words).unwrap()
    }

    fn cases(line: &str, cores: usize) -> Vec<String> {
        let cases = options(line).cases(cores).unwrap();
        cases.iter().map(Case::to_string).collect()
    }

    #[test]
    fn ranks_share_the_cores() {
        assert_eq!(
            cases("--batch-size 64 --ranks 1,2,8", 4),
            [
                "mnist, 1 rank x 4 threads, batch 64",
                "mnist, 2 ranks x 2 threads, batch 64",
                "mnist, 8 ranks x 1 thread, batch 64",
            ]
        );
        assert_eq!(cases("--models mnist,mnist-bn", 2).len(), 8);
    }

    #[test]
    fn threads_that_are_named_must_fit() {
        assert_eq!(
            cases("--batch-size 64 --threads-per-rank 1,2", 2),
            [
                "mnist, 1 rank x 1 thread, batch 64",
                "mnist, 1 rank x 2 threads, batch 64",
                "mnist, 2 ranks x 1 thread, batch 64",
            ]
        );
    }

    #[test]
    fn one_process_with_each_number_of_threads_and_two_ranks_fit_one_call() {
        let models = "--models mnist,mnist-bn,gpt-nano --batch-size 64,512";
        let all = cases(&format!("{models} --ranks 1,2 --threads-per-rank 1,2"), 2);
        assert_eq!(all.len(), 3 * 2 * 3);
        assert!(all.contains(&"gpt-nano, 2 ranks x 1 thread, batch 512".into()));
    }

    #[test]
    fn models_of_text_are_measured_in_tokens() {
        let options = options("--models mnist,gpt-nano --batch-size 8 --ranks 1");
        let units: Vec<_> = options.cases(1).unwrap().iter().map(Case::unit).collect();
        assert_eq!(units, [("samples", 1.0), ("tokens", 64.0)]);
    }

    #[test]
    fn what_cannot_work_is_said_first() {
        let wrong = |line| options(line).check_options().unwrap_err().to_string();
        assert!(wrong("--seconds 0").contains("--seconds 0"));
        assert!(wrong("--ranks 1,4 --batch-size 64,2").contains("--batch-size 2 with --ranks 4"));
        let uneven = wrong("--ranks 1,3 --batch-size 64 --against pytorch,jax");
        assert!(
            uneven.contains("--batch-size 64 with --ranks 3 and --against jax"),
            "{uneven}"
        );
        let torch = options("--ranks 3 --batch-size 64 --against pytorch,compile");
        assert_eq!(torch.check_options(), Ok(()));
        assert_eq!(torch.against, [Peer::Pytorch, Peer::Compile]);
        let strangers = ["bench train", "--against", "gloo"];
        assert!(TrainBench::try_parse_from(strangers).is_err());
        let none = options("--threads-per-rank 4").cases(2).unwrap_err();
        assert!(none.to_string().contains("no case is left"));
    }
}
