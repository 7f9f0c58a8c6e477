//! One rank of `cargo xtask bench pipeline`: how idle a schedule's ranks really are, and what they keep.
//!
//! The stages are to cost the same, as theory has it. So the model is a tower of like layers; its input
//! requires a gradient, so that the first stage's backward pass does what the others' does; and its loss is a
//! mean, which costs next to nothing beside a layer.

use everburn::burn;
use everburn::burn::module::Module;
use everburn::burn::prelude::*;
use everburn::burn::tensor::Distribution;
use everburn::burn::tensor::activation::relu;
use everburn::collectives::group::{GroupOptions, ProcessGroup};
use everburn::distributed::{Ddp, DdpConfig, Synchronization};
use everburn::nn::{AnyActivation, Blocks, InBlocks, Linear, LinearConfig};
use everburn::pipeline::{Pipeline, PipelinePass, Stages, distribute};
use everburn::train::{PeakMemory, TrainError};

use super::order::{Order, measured};
use crate::failure::Failure;
use crate::rank;

/// Steps that are not measured: caches fill, and buckets are packed anew after the first.
const WARM_UP: usize = 2;

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

pub(crate) fn run(order: &Order) -> Result<(), Failure> {
    let (group, _) = rank::join(GroupOptions::default())?;
    let plain = Device::flex();
    let stages = Stages::even(order.layers, group.world_size(), order.chunks);
    let stages = stages.map_err(|error| Failure::usage(error.to_string()))?;
    let pipeline = Pipeline::new(group.clone(), order.schedule, stages);
    let pipeline = pipeline.map_err(TrainError::from)?;
    let schedule = pipeline.schedule(order.micro_batches);
    let schedule = schedule.map_err(TrainError::from)?;

    let own = steps(order, &pipeline, &plain)?;
    let all = group.gather(own.concat(), 0).wait()?;
    group.destroy()?;
    if let Some(all) = all {
        let length = own[0].len();
        let by_rank = all.iter().map(|rank| rank.chunks(length).collect());
        let measured = measured(order, &schedule, &by_rank.collect::<Vec<_>>())?;
        say!("{}", serde_json::json!(measured));
    }
    Ok(())
}

/// Runs the steps; of each that is measured: when it began by the machine's clock in seconds, the most
/// bytes of memory that it took, then the start and the end of each action.
fn steps(order: &Order, pipeline: &Pipeline, plain: &Device) -> Result<Vec<Vec<f64>>, Failure> {
    let device = plain.clone().autodiff();
    let layer = LinearConfig::new(order.width, order.width);
    let layers = (0..order.layers).map(|_| layer.init(&device));
    let tower = Tower {
        layers: layers.collect(),
    };
    let blocks = tower.blocks();
    let holders = pipeline.stages().holders(&tower, &blocks);
    let holders = holders.map_err(|error| Failure::usage(error.to_string()))?;
    let tower = distribute(tower, pipeline.group(), &holders).map_err(TrainError::from)?;
    let alone = ProcessGroup::alone(GroupOptions::default());
    let (ddp, tower) = Ddp::new(tower, alone, DdpConfig::default())?;
    let shape = [order.batch, order.width];
    let rows = Tensor::<2>::random(shape, Distribution::Default, &device);
    let memory = PeakMemory::of(plain);
    let mut told = Vec::with_capacity(order.steps);
    for number in 0..WARM_UP + order.steps {
        let step = ddp.begin(order.micro_batches * order.batch)?;
        let mut pass = Micro {
            tower: &tower,
            step: &step,
            rows: &rows,
            micro_batches: order.micro_batches,
        };
        pipeline.group().set_step(number as u64);
        memory.restart();
        let before = memory.bytes().unwrap_or(0);
        pipeline.group().barrier().wait()?;
        let begun = now();
        let spans = pipeline.run(&blocks, &device, order.micro_batches, &mut pass);
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

/// The ranks of a benchmark are processes of one machine, whose clock they all read.
fn now() -> f64 {
    everburn_record::unix_time().as_secs_f64()
}
