//! The command line of `bench pipeline`.

use std::path::PathBuf;

use clap::Parser;
use everburn::schedules::ScheduleKind;

use super::order::Order;
use crate::bench::{at_least_1, check_place};
use crate::failure::Failure;

/// Measures how idle the ranks of a pipeline are, by schedule, and what they keep.
///
/// Real ranks, a thread each, run steps of a model whose stages cost the same; each action's time gives the
/// idle share, beside what theory says. Then GPipe and 1F1B are compared by memory at many micro-batches, and
/// a decoder's steps with and without activation checkpointing by memory and time.
#[derive(Debug, Parser)]
pub(crate) struct PipelineBench {
    /// The number of ranks of the pipeline. With more ranks than cores they take time from each other.
    #[arg(long, default_value_t = 2, value_parser = at_least_1)]
    pub(super) ranks: usize,

    /// Micro-batches of a step.
    #[arg(long, default_value_t = 8, value_parser = at_least_1)]
    pub(super) micro_batches: usize,

    /// gpipe, 1f1b, interleaved, zb-h1; several with commas.
    #[arg(long, value_delimiter = ',', default_values_t = ScheduleKind::ALL)]
    pub(super) schedules: Vec<ScheduleKind>,

    /// Linear layers of the model. A message between two stages takes a millisecond or so, each of their
    /// passes many times as long.
    #[arg(long, default_value_t = 24, value_parser = at_least_1)]
    pub(super) layers: usize,

    /// Features of each of them.
    #[arg(long, default_value_t = 1024, value_parser = at_least_1)]
    pub(super) width: usize,

    /// Rows of a micro-batch.
    #[arg(long, default_value_t = 256, value_parser = at_least_1)]
    pub(super) batch: usize,

    /// Steps of each run.
    #[arg(long, default_value_t = 5, value_parser = at_least_1)]
    pub(super) steps: usize,

    /// How many rounds.
    #[arg(long, default_value_t = 3, value_parser = at_least_1)]
    pub(super) rounds: usize,

    /// Draw a step of each schedule, as it was measured. `p.svg` becomes `p-1f1b.svg` and so on.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl PipelineBench {
    /// How many stages each rank has.
    pub(super) fn chunks_of(schedule: ScheduleKind) -> usize {
        if schedule.has_chunks() { 2 } else { 1 }
    }

    /// Where the drawing of `schedule` goes.
    pub(super) fn drawing(&self, schedule: ScheduleKind) -> Option<PathBuf> {
        let file = self.svg.as_deref()?;
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        let named = file.with_file_name(format!("{name}-{schedule}.svg"));
        // Ranks run elsewhere.
        Some(std::path::absolute(&named).unwrap_or(named))
    }

    /// The order to a rank for times without a drawing.
    pub(super) fn order(&self, schedule: ScheduleKind, micro_batches: usize) -> Order {
        Order {
            schedule,
            micro_batches,
            chunks: Self::chunks_of(schedule),
            layers: self.layers,
            width: self.width,
            batch: self.batch,
            steps: self.steps,
            svg: None,
            is_for_memory: false,
        }
    }

    /// What is wrong with the options, before anything runs.
    pub(super) fn check_options(&self) -> Result<(), Failure> {
        let wrong = |what: String| Err(Failure::Usage(what));
        if self.ranks < 2 {
            return wrong("--ranks: a pipeline needs 2 ranks or more".into());
        }
        let most = |schedule: &ScheduleKind| self.ranks.saturating_mul(Self::chunks_of(*schedule));
        let stages = self.schedules.iter().map(most).max().unwrap_or(self.ranks);
        if !self.layers.is_multiple_of(stages) {
            return wrong(format!(
                "--layers {} cannot be cut into {stages} stages of equal cost; take a multiple of {stages}",
                self.layers
            ));
        }
        check_place("--svg", self.svg.as_deref())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::pipeline) fn options(line: &str) -> PipelineBench {
        let words = std::iter::once("bench pipeline").chain(line.split_whitespace());
        PipelineBench::try_parse_from(words).unwrap()
    }

    #[test]
    fn each_schedule_has_a_drawing_of_its_own() {
        let file = options("--svg /tmp/p.svg").drawing(ScheduleKind::ZeroBubbleH1);
        assert_eq!(file, Some(PathBuf::from("/tmp/p-zb-h1.svg")));
        assert_eq!(options("").drawing(ScheduleKind::GPipe), None);
    }

    #[test]
    fn what_cannot_work_is_said_first() {
        let wrong = |line| options(line).check_options().unwrap_err().to_string();
        assert!(wrong("--ranks 1").contains("2 ranks"));
        assert!(wrong("--layers 6").contains("a multiple of 4"));
        assert!(wrong("--svg /does/not/exist/a.svg").contains("a.svg"));
        assert!(options("").check_options().is_ok());
        assert!(
            options("--layers 6 --schedules gpipe")
                .check_options()
                .is_ok()
        );
    }
}
