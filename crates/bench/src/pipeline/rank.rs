//! One rank of `cargo xtask bench pipeline`: how idle a schedule's ranks really are, and what they keep.
//!
//! The stages are to cost the same, as theory has it. So the model is a tower of like layers; its input
//! requires a gradient, so that the first stage's backward pass does what the others' does; and its loss is a
//! mean, which costs next to nothing beside a layer.

use std::path::PathBuf;

use clap::Args;
use everburn::burn;
use everburn::burn::module::Module;
use everburn::burn::prelude::*;
use everburn::burn::tensor::Distribution;
use everburn::burn::tensor::activation::relu;
use everburn::collectives::group::{GroupOptions, ProcessGroup};
use everburn::distributed::{Ddp, DdpConfig, Synchronization};
use everburn::nn::{AnyActivation, Blocks, InBlocks, Linear, LinearConfig};
use everburn::pipeline::{Pipeline, PipelinePass, Stages, distribute};
use everburn::schedules::{
    Costs, Pass, Schedule, ScheduleKind, Span, StageCosts, Timeline, simulate, theoretical_idle,
};
use everburn::train::{PeakMemory, TrainError};
use everburn_record::statistics;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::rank;

/// Steps that are not measured: caches fill, and buckets are packed anew after the first.
const WARM_UP: usize = 2;

#[derive(Debug, Clone, Args)]
pub(crate) struct BenchPipelineArguments {
    #[arg(long)]
    schedule: ScheduleKind,

    #[arg(long)]
    micro_batches: usize,

    /// Stages of each rank.
    #[arg(long, default_value_t = 1)]
    chunks: usize,

    #[arg(long)]
    layers: usize,

    /// The inputs and outputs of each layer.
    #[arg(long)]
    width: usize,

    /// Rows of a micro-batch.
    #[arg(long)]
    batch: usize,

    /// Steps that are measured.
    #[arg(long)]
    steps: usize,

    /// Draw the step of median idleness into this file.
    #[arg(long)]
    svg: Option<PathBuf>,
}

/// What rank 0 tells: medians over the steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Step {
    /// From its start to the end of the last rank's last action.
    pub(super) milliseconds: f64,
    /// The share of a step for which a rank computes nothing, the mean over ranks.
    pub(super) idle: f64,
    /// What the formula says, for stages of equal cost.
    pub(super) theory: f64,
    /// What the simulation says, with the costs that were measured.
    pub(super) simulated: f64,
    pub(super) stages: Vec<StageMilliseconds>,
    /// By rank: the most memory of a step above what there was before it, in bytes.
    pub(super) bytes: Vec<f64>,
    /// By rank: the most micro-batches that the schedule keeps.
    pub(super) live: Vec<usize>,
}

/// What the passes of a micro-batch take.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct StageMilliseconds {
    forward: f64,
    /// Whole, where the schedule does not cut it in two.
    backward: f64,
    backward_weight: f64,
}

#[derive(Module, Debug)]
struct Tower {
    layers: Vec<Linear>,
}

impl InBlocks for Tower {
    type Input = Tensor<2>;
    type Output = Tensor<2>;

    fn blocks(&self) -> Blocks<Self, Tensor<2>, Tensor<2>> {
        let name = |i: usize| format!("layers.{i}");
        let layer = |tower: &Self, i: usize, x| relu(tower.layers[i].forward(x));
        let first = Blocks::first(name(0), [name(0)], move |tower, x| layer(tower, 0, x));
        (1..self.layers.len()).fold(first, |blocks, i| {
            blocks.then(name(i), [name(i)], move |tower, x| layer(tower, i, x))
        })
    }
}

/// A step's micro-batches, all alike.
struct Micro<'a> {
    tower: &'a Tower,
    step: &'a Synchronization,
    rows: &'a Tensor<2>,
    micro_batches: usize,
}

impl PipelinePass<Tower> for Micro<'_> {
    fn model(&mut self, micro_batch: usize) -> Tower {
        let [samples, _] = self.rows.dims();
        match micro_batch + 1 == self.micro_batches {
            true => self.step.with_hooks(self.tower, samples),
            false => self.step.with_hooks_no_sync(self.tower, samples),
        }
    }

    fn input(&mut self, _: usize) -> Box<dyn AnyActivation> {
        Box::new(self.rows.clone().require_grad())
    }

    fn loss(&mut self, _: usize, output: Box<dyn AnyActivation>) -> Tensor<1> {
        let output = output.into_any().downcast::<Tensor<2>>();
        output.expect("the tower ends with rows").mean()
    }
}

pub(crate) fn run(arguments: &BenchPipelineArguments) -> Result<(), Failure> {
    for (flag, number) in [
        ("--micro-batches", arguments.micro_batches),
        ("--chunks", arguments.chunks),
        ("--layers", arguments.layers),
        ("--width", arguments.width),
        ("--batch", arguments.batch),
        ("--steps", arguments.steps),
    ] {
        if number == 0 {
            return Err(Failure::usage(format!("{flag} must be at least 1")));
        }
    }
    let (group, _) = rank::join(GroupOptions::default())?;
    let plain = Device::flex();
    let stages = Stages::even(arguments.layers, group.world_size(), arguments.chunks);
    let stages = stages.map_err(|error| Failure::usage(error.to_string()))?;
    let pipeline = Pipeline::new(group.clone(), arguments.schedule, stages);
    let pipeline = pipeline.map_err(TrainError::from)?;
    let schedule = pipeline.schedule(arguments.micro_batches);
    let schedule = schedule.map_err(TrainError::from)?;

    let own = steps(arguments, &pipeline, &plain)?;
    let all = group.gather(own.concat(), 0).wait()?;
    group.destroy()?;
    if let Some(all) = all {
        let length = own[0].len();
        let by_rank = all.iter().map(|rank| rank.chunks(length).collect());
        let measured = measured(arguments, &schedule, &by_rank.collect::<Vec<_>>())?;
        say!("{}", serde_json::json!(measured));
    }
    Ok(())
}

/// Runs the steps; of each that is measured: when it began by the machine's clock in seconds, the most
/// bytes of memory that it took, then the start and the end of each action.
fn steps(
    arguments: &BenchPipelineArguments,
    pipeline: &Pipeline,
    plain: &Device,
) -> Result<Vec<Vec<f64>>, Failure> {
    let device = plain.clone().autodiff();
    let layer = LinearConfig::new(arguments.width, arguments.width);
    let layers = (0..arguments.layers).map(|_| layer.init(&device));
    let tower = Tower {
        layers: layers.collect(),
    };
    let blocks = tower.blocks();
    let holders = pipeline.stages().holders(&tower, &blocks);
    let holders = holders.map_err(|error| Failure::usage(error.to_string()))?;
    let tower = distribute(tower, pipeline.group(), &holders).map_err(TrainError::from)?;
    let alone = ProcessGroup::alone(GroupOptions::default());
    let (ddp, tower) = Ddp::new(tower, alone, DdpConfig::default())?;
    let shape = [arguments.batch, arguments.width];
    let rows = Tensor::<2>::random(shape, Distribution::Default, &device);
    let memory = PeakMemory::of(plain);
    let mut told = Vec::with_capacity(arguments.steps);
    for number in 0..WARM_UP + arguments.steps {
        let step = ddp.begin(arguments.micro_batches * arguments.batch)?;
        let mut pass = Micro {
            tower: &tower,
            step: &step,
            rows: &rows,
            micro_batches: arguments.micro_batches,
        };
        pipeline.group().set_step(number as u64);
        memory.restart();
        let before = memory.bytes().unwrap_or(0);
        pipeline.group().barrier().wait()?;
        let begun = now();
        let spans = pipeline.run(&blocks, &device, arguments.micro_batches, &mut pass);
        let spans = spans.map_err(TrainError::from)?;
        let kept = memory.bytes().unwrap_or(0).saturating_sub(before);
        step.finish(&tower)?;
        if number >= WARM_UP {
            let times = spans.iter().flat_map(|span| [span.start, span.end]);
            told.push([begun, kept as f64].into_iter().chain(times).collect());
        }
    }
    Ok(told)
}

/// The middle of `values`; 0 of passes that the schedule does not have.
fn median(values: &[f64]) -> f64 {
    statistics::median(values).unwrap_or(0.0)
}

/// The ranks of a benchmark are processes of one machine, whose clock they all read.
fn now() -> f64 {
    everburn_record::unix_time().as_secs_f64()
}

/// What follows from what each rank has told of each step.
fn measured(
    arguments: &BenchPipelineArguments,
    schedule: &Schedule,
    by_rank: &[Vec<&[f64]>],
) -> Result<Step, Failure> {
    let ranks = schedule.ranks();
    let steps = (0..arguments.steps).map(|step| {
        let told = by_rank.iter().map(|steps| steps[step]).collect::<Vec<_>>();
        timeline(schedule, &told)
    });
    let mut steps = steps.collect::<Result<Vec<_>, _>>()?;
    steps.sort_by(|a, b| a.idle_share().total_cmp(&b.idle_share()));
    let over_steps =
        |what: &dyn Fn(&Timeline) -> f64| median(&steps.iter().map(what).collect::<Vec<_>>());
    let costs = Costs {
        stages: (0..schedule.stages())
            .map(|stage| stage_costs(&steps, schedule, stage))
            .collect(),
        ..Costs::equal(schedule.stages())
    };
    if let Some(file) = &arguments.svg {
        let drawing = steps[steps.len() / 2].to_svg();
        std::fs::write(file, drawing)
            .map_err(|error| Failure::usage(format!("cannot write {}: {error}", file.display())))?;
    }
    let stage = |costs: &StageCosts| StageMilliseconds {
        forward: 1e3 * costs.forward,
        backward: 1e3 * costs.backward_input,
        backward_weight: 1e3 * costs.backward_weight,
    };
    let (micro_batches, chunks) = (arguments.micro_batches, arguments.chunks);
    Ok(Step {
        milliseconds: 1e3 * over_steps(&Timeline::makespan),
        idle: over_steps(&Timeline::idle_share),
        theory: theoretical_idle(arguments.schedule, ranks, micro_batches, chunks),
        simulated: simulate(schedule, &costs)?.idle_share(),
        stages: costs.stages.iter().map(stage).collect(),
        bytes: by_rank
            .iter()
            .map(|steps| median(&steps.iter().map(|told| told[1]).collect::<Vec<_>>()))
            .collect(),
        live: (0..ranks).map(|rank| schedule.peak_live(rank)).collect(),
    })
}

/// A step, whose ranks' clocks begin when the first of them does.
fn timeline(schedule: &Schedule, told: &[&[f64]]) -> Result<Timeline, Failure> {
    let first = told
        .iter()
        .map(|told| told[0])
        .fold(f64::INFINITY, f64::min);
    let spans = told.iter().enumerate().map(|(rank, told)| {
        let late = told[0] - first;
        let times = told[2..].chunks_exact(2);
        let spans = schedule.actions(rank).iter().zip(times);
        let spans = spans.map(|(action, times)| Span {
            action: *action,
            start: late + times[0],
            end: late + times[1],
        });
        spans.collect()
    });
    Ok(Timeline::measured(schedule, spans.collect())?)
}

/// The medians of a stage's passes.
fn stage_costs(steps: &[Timeline], schedule: &Schedule, stage: usize) -> StageCosts {
    let rank = stage % schedule.ranks();
    let seconds = |passes: &[Pass]| {
        let spans = steps.iter().flat_map(|step| step.spans(rank));
        let spans = spans
            .filter(|span| span.action.stage() == stage && passes.contains(&span.action.pass()));
        median(&spans.map(Span::seconds).collect::<Vec<_>>())
    };
    StageCosts {
        backward_input: seconds(&[Pass::Backward, Pass::BackwardInput]),
        backward_weight: seconds(&[Pass::BackwardWeight]),
        ..StageCosts::of_forward(seconds(&[Pass::Forward]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two steps of GPipe over two ranks and one micro-batch; rank 1 begins 1 s after rank 0.
    #[test]
    fn ranks_are_brought_to_one_clock() {
        let schedule = Schedule::new(ScheduleKind::GPipe, 2, 1, 1).unwrap();
        let first: &[f64] = &[100.0, 8.0, 0.0, 2.0, 8.0, 12.0];
        let second: &[f64] = &[101.0, 4.0, 1.0, 3.0, 3.0, 7.0];
        let arguments = BenchPipelineArguments {
            schedule: ScheduleKind::GPipe,
            micro_batches: 1,
            chunks: 1,
            layers: 2,
            width: 1,
            batch: 1,
            steps: 2,
            svg: None,
        };
        let by_rank = [vec![first, first], vec![second, second]];
        let measured = measured(&arguments, &schedule, &by_rank).unwrap();
        assert_eq!(measured.milliseconds, 12e3);
        assert_eq!((measured.idle, measured.theory), (0.5, 0.5));
        assert_eq!(measured.simulated, 0.5);
        assert_eq!(measured.bytes, [8.0, 4.0]);
        assert_eq!(measured.stages[1].backward, 4e3);
    }
}
