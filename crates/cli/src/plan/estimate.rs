//! What follows from the figures: memory, messages and the time of a step.

mod text;

use std::ops::Range;

use burn::module::ParamId;
use burn::tensor::DType;
use everburn_distributed::{BucketEntry, BucketPlan};
use everburn_nn::ParameterPath;
use everburn_record::units::{bytes, counted, seconds};
use everburn_schedules::{
    Block, Costs, Link, OptimizerState, RankMemory, Schedule, Timeline, memory_of, simulate,
    stage_costs,
};
use everburn_train::{ActivationCheckpointing, Mesh, OptimizerKind, TrainError};

use super::figures::Figures;
use super::{MicroBatches, ModelInBlocks};
use crate::config::RunConfig;
use crate::error::CliError;

/// What a run would take; `text` prints it.
pub(super) struct Estimate {
    /// What is planned.
    headline: String,
    /// A row for each position in the pipeline.
    positions: Vec<Position>,
    timeline: Timeline,
    /// How long ranks wait for gradients after the last backward pass.
    exposed: f64,
    /// How long the samples of a step are: for samples per second.
    batch_size: usize,
    notes: Vec<String>,
}

/// What the ranks at one position of the pipeline have.
struct Position {
    ranks: Vec<usize>,
    stages: Vec<usize>,
    blocks: Vec<String>,
    memory: RankMemory,
    buckets: usize,
    /// Bytes that each rank sends per step: to its neighbours in the pipeline, and to other replicas.
    sent: u64,
    gradients_sent: u64,
    /// And to those with which it shares layers.
    layers_sent: u64,
}

impl Estimate {
    pub(super) fn of(
        config: &RunConfig,
        micro_batches: &MicroBatches,
        model: &ModelInBlocks,
        figures: &Figures,
    ) -> Result<Self, CliError> {
        let parallelism = &micro_batches.parallelism;
        let mesh = parallelism.mesh;
        let schedule = parallelism.schedule()?;
        let names = model.names.iter().map(String::as_str).collect::<Vec<_>>();
        let blocks = blocks(config, micro_batches.samples, model, figures);
        let cuts = match schedule.stages() {
            1 => vec![0..blocks.len(); 1],
            _ => {
                let by = model.costs(&parallelism.stages.to_string(), &blocks);
                let cuts = parallelism.cuts(&names, &by);
                cuts.map_err(|error| TrainError::Config(error.to_string()))?
            }
        };
        let mut costs = stage_costs(&blocks, &cuts, figures.link);
        for (stage, cut) in costs.stages.iter_mut().zip(&cuts) {
            stage.parameter_bytes = model.parameter_bytes(|block| cut.contains(block));
        }
        let timeline = simulate(&schedule, &costs)?;
        let memory = memory_of(&schedule, &costs, optimizer_state(config))?;
        let again = working_set(config, micro_batches.samples, figures);
        let layers = layers_sent(micro_batches.samples, model, figures);
        let mut exposed: f64 = 0.0;
        let mut positions = Vec::with_capacity(schedule.ranks());
        for (position, mut memory) in memory.into_iter().enumerate() {
            memory.activations += again;
            let stages = schedule.stages_of(position).collect::<Vec<_>>();
            let own = stages.iter().map(|stage| cuts[*stage].clone());
            let own = own.collect::<Vec<_>>();
            let buckets = buckets(config, mesh, model, &own);
            let all_reduce = |bytes| seconds_of_all_reduce(mesh.data, bytes, figures.link);
            let all = buckets.iter().map(|bytes| all_reduce(*bytes)).sum::<f64>();
            exposed = exposed.max(match config.training.overlap {
                true => {
                    let last = buckets.last().map_or(0.0, |bytes| all_reduce(*bytes));
                    last.max(all - hiding(&schedule, position, &costs))
                }
                false => all,
            });
            positions.push(Position {
                ranks: (0..mesh.world_size())
                    .filter(|rank| mesh.coordinates(*rank).pipeline == position)
                    .collect(),
                layers_sent: own
                    .iter()
                    .flat_map(Clone::clone)
                    .map(|block| layers[block] * schedule.micro_batches() as u64)
                    .sum(),
                blocks: own.iter().map(|cut| named(&names, cut)).collect(),
                sent: schedule.sent_bytes(position, &costs),
                gradients_sent: buckets
                    .iter()
                    .map(|b| all_reduce_bytes(mesh.data, *b))
                    .sum(),
                buckets: buckets.len(),
                memory,
                stages,
            });
        }
        Ok(Self {
            headline: headline(config, &schedule, mesh, micro_batches.samples),
            positions,
            timeline,
            exposed,
            batch_size: config.training.batch_size,
            notes: notes(config, mesh, figures),
        })
    }
}

impl ModelInBlocks {
    /// The trainable parameters of the blocks that are `here`: running statistics learn nothing.
    fn trainable(&self, here: impl Fn(&usize) -> bool) -> Vec<BucketEntry> {
        let learns = |path: &str| !path.ends_with("running_mean") && !path.ends_with("running_var");
        let own = self.parameters.iter();
        own.filter(|(parameter, users)| users.iter().any(&here) && learns(&parameter.path))
            .map(|(parameter, _)| BucketEntry {
                path: parameter.path.clone(),
                id: ParamId::new(),
                shape: self.layers.shape(parameter),
                dtype: DType::F32,
            })
            .collect()
    }

    fn of_block(&self, block: usize) -> impl Iterator<Item = &ParameterPath> {
        let parameters = self.parameters.iter();
        let own = parameters.filter(move |(_, users)| users.contains(&block));
        own.map(|(parameter, _)| parameter)
    }

    /// Bytes of the parameters that the blocks that are `here` use.
    fn parameter_bytes(&self, here: impl Fn(&usize) -> bool) -> u64 {
        let entries = self.trainable(here);
        entries.iter().map(|entry| entry.num_bytes() as u64).sum()
    }

    /// By what stages are balanced.
    fn costs(&self, stages: &str, blocks: &[Block]) -> Vec<f64> {
        match stages {
            "even" => (0..blocks.len())
                .map(|block| self.parameter_bytes(|user| *user == block) as f64)
                .collect(),
            _ => blocks.iter().map(Block::total).collect(),
        }
    }
}

/// The blocks' costs for a micro-batch.
pub(super) fn blocks(
    config: &RunConfig,
    samples: usize,
    model: &ModelInBlocks,
    figures: &Figures,
) -> Vec<Block> {
    let every = config.training.activation_checkpointing.blocks_a_segment();
    let times = samples as f64;
    let bytes = |a_sample: u64| a_sample.saturating_mul(samples as u64);
    let mut input_bytes = 0;
    let link = figures.link;
    let all_reduce = |bytes| seconds_of_all_reduce(model.layers.ranks(), bytes, link);
    let block = |(index, figures): (usize, &super::figures::BlockFigures)| {
        let share = model.layers.share_of_work(model.of_block(index));
        let all_reduces = model.layers.all_reduces(model.of_block(index));
        let times = times * share;
        let kept = |a_sample: u64| (bytes(a_sample) as f64 * share).round() as u64;
        let backward = figures.backward() * times;
        let mut block = Block {
            backward_input: backward / 2.0,
            backward_weight: backward / 2.0,
            parameter_bytes: model.parameter_bytes(|user| *user == index),
            activation_bytes: kept(figures.activation_bytes),
            // The gradients of weights need what comes in and the gradient of what goes out.
            deferred_bytes: bytes(input_bytes + figures.output_bytes),
            output_bytes: bytes(figures.output_bytes),
            ..Block::of_forward(figures.name.clone(), figures.forward * times)
        };
        block.forward += all_reduces.outputs as f64 * all_reduce(bytes(figures.output_bytes));
        block.backward_input += all_reduces.inputs as f64 * all_reduce(bytes(input_bytes));
        if let Some(every) = every {
            // The first block of a segment keeps what comes in, the others nothing; all run again.
            block.activation_bytes = match index % every.get() {
                0 => bytes(input_bytes),
                _ => 0,
            };
            block.backward_input += block.forward;
        }
        input_bytes = figures.output_bytes;
        block
    };
    figures.blocks.iter().enumerate().map(block).collect()
}

/// With activation checkpointing, what the segment keeps that runs again.
fn working_set(config: &RunConfig, samples: usize, figures: &Figures) -> u64 {
    let ActivationCheckpointing::Blocks(every) = config.training.activation_checkpointing else {
        return 0;
    };
    let segments = figures.blocks.chunks(every.get());
    let kept = segments.map(|segment| {
        let blocks = segment.iter().map(|block| block.activation_bytes);
        blocks.fold(0, u64::saturating_add)
    });
    kept.max().unwrap_or(0).saturating_mul(samples as u64)
}

/// By block: bytes that a rank sends of a micro-batch to those with which it shares the block's layers.
fn layers_sent(samples: usize, model: &ModelInBlocks, figures: &Figures) -> Vec<u64> {
    let mut input_bytes = 0;
    let blocks = figures.blocks.iter().enumerate().map(|(index, block)| {
        let all_reduces = model.layers.all_reduces(model.of_block(index));
        let bytes = all_reduces.outputs as u64 * block.output_bytes
            + all_reduces.inputs as u64 * std::mem::replace(&mut input_bytes, block.output_bytes);
        all_reduce_bytes(model.layers.ranks(), bytes.saturating_mul(samples as u64))
    });
    blocks.collect()
}

pub(super) fn optimizer_state(config: &RunConfig) -> OptimizerState {
    let optimizer = &config.training.optimizer;
    match optimizer.kind {
        OptimizerKind::Adam | OptimizerKind::AdamW | OptimizerKind::Lamb => OptimizerState::ADAM,
        OptimizerKind::Sgd if optimizer.momentum.unwrap_or_default() > 0.0 => {
            OptimizerState::MOMENTUM
        }
        // The rows and columns of Adafactor are few.
        OptimizerKind::Sgd | OptimizerKind::Adafactor => OptimizerState::SGD,
        // Muon's is of matrices; what AdamW has of the rest is little.
        OptimizerKind::AdaGrad | OptimizerKind::Lion | OptimizerKind::Muon => {
            OptimizerState::MOMENTUM
        }
        OptimizerKind::RmsProp => {
            let centered = u32::from(optimizer.centered.unwrap_or_default());
            OptimizerState {
                copies: 3 + centered,
            }
        }
        OptimizerKind::Adan => OptimizerState { copies: 4 },
    }
}

/// The bytes of each bucket of the gradients of these blocks; none where nobody has the same.
fn buckets(
    config: &RunConfig,
    mesh: Mesh,
    model: &ModelInBlocks,
    own: &[Range<usize>],
) -> Vec<u64> {
    if mesh.data == 1 {
        return Vec::new();
    }
    let entries = model.trainable(|block| own.iter().any(|cut| cut.contains(block)));
    let all = entries.iter().map(BucketEntry::num_bytes).sum();
    let limits = config.training.ddp.bucket_limits().for_model(all);
    let plan = BucketPlan::in_reverse(&entries, limits);
    let bytes = |length: usize| (length * DType::F32.size()) as u64;
    plan.buckets()
        .iter()
        .map(|bucket| bytes(bucket.len()))
        .collect()
}

/// What a rank sends in an all-reduce of `bytes` over `ranks`: 2 (n-1)/n of them
/// (`crates/collectives/src/group/algorithm.rs`).
fn all_reduce_bytes(ranks: usize, bytes: u64) -> u64 {
    let ranks = ranks as u64;
    bytes.saturating_mul(2 * (ranks - 1)) / ranks
}

fn seconds_of_all_reduce(ranks: usize, bytes: u64, link: Link) -> f64 {
    2.0 * link.latency + all_reduce_bytes(ranks, bytes) as f64 / link.bytes_per_second
}

/// How long the backward pass continues during which gradients can travel: that of the last micro-batch.
fn hiding(schedule: &Schedule, position: usize, costs: &Costs) -> f64 {
    let stages = schedule.stages_of(position);
    stages.map(|stage| costs.stages[stage].backward()).sum()
}

/// `conv1`, `conv1 to fc1`
fn named(names: &[&str], cut: &Range<usize>) -> String {
    match (names.get(cut.start), names.get(cut.end.saturating_sub(1))) {
        (Some(first), Some(last)) if cut.len() > 1 => format!("{first} to {last}"),
        (Some(only), _) => (*only).to_string(),
        (None, _) => String::new(),
    }
}

fn headline(config: &RunConfig, schedule: &Schedule, mesh: Mesh, samples: usize) -> String {
    let ranks = counted(mesh.world_size(), "rank");
    let order = match mesh.pipeline {
        1 => String::new(),
        _ => format!(", {}", schedule.name()),
    };
    let micro_batches = match schedule.micro_batches() {
        1 => String::new(),
        count => format!("{count} micro-batches of "),
    };
    format!(
        "{} on {ranks}: {mesh}{order}; a global batch of {}, {micro_batches}{}",
        config.model,
        config.training.batch_size,
        counted(samples, "sample"),
    )
}

fn notes(config: &RunConfig, mesh: Mesh, figures: &Figures) -> Vec<String> {
    let mut notes = vec![format!("times and activations: {}", figures.origin)];
    if mesh.world_size() > 1 {
        let Link {
            latency,
            bytes_per_second,
        } = figures.link;
        notes.push(format!(
            "between ranks: {} per message, {} per second",
            seconds(latency),
            bytes(bytes_per_second as u64)
        ));
    }
    if mesh.tensor > 1 {
        notes.push(
            "where layers are sharded, a rank has the same part of times and activations as of parameters"
                .to_string(),
        );
    }
    if config.training.activation_checkpointing == ActivationCheckpointing::Burn {
        notes.push("what --activation-checkpointing burn saves is not counted".to_string());
    }
    notes.push(
        "not counted: the optimizer's time, reading data, workspace of operations".to_string(),
    );
    notes
}
