//! `everburn simulate`

mod schedule_file;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use everburn_record::table::aligned;
use everburn_record::units::{percent, seconds};
use everburn_schedules::{
    Costs, Schedule, ScheduleKind, Sends, SimulationError, StageCosts, Timeline, simulate,
    theoretical_idle,
};

use crate::error::CliError;

/// Without a schedule, all are compared.
#[derive(Debug, Clone, Args)]
pub(crate) struct SimulateArguments {
    /// The schedule to draw: gpipe, 1f1b, interleaved or zb-h1 [default: compare all].
    #[arg(long)]
    schedule: Option<ScheduleKind>,

    /// Draw the schedule in this file (TOML or JSON): the actions of each rank in order, as in actions = ["F0 F1 B0
    /// B1", "F0 B0 F1 B1"]. `F` is a forward pass, `B` a backward pass. With a `W` for the same micro-batch, `B` is
    /// the backward pass for inputs and `W` that for weights.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["schedule", "pipeline", "micro_batches"])]
    from: Option<PathBuf>,

    /// The number of ranks of the pipeline.
    #[arg(
        long,
        alias = "stages",
        alias = "ranks",
        value_name = "P",
        default_value_t = 4
    )]
    pipeline: usize,

    /// The number of micro-batches per step.
    #[arg(long, value_name = "M", default_value_t = 8)]
    micro_batches: usize,

    /// The number of stages per rank with the schedule interleaved [default: 2].
    #[arg(long, value_name = "V")]
    chunks: Option<usize>,

    /// The time of a forward pass through one rank's stages.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    forward: f64,

    /// The time of the backward pass for inputs.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    backward_input: f64,

    /// The time of the backward pass for weights.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 1.0,
        allow_negative_numbers = true
    )]
    backward_weight: f64,

    /// The time of a transfer between two ranks.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    transfer: f64,

    /// A sender waits until the receiver has received.
    #[arg(long)]
    blocking_sends: bool,

    /// Write the drawing to this SVG file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// The width of the drawing in columns.
    #[arg(long, value_name = "COLUMNS", default_value_t = 100)]
    width: usize,
}

/// Draws one schedule, or compares all.
pub(crate) fn run(arguments: &SimulateArguments) -> Result<ExitCode, CliError> {
    let schedule = match (&arguments.from, arguments.schedule) {
        (Some(path), _) => schedule_file::read(path, arguments.chunks)?,
        (None, Some(kind)) => arguments.schedule_of(kind, arguments.chunks)?,
        (None, None) => return arguments.compare(),
    };
    let timeline = simulate(&schedule, &arguments.costs(&schedule))?;
    if let Some(path) = &arguments.svg {
        std::fs::write(path, timeline.to_svg()).map_err(|error| {
            CliError::usage(format!("{} cannot be written: {error}", path.display()))
        })?;
    }
    say!("{}", timeline.to_text(arguments.width).trim_end());
    if let Some(theory) = theory_of(&schedule) {
        say!("idle in theory: {}", percent(theory, 1));
    }
    if let Some(path) = &arguments.svg {
        say!("drawn to {}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// What the papers say: of stages of equal cost, with no time for transfers.
fn theory_of(schedule: &Schedule) -> Option<f64> {
    let (ranks, chunks) = (schedule.ranks(), schedule.chunks());
    let kind = schedule.kind()?;
    Some(theoretical_idle(
        kind,
        ranks,
        schedule.micro_batches(),
        chunks,
    ))
}

impl SimulateArguments {
    fn schedule_of(&self, kind: ScheduleKind, chunks: Option<usize>) -> Result<Schedule, CliError> {
        let usual = if kind.has_chunks() { 2 } else { 1 };
        let chunks = chunks.unwrap_or(usual);
        Ok(Schedule::new(
            kind,
            self.pipeline,
            self.micro_batches,
            chunks,
        )?)
    }

    /// Each rank's work is the same for every schedule: a stage of several is the shorter.
    fn costs(&self, schedule: &Schedule) -> Costs {
        let chunks = schedule.chunks() as f64;
        let stage = StageCosts {
            backward_input: self.backward_input / chunks,
            backward_weight: self.backward_weight / chunks,
            transfer: self.transfer,
            ..StageCosts::of_forward(self.forward / chunks)
        };
        Costs {
            stages: vec![stage; schedule.stages()],
            sends: match self.blocking_sends {
                true => Sends::Blocking,
                false => Sends::Buffered,
            },
        }
    }

    /// A line for each kind of schedule.
    fn compare(&self) -> Result<ExitCode, CliError> {
        if self.svg.is_some() {
            return Err(CliError::usage_with_help(
                "--svg draws one schedule",
                "name it, as in --schedule 1f1b",
            ));
        }
        let mut rows = Vec::new();
        for kind in ScheduleKind::ALL {
            let chunks = self.chunks.filter(|_| kind.has_chunks());
            let schedule = self.schedule_of(kind, chunks)?;
            rows.push(match simulate(&schedule, &self.costs(&schedule)) {
                Ok(timeline) => row(&schedule, &timeline),
                Err(SimulationError::Deadlock(_)) => {
                    vec![kind.to_string(), "never ends".to_string()]
                }
                Err(error) => return Err(error.into()),
            });
        }
        let heads = [
            "schedule",
            "step",
            "idle",
            "in theory",
            "live micro-batches",
            "messages",
        ];
        say!("{}", aligned(&heads, &rows, &[]));
        Ok(ExitCode::SUCCESS)
    }
}

/// A schedule and what came of it. Chunks are shares of a rank's model, and count as such.
fn row(schedule: &Schedule, timeline: &Timeline) -> Vec<String> {
    let ranks = || 0..schedule.ranks();
    let live = ranks().map(|rank| timeline.peak_live(rank)).max();
    let live = live.unwrap_or(0) as f64 / schedule.chunks() as f64;
    let messages: usize = ranks()
        .map(|rank| schedule.messages_from(rank).count())
        .sum();
    vec![
        schedule.name().to_string(),
        seconds(timeline.makespan()),
        percent(timeline.idle_share(), 1),
        theory_of(schedule).map_or_else(String::new, |theory| percent(theory, 1)),
        live.to_string(),
        messages.to_string(),
    ]
}
