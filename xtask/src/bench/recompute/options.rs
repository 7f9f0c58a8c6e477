//! The command line of `bench recompute`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

use crate::bench::check_place;
use crate::bench::process::Failure;

/// Measures what activation checkpointing saves in memory and costs in time.
///
/// A decoder of text makes whole training steps (forward, backward, Adam), once with all activations kept
/// and once with each of the ways to compute them again.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask bench recompute",
    after_help = "Environment:\n  \
        EVERBURN_BIN       a built everburn to measure in place of building one"
)]
pub(in crate::bench) struct RecomputeOptions {
    /// What stands beside `none`: blocks, a number of blocks, burn; several with commas.
    #[arg(long, value_delimiter = ',', default_values_t = ["blocks".to_string(), "burn".to_string()])]
    against: Vec<String>,

    /// Layers of the decoder.
    #[arg(long, default_value_t = 12)]
    layers: usize,

    /// The length of a token's vector.
    #[arg(long, default_value_t = 128)]
    width: usize,

    /// Heads of the attention.
    #[arg(long, default_value_t = 4)]
    heads: usize,

    /// The length of a text, in tokens.
    #[arg(long, default_value_t = 128)]
    context: usize,

    /// Texts a step.
    #[arg(long, default_value_t = 16)]
    batch: usize,

    /// Steps of each run.
    #[arg(long, default_value_t = 3)]
    steps: usize,

    /// How many rounds.
    #[arg(long, default_value_t = 3)]
    pub(super) rounds: usize,

    /// Write the rows to this file too.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,

    /// Give up when one run takes longer than this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    run_timeout: u64,
}

impl RecomputeOptions {
    /// Parses the arguments after `recompute`. Prints help and ends the process where that is asked for
    /// or nothing else can be said.
    pub(in crate::bench) fn parse_or_exit(arguments: &[OsString]) -> Self {
        let name = OsString::from("cargo xtask bench recompute");
        Self::parse_from([name].into_iter().chain(arguments.iter().cloned()))
    }

    pub(super) fn patience(&self) -> Duration {
        Duration::from_secs(self.run_timeout)
    }

    /// All sides, the plain one first.
    pub(super) fn sides(&self) -> Vec<String> {
        let mut sides = vec!["none".to_string()];
        sides.extend(self.against.iter().filter(|how| *how != "none").cloned());
        sides
    }

    /// What `everburn bench-recompute` is told.
    pub(super) fn numbers(&self) -> [(&'static str, usize); 6] {
        [
            ("--layers", self.layers),
            ("--width", self.width),
            ("--heads", self.heads),
            ("--context", self.context),
            ("--batch", self.batch),
            ("--steps", self.steps),
        ]
    }

    /// What is wrong with the options, before anything runs.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let zero = self.numbers().into_iter().chain([
            ("--rounds", self.rounds),
            ("--run-timeout", usize::from(self.run_timeout > 0)),
        ]);
        if let Some((flag, _)) = zero.into_iter().find(|(_, number)| *number == 0) {
            return Err(Failure::Usage(format!("{flag} 0: it must be at least 1")));
        }
        self.json
            .as_deref()
            .map_or(Ok(()), |file| check_place("--json", file))
    }

    /// What one has to know to judge the table.
    pub(in crate::bench) fn describe(&self) -> String {
        format!(
            "model:   gpt of {} layers of width {}, {} heads; {} texts of {} tokens a step\n\
             method:  medians of {} rounds, each of {} whole training steps (Adam) a side in a process of \
             its own;\n         memory: the most of a step, with weights, gradients and Adam's state",
            self.layers, self.width, self.heads, self.batch, self.context, self.rounds, self.steps
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> RecomputeOptions {
        let words = std::iter::once("bench recompute").chain(line.split_whitespace());
        RecomputeOptions::try_parse_from(words).unwrap()
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        RecomputeOptions::command().debug_assert();
    }

    #[test]
    fn the_plain_side_is_always_there_and_once() {
        assert_eq!(options("").sides(), ["none", "blocks", "burn"]);
        assert_eq!(options("--against none,3").sides(), ["none", "3"]);
    }

    #[test]
    fn what_cannot_work_is_said_first() {
        let wrong = |line| options(line).check().unwrap_err().to_string();
        assert!(wrong("--layers 0").contains("--layers"));
        assert!(wrong("--rounds 0").contains("--rounds"));
        assert!(options("").check().is_ok());
    }
}
