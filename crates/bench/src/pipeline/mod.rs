//! `bench pipeline`: how idle the ranks of a pipeline are, and what they keep, beside theory.
//!
//! The ranks are `everburn-bench side pipeline`, started anew for each run; rank 0 prints a line of JSON. The
//! decoder's steps with activation checkpointing are those of `bench recompute`.

mod options;
mod order;
#[cfg(not(test))]
pub(crate) mod rank;
mod rows;

use std::time::Duration;

use clap::Parser;
use everburn::schedules::ScheduleKind;
use serde_json::{Value, json};

pub(crate) use self::options::PipelineBench;
use self::order::{Order, Step};
use self::rows::{Kept, PipelineResults, ScheduleRounds};
use crate::bench::{Bench, Setup};
use crate::failure::Failure;
use crate::job::{Job, JobContext};
use crate::recompute::RecomputeBench;
use crate::rounds::Rounds;

/// mallopt(3): every tensor is memory of its own, which goes back to the system at once. The resident set is
/// then what a rank really keeps. It makes page faults, so that such a run's times are not used.
const EXACT_MEMORY: [(&str, &str); 2] = [
    ("MALLOC_TRIM_THRESHOLD_", "0"),
    ("MALLOC_MMAP_THRESHOLD_", "65536"),
];

/// Steps of a run for memory: they are all alike.
const MEMORY_STEPS: usize = 2;

/// What is compared by memory, and with how many micro-batches.
const COMPARED: [ScheduleKind; 2] = [ScheduleKind::GPipe, ScheduleKind::OneForwardOneBackward];
const MANY_MICRO_BATCHES: usize = 16;

impl Bench for PipelineBench {
    const NAME: &'static str = "pipeline";
    const ABOUT: &'static str = "idle share and memory of pipelines by schedule, beside theory";

    type Results = PipelineResults;

    fn check(&self) -> Result<(), Failure> {
        self.check_options()
    }

    fn measure(&self, setup: &Setup) -> Result<PipelineResults, Failure> {
        let context = setup.job_context(self.ranks, None);
        let run = |order: &Order| one_run(context, order, setup.patience);
        let (schedules, kept) = measure_pipelines(self, run)?;
        Ok(PipelineResults {
            schedules,
            kept,
            decoder: decoder(self).measure(setup)?,
        })
    }

    fn notes(&self, _: &PipelineResults, setup: &Setup) -> String {
        let threads = setup.job_context(self.ranks, None).threads();
        let Self {
            ranks,
            micro_batches,
            layers,
            width,
            batch,
            steps,
            rounds,
            ..
        } = self;
        format!(
            "model:   {layers} linear layers of {width} features, as many in each stage; its input requires a \
             gradient,\n         so that all stages do the same work\n\
             pipeline: {ranks} ranks of {threads} thread(s); {micro_batches} micro-batches of {batch} rows a step\n\
             method:  idle is the share of a step's time in which ranks compute nothing, waits and messages \
             included;\n         medians of {rounds} rounds, each the median of {steps} steps in processes of its \
             own;\n         memory is the most of a step above what there was before it, in runs of their own"
        )
    }

    fn table(&self, results: &PipelineResults, _: &Setup) -> String {
        rows::text(results, &decoder(self).describe())
    }

    fn to_json(&self, results: &PipelineResults, _: &Setup, machine: &Value) -> Value {
        rows::to_json(results, self, &decoder(self), machine)
    }
}

/// The decoder of 12 blocks that `bench recompute` takes by itself, with and without checkpointing.
fn decoder(options: &PipelineBench) -> RecomputeBench {
    let rounds = options.rounds.to_string();
    let against = ["--against", rows::CHECKPOINTED];
    RecomputeBench::parse_from(
        ["bench recompute"]
            .into_iter()
            .chain(against)
            .chain(["--rounds", &rounds]),
    )
}

fn one_run(context: JobContext<'_>, order: &Order, patience: Duration) -> Result<Step, Failure> {
    let name = format!("everburn's {} steps", order.schedule);
    let text = json!(order).to_string();
    let job = Job::start(context, &name, |command| {
        command.args(["side", "pipeline", &text]);
        if order.is_for_memory {
            command.envs(EXACT_MEMORY);
        }
    })?;
    job.result(patience)
}

/// Every schedule once for its memory and once a round; then the memory of many micro-batches.
fn measure_pipelines(
    options: &PipelineBench,
    mut run: impl FnMut(&Order) -> Result<Step, Failure>,
) -> Result<(Vec<ScheduleRounds>, Vec<Kept>), Failure> {
    let for_memory = |schedule, micro_batches| Order {
        is_for_memory: true,
        steps: MEMORY_STEPS,
        ..options.order(schedule, micro_batches)
    };
    let memory = options.schedules.iter();
    let memory = memory.map(|schedule| run(&for_memory(*schedule, options.micro_batches)));
    let memory = memory.collect::<Result<Vec<_>, _>>()?;
    let timed = |_: usize, at: usize| {
        let schedule = options.schedules[at];
        run(&Order {
            // The last round's stays.
            svg: options.drawing(schedule),
            ..options.order(schedule, options.micro_batches)
        })
    };
    let rounds = Rounds::in_turn(options.rounds, options.schedules.len(), timed, |steps| {
        let told = options.schedules.iter().zip(steps);
        let told = told.map(|(schedule, step)| format!("{schedule} {:.1} %", 1e2 * step.idle));
        format!("idle: {}", told.collect::<Vec<_>>().join(", "))
    })?;
    let schedules = options.schedules.iter().zip(memory).enumerate();
    let schedules = schedules.map(|(at, (schedule, memory))| ScheduleRounds {
        schedule: *schedule,
        steps: rounds.0.iter().map(|round| round[at].clone()).collect(),
        memory,
    });
    let kept = COMPARED
        .into_iter()
        .map(|schedule| -> Result<Kept, Failure> {
            let step = run(&for_memory(schedule, MANY_MICRO_BATCHES))?;
            Ok(Kept { schedule, step })
        });
    let kept = kept.collect::<Result<Vec<_>, _>>()?;
    Ok((schedules.collect(), kept))
}

#[cfg(test)]
mod tests {
    use super::options::tests::options;
    use super::rows::tests::step;
    use super::*;

    #[test]
    fn schedules_take_turns_and_memory_is_measured_apart() {
        let options = options("--schedules gpipe,zb-h1 --rounds 2 --svg p.svg");
        let mut runs = Vec::new();
        let measured = measure_pipelines(&options, |order| {
            assert_eq!(order.is_for_memory, order.svg.is_none());
            runs.push((order.schedule.name(), order.micro_batches, order.steps));
            Ok(step(0.1, [2, 1]))
        });
        let round = [("gpipe", 8, 5), ("zb-h1", 8, 5)];
        let first = [("gpipe", 8, 2), ("zb-h1", 8, 2)];
        let last = [("gpipe", 16, 2), ("1f1b", 16, 2)];
        assert_eq!(runs, [first, round, [round[1], round[0]], last].concat());
        let (schedules, _) = measured.unwrap();
        assert_eq!(schedules[1].steps.len(), 2);
    }

    #[test]
    fn the_decoder_has_its_usual_twelve_blocks() {
        let decoder = decoder(&options("--rounds 2"));
        assert!(decoder.describe().contains("gpt of 12 layers"));
        assert!(decoder.describe().contains("2 rounds"));
    }
}
