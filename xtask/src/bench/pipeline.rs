//! `bench pipeline`: how idle the ranks of a pipeline are, and what they keep, beside theory.
//!
//! The ranks are `everburn bench-pipeline`, started anew for each run; rank 0 prints a line of JSON. The
//! decoder's steps with activation checkpointing are those of `bench recompute`.

mod options;
mod rows;
mod step;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use everburn_record::proc::CpuTime;

use self::options::{Part, PipelineOptions};
use self::rows::{Kept, Measured, Rounds};
use self::step::Step;
use super::job::{Job, Place};
use super::machine::Machine;
use super::process::{Children, Failure};
use super::recompute::{self, RecomputeOptions};
use super::{temporary_folder, write_file};
use crate::binary;

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

/// Runs the benchmark with the arguments after its name.
pub(super) fn run(arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let options = PipelineOptions::parse_or_exit(arguments);
    options.check()?;
    let machine = Machine::look();
    let children = Children::listen()?;
    let folder = temporary_folder()?;
    let built = |program: miette::Result<Option<PathBuf>>| {
        let program = program.map_err(|error| Failure::new(error.to_string()))?;
        children.check_interrupted()?;
        Ok::<_, Failure>(program)
    };
    let (Some(measure), Some(everburn)) =
        (built(binary::measure())?, built(binary::for_measuring())?)
    else {
        // Cargo has said why.
        return Ok(ExitCode::FAILURE);
    };
    let place = Place {
        children: &children,
        folder: folder.path(),
        network: None,
        ranks: options.ranks,
    };
    let before = CpuTime::now();
    let ranks = |asked: &Asked<'_>| one_run(place, &measure, &everburn, &options, asked);
    let mut measured = measure_pipelines(&options, ranks)?;
    if options.measures(Part::Checkpointing) {
        let decoder = decoder(&options);
        let alone = Place { ranks: 1, ..place };
        measured.decoder = Some(recompute::sides(alone, &measure, &everburn, &decoder)?);
    }
    let meanwhile = before.zip(CpuTime::now());
    let others = meanwhile.and_then(|(before, after)| before.others_share(after));

    println!("{}", machine.describe(others));
    println!("{}", notes(&options, place.threads()));
    println!("{}", rows::text(&measured, &decoder(&options).describe()));
    if let Some(file) = &options.json {
        let machine = machine.to_json(others);
        let rows = rows::to_json(&measured, &options, &decoder(&options), &machine);
        write_file(file, &format!("{rows:#}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The decoder of 12 blocks that `bench recompute` takes by itself, with and without checkpointing.
fn decoder(options: &PipelineOptions) -> RecomputeOptions {
    let (rounds, timeout) = (options.rounds.to_string(), options.run_timeout.to_string());
    let words = [
        "--against",
        rows::CHECKPOINTED,
        "--rounds",
        &rounds,
        "--run-timeout",
        &timeout,
    ];
    RecomputeOptions::parse_or_exit(&words.map(OsString::from))
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
    place: Place<'_>,
    measure: &Path,
    everburn: &Path,
    options: &PipelineOptions,
    asked: &Asked<'_>,
) -> Result<Step, Failure> {
    let Asked {
        schedule,
        micro_batches,
        what,
    } = asked;
    let name = format!("everburn's {schedule} steps");
    let job = Job::start(place, measure, everburn, &name, |command| {
        command.args(["bench-pipeline", "--json", "--schedule", schedule]);
        let numbers = [
            ("--micro-batches", *micro_batches),
            ("--chunks", options.chunks_of(schedule)),
        ];
        for (flag, number) in options.model().into_iter().chain(numbers) {
            command.arg(flag).arg(number.to_string());
        }
        add(command, what, options);
    })?;
    Step::parse(&job.finish(options.patience())?, schedule, *micro_batches)
}

fn add(command: &mut Command, what: &What, options: &PipelineOptions) {
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
    options: &PipelineOptions,
    mut run: impl FnMut(&Asked<'_>) -> Result<Step, Failure>,
) -> Result<Measured, Failure> {
    let mut measured = Measured::default();
    if options.measures(Part::Bubble) {
        for schedule in &options.schedules {
            let memory = run(&Asked::of(schedule, options.micro_batches, What::Memory))?;
            measured.schedules.push(Rounds {
                schedule: schedule.clone(),
                steps: Vec::new(),
                memory,
            });
        }
        for round in 1..=options.rounds {
            let mut told = Vec::new();
            for rounds in &mut measured.schedules {
                let schedule = &rounds.schedule;
                // The last round's stays.
                let what = What::Times(options.drawing(schedule));
                let step = run(&Asked::of(schedule, options.micro_batches, what))?;
                told.push(format!("{schedule} {:.1} %", 1e2 * step.idle));
                rounds.steps.push(step);
            }
            let told = told.join(", ");
            eprintln!("[round {round}/{}] idle: {told}", options.rounds);
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
fn notes(options: &PipelineOptions, threads: usize) -> String {
    let PipelineOptions {
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
    use super::step::tests::step;
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
        assert_eq!(runs, [first, round.clone(), round, last].concat());
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
