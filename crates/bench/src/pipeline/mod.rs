//! `bench pipeline`: how idle the ranks of a pipeline are, and what they keep, beside theory.
//!
//! The ranks are `everburn-bench side pipeline`, started anew for each run; rank 0 prints a line of JSON. The
//! decoder's steps with activation checkpointing are those of `bench recompute`.

mod options;
pub(crate) mod rank;
mod rows;

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use serde_json::Value;

use self::options::Part;
pub(crate) use self::options::PipelineBench;
use self::rank::Step;
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

/// What is compared by memory.
const COMPARED: [&str; 2] = ["gpipe", "1f1b"];

impl Bench for PipelineBench {
    const NAME: &'static str = "pipeline";
    const ABOUT: &'static str = "idle share and memory of pipelines by schedule, beside theory";

    type Results = PipelineResults;

    fn json_file(&self) -> Option<&Path> {
        self.common.json.as_deref()
    }

    fn check(&self) -> Result<(), Failure> {
        self.check_options()
    }

    fn measure(&self, setup: &Setup) -> Result<PipelineResults, Failure> {
        let context = setup.job_context(self.ranks, None);
        let mut measured = measure_pipelines(self, |asked| one_run(context, self, asked))?;
        if self.measures(Part::Checkpointing) {
            measured.decoder = Some(decoder(self).measure(setup)?);
        }
        Ok(measured)
    }

    fn notes(&self, _: &PipelineResults, setup: &Setup) -> String {
        notes(self, setup.job_context(self.ranks, None).threads())
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
    let (rounds, timeout) = (
        options.rounds.to_string(),
        options.common.run_timeout.to_string(),
    );
    RecomputeBench::parse_from([
        "bench recompute",
        "--against",
        rows::CHECKPOINTED,
        "--rounds",
        &rounds,
        "--run-timeout",
        &timeout,
    ])
}

/// A run that is wanted.
#[derive(Debug, Clone, PartialEq)]
struct Asked<'a> {
    schedule: &'a str,
    micro_batches: usize,
    what: What,
}

impl<'a> Asked<'a> {
    fn of(schedule: &'a str, micro_batches: usize, what: What) -> Self {
        Self {
            schedule,
            micro_batches,
            what,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
enum What {
    /// Times, and a drawing.
    Times(Option<PathBuf>),
    Memory,
}

fn one_run(
    context: JobContext<'_>,
    options: &PipelineBench,
    asked: &Asked<'_>,
) -> Result<Step, Failure> {
    let Asked {
        schedule,
        micro_batches,
        what,
    } = asked;
    let name = format!("everburn's {schedule} steps");
    let job = Job::start(context, &name, |command| {
        command.args(["side", "pipeline", "--schedule", schedule]);
        let numbers = [
            ("--micro-batches", *micro_batches),
            ("--chunks", options.chunks_of(schedule)),
        ];
        for (flag, number) in options.model().into_iter().chain(numbers) {
            command.arg(flag).arg(number.to_string());
        }
        add(command, what, options);
    })?;
    job.result(options.common.patience())
}

fn add(command: &mut Command, what: &What, options: &PipelineBench) {
    let steps = match what {
        What::Times(drawing) => {
            if let Some(file) = drawing {
                command.arg("--svg").arg(file);
            }
            options.steps
        }
        What::Memory => {
            command.envs(EXACT_MEMORY);
            MEMORY_STEPS
        }
    };
    command.arg("--steps").arg(steps.to_string());
}

/// Every schedule once a round, and once for its memory; then the memory of many micro-batches.
fn measure_pipelines(
    options: &PipelineBench,
    mut run: impl FnMut(&Asked<'_>) -> Result<Step, Failure>,
) -> Result<PipelineResults, Failure> {
    let mut measured = PipelineResults::default();
    if options.measures(Part::Bubble) {
        for schedule in &options.schedules {
            let memory = run(&Asked::of(schedule, options.micro_batches, What::Memory))?;
            measured.schedules.push(ScheduleRounds {
                schedule: schedule.clone(),
                steps: Vec::new(),
                memory,
            });
        }
        let timed = |_: usize, at: usize| {
            let schedule = &options.schedules[at];
            // The last round's drawing stays.
            let what = What::Times(options.drawing(schedule));
            run(&Asked::of(schedule, options.micro_batches, what))
        };
        let rounds = Rounds::in_turn(options.rounds, options.schedules.len(), timed, |steps| {
            let told = options.schedules.iter().zip(steps);
            let told = told.map(|(schedule, step)| format!("{schedule} {:.1} %", 1e2 * step.idle));
            format!("idle: {}", told.collect::<Vec<_>>().join(", "))
        })?;
        for steps in rounds.0 {
            for (schedule, step) in measured.schedules.iter_mut().zip(steps) {
                schedule.steps.push(step);
            }
        }
    }
    if options.measures(Part::Memory) {
        for schedule in COMPARED {
            let step = run(&Asked::of(
                schedule,
                options.memory_micro_batches,
                What::Memory,
            ))?;
            measured.kept.push(Kept {
                schedule: schedule.to_owned(),
                micro_batches: options.memory_micro_batches,
                step,
            });
        }
    }
    Ok(measured)
}

/// What one has to know to judge the tables.
fn notes(options: &PipelineBench, threads: usize) -> String {
    let PipelineBench {
        ranks,
        micro_batches,
        layers,
        width,
        batch,
        steps,
        rounds,
        ..
    } = options;
    format!(
        "model:   {layers} linear layers of {width} features, as many in each stage; its input requires a \
         gradient,\n         so that all stages do the same work\n\
         pipeline: {ranks} ranks of {threads} thread(s); {micro_batches} micro-batches of {batch} rows a step\n\
         method:  idle is the share of a step's time in which ranks compute nothing, waits and messages \
         included;\n         medians of {rounds} rounds, each the median of {steps} steps in processes of its \
         own;\n         memory is the most of a step above what there was before it, in runs of their own"
    )
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
        let measured = measure_pipelines(&options, |asked| {
            let timed = matches!(&asked.what, What::Times(Some(_)));
            runs.push((asked.schedule.to_owned(), asked.micro_batches, timed));
            Ok(step(0.1, [2, 1]))
        });
        let run =
            |schedule: &str, micro_batches, timed| (schedule.to_owned(), micro_batches, timed);
        let round = [run("gpipe", 8, true), run("zb-h1", 8, true)];
        let first = [run("gpipe", 8, false), run("zb-h1", 8, false)];
        let last = [run("gpipe", 16, false), run("1f1b", 16, false)];
        let back = [round[1].clone(), round[0].clone()];
        assert_eq!(runs, [first, round, back, last].concat());
        let measured = measured.unwrap();
        assert_eq!(measured.schedules[1].steps.len(), 2);
        assert!(measured.decoder.is_none());
    }

    #[test]
    fn only_what_is_asked_for_runs() {
        let options = options("--only checkpointing");
        let measured = measure_pipelines(&options, |asked| panic!("{asked:?}")).unwrap();
        assert!(measured.schedules.is_empty() && measured.kept.is_empty());
    }

    #[test]
    fn the_decoder_has_its_usual_twelve_blocks() {
        let decoder = decoder(&options("--rounds 2"));
        assert!(decoder.describe().contains("gpt of 12 layers"));
        assert!(decoder.describe().contains("2 rounds"));
    }
}
