//! The command line of `bench pipeline`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Parser, ValueEnum};

use crate::bench::check_place;
use crate::bench::process::Failure;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Part {
    /// The idle share of each schedule.
    Bubble,
    /// What GPipe and 1F1B keep of many micro-batches.
    Memory,
    /// What activation checkpointing saves, and what it costs.
    Checkpointing,
}

/// Measures how idle the ranks of a pipeline are, by schedule, and what they keep.
///
/// Real ranks, a thread each, run steps of a model whose stages cost the same; each action's time gives the
/// idle share, beside what theory says. Then GPipe and 1F1B are compared by memory at many micro-batches, and
/// a decoder's steps with and without activation checkpointing by memory and time.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask bench pipeline",
    after_help = "Environment:\n  \
        EVERBURN_BIN       a built everburn to measure in place of building one"
)]
pub(in crate::bench) struct PipelineOptions {
    /// How many ranks the pipeline has. With more ranks than cores they take time from each other.
    #[arg(long, default_value_t = 2)]
    pub(super) ranks: usize,

    /// Micro-batches of a step.
    #[arg(long, default_value_t = 8)]
    pub(super) micro_batches: usize,

    /// Micro-batches of a step where memory is compared.
    #[arg(long, default_value_t = 16)]
    pub(super) memory_micro_batches: usize,

    /// gpipe, 1f1b, interleaved, zb-h1; several with commas.
    #[arg(
        long,
        value_delimiter = ',',
        value_parser = ["gpipe", "1f1b", "interleaved", "zb-h1"],
        default_values = ["gpipe", "1f1b", "interleaved", "zb-h1"]
    )]
    pub(super) schedules: Vec<String>,

    /// Stages of each rank where the schedule is interleaved.
    #[arg(long, default_value_t = 2)]
    pub(super) chunks: usize,

    /// Linear layers of the model. A message between two stages takes a millisecond or so, each of their
    /// passes many times as long.
    #[arg(long, default_value_t = 24)]
    pub(super) layers: usize,

    /// Features of each of them.
    #[arg(long, default_value_t = 1024)]
    pub(super) width: usize,

    /// Rows of a micro-batch.
    #[arg(long, default_value_t = 256)]
    pub(super) batch: usize,

    /// Steps of each run.
    #[arg(long, default_value_t = 5)]
    pub(super) steps: usize,

    /// How many rounds.
    #[arg(long, default_value_t = 3)]
    pub(super) rounds: usize,

    /// Measure only this: bubble, memory, checkpointing; several with commas.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Part>,

    /// Write the rows to this file too.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,

    /// Draw a step of each schedule, as it was measured. `p.svg` becomes `p-1f1b.svg` and so on.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Give up when one run takes longer than this many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    pub(super) run_timeout: u64,
}

impl PipelineOptions {
    /// Parses the arguments after `pipeline`. Prints help and ends the process where that is asked for
    /// or nothing else can be said.
    pub(super) fn parse_or_exit(arguments: &[OsString]) -> Self {
        let name = OsString::from("cargo xtask bench pipeline");
        Self::parse_from([name].into_iter().chain(arguments.iter().cloned()))
    }

    pub(super) fn patience(&self) -> Duration {
        Duration::from_secs(self.run_timeout)
    }

    /// Whether a part is asked for.
    pub(super) fn measures(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }

    /// How many stages each rank has.
    pub(super) fn chunks_of(&self, schedule: &str) -> usize {
        match schedule {
            "interleaved" => self.chunks,
            _ => 1,
        }
    }

    /// Where the drawing of `schedule` goes.
    pub(super) fn drawing(&self, schedule: &str) -> Option<PathBuf> {
        let file = self.svg.as_deref()?;
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        let named = file.with_file_name(format!("{name}-{schedule}.svg"));
        // Ranks run elsewhere.
        Some(std::path::absolute(&named).unwrap_or(named))
    }

    /// The model, as `everburn bench-pipeline` is told of it.
    pub(super) fn model(&self) -> [(&'static str, usize); 3] {
        [
            ("--layers", self.layers),
            ("--width", self.width),
            ("--batch", self.batch),
        ]
    }

    /// What is wrong with the options, before anything runs.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let wrong = |what: String| Err(Failure::Usage(what));
        let numbers = self.model().into_iter().chain([
            ("--micro-batches", self.micro_batches),
            ("--memory-micro-batches", self.memory_micro_batches),
            ("--chunks", self.chunks),
            ("--steps", self.steps),
            ("--rounds", self.rounds),
            ("--run-timeout", usize::from(self.run_timeout > 0)),
        ]);
        if let Some((flag, _)) = numbers.into_iter().find(|(_, number)| *number == 0) {
            return wrong(format!("{flag} 0: it must be at least 1"));
        }
        if self.ranks < 2 {
            return wrong("--ranks: a pipeline needs 2 ranks or more".into());
        }
        let most = |schedule: &String| self.ranks.saturating_mul(self.chunks_of(schedule));
        let stages = self.schedules.iter().map(most).max().unwrap_or(self.ranks);
        if !self.layers.is_multiple_of(stages) {
            return wrong(format!(
                "--layers {} cannot be cut into {stages} stages of equal cost; take a multiple of {stages}",
                self.layers
            ));
        }
        let place = |flag, file: &Option<PathBuf>| match file.as_deref() {
            None => Ok(()),
            Some(file) => check_place(flag, Path::new(file)),
        };
        place("--json", &self.json).and(place("--svg", &self.svg))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::bench::pipeline) fn options(line: &str) -> PipelineOptions {
        let words = std::iter::once("bench pipeline").chain(line.split_whitespace());
        PipelineOptions::try_parse_from(words).unwrap()
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        PipelineOptions::command().debug_assert();
    }

    #[test]
    fn everything_is_measured_unless_a_part_is_named() {
        assert!(options("").measures(Part::Checkpointing));
        let some = options("--only memory,bubble --schedules 1f1b");
        assert!(some.measures(Part::Memory) && !some.measures(Part::Checkpointing));
        assert_eq!(some.schedules, ["1f1b"]);
    }

    #[test]
    fn each_schedule_has_a_drawing_of_its_own() {
        let file = options("--svg /tmp/p.svg").drawing("zb-h1");
        assert_eq!(file, Some(PathBuf::from("/tmp/p-zb-h1.svg")));
        assert_eq!(options("").drawing("1f1b"), None);
    }

    #[test]
    fn what_cannot_work_is_said_first() {
        let wrong = |line| options(line).check().unwrap_err().to_string();
        assert!(wrong("--ranks 1").contains("2 ranks"));
        assert!(wrong("--steps 0").contains("--steps 0"));
        assert!(wrong("--layers 6").contains("a multiple of 4"));
        assert!(wrong("--json /does/not/exist/a.json").contains("a.json"));
        assert!(options("").check().is_ok());
        assert!(options("--layers 6 --schedules gpipe").check().is_ok());
    }
}
