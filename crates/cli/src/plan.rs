//! `train --plan`: what a run would take, before anything of it is allocated.

mod estimate;
mod figures;
mod layers;
mod measure;

use std::ops::Range;
use std::process::ExitCode;

use crate::devices;
use everburn_nn::ParameterPath;
use everburn_schedules::{MemoryLimit, balance};
use everburn_train::{Balance, Parallelism, TrainError};

use self::estimate::Estimate;
use self::figures::Figures;
use self::layers::SharedLayers;
use crate::arguments::{Strategy, TrainArguments};
use crate::config::RunConfig;
use crate::error::CliError;
use crate::{mesh, rank};

/// The most samples that blocks are measured on: a sample's share hardly changes with more.
const MOST_SAMPLES: usize = 8;

/// Prints the plan of the run that `config` asks for.
pub(crate) fn run(config: &RunConfig, arguments: &TrainArguments) -> Result<ExitCode, CliError> {
    devices::check(&config.ranks.devices, config.ranks.ranks)?;
    if config.ranks.strategy == Strategy::ModelParallel {
        return Err(CliError::usage_with_help(
            "--plan is for models whose ranks each have one device",
            "--strategy model-parallel cuts a model over the devices of one rank; plan it with \
             --pipeline in place of it",
        ));
    }
    mesh::check(config)?;
    let micro_batches = MicroBatches::of(config)?;
    let model = ModelInBlocks::of(config, micro_batches.parallelism.mesh.tensor)?;
    let figures = match &arguments.plan_figures {
        Some(path) => Figures::read(path, &model.names)?,
        None => {
            limit_threads(config)?;
            let samples = micro_batches.samples.clamp(1, MOST_SAMPLES);
            measure::measure(config, samples)?
        }
    };
    let estimate = Estimate::of(config, &micro_batches, &model, &figures)?;
    say!("{}", estimate.to_string().trim_end());
    Ok(ExitCode::SUCCESS)
}

/// The stages of `--stages auto`: every block is measured by itself, and the slowest stage is made as fast
/// as it can be while each fits into the memory that a rank has.
///
/// It draws parameters, so whoever draws some afterwards seeds anew.
pub(crate) fn automatic_stages(config: &RunConfig) -> Result<Vec<Range<usize>>, CliError> {
    let micro_batches = MicroBatches::of(config)?;
    let parallelism = &micro_batches.parallelism;
    let model = ModelInBlocks::of(config, parallelism.mesh.tensor)?;
    let samples = micro_batches.samples.clamp(1, MOST_SAMPLES);
    let figures = measure::measure(config, samples)?;
    let blocks = estimate::blocks(config, micro_batches.samples, &model, &figures);
    let schedule = parallelism.schedule()?;
    let optimizer = estimate::optimizer_state(config);
    let limit =
        memory_of_a_rank(config).map(|bytes| MemoryLimit::of_schedule(&schedule, bytes, optimizer));
    let cuts = balance(&blocks, schedule.stages(), limit.as_ref());
    cuts.map_err(|error| TrainError::Config(error.to_string()).into())
}

/// How much memory a rank may count on if all are on the CPU. Stages on GPUs have no limit.
fn memory_of_a_rank(config: &RunConfig) -> Option<u64> {
    let devices = &config.ranks.devices;
    if devices.iter().any(|device| device != "flex") {
        return None;
    }
    devices::free_memory(devices, 0, config.ranks.ranks)
}

/// What a rank's step consists of.
struct MicroBatches {
    parallelism: Parallelism,
    /// How many samples each has, in a step of the whole global batch.
    samples: usize,
}

impl MicroBatches {
    fn of(config: &RunConfig) -> Result<Self, CliError> {
        let mut parallelism = mesh::resolve(config)?;
        if parallelism.mesh.pipeline == 1 {
            // Parts that follow each other on one rank are micro-batches too.
            parallelism.micro_batches = config.training.accumulate;
        }
        let batch = config.training.batch_size;
        let share = match &config.training.balance {
            // That of the rank with the most.
            Balance::Weights(weights) => weights.counts(batch).into_iter().max().unwrap_or(batch),
            Balance::Equal | Balance::Auto => batch.div_ceil(parallelism.mesh.data),
        };
        Ok(Self {
            samples: share.div_ceil(parallelism.micro_batches),
            parallelism,
        })
    }
}

/// A model as far as it is known before it is drawn.
struct ModelInBlocks {
    /// The blocks.
    names: Vec<String>,
    /// The parameters, each with the blocks that use it.
    parameters: Vec<(ParameterPath, Vec<usize>)>,
    /// Those of which a rank has a part.
    layers: SharedLayers,
}

impl ModelInBlocks {
    /// The model, whose layers `tensor` ranks share.
    fn of(config: &RunConfig, tensor: usize) -> Result<Self, CliError> {
        let task = config.task()?;
        let shards = match tensor {
            1 => Vec::new(),
            ranks => task.shards(ranks)?,
        };
        let blocks = task.blocks()?;
        Ok(Self {
            names: blocks.names,
            parameters: blocks.parameters,
            layers: SharedLayers::new(shards),
        })
    }
}

/// A rank has some of the machine's cores only, and is measured on as many.
fn limit_threads(config: &RunConfig) -> Result<(), CliError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let usual = (cores / config.ranks.ranks).max(1);
    let threads = config.ranks.threads_per_rank.unwrap_or(usual);
    rank::use_threads(threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(line: &str) -> Option<u64> {
        memory_of_a_rank(&RunConfig::resolve(&TrainArguments::of(line), None).unwrap())
    }

    #[test]
    fn ranks_on_the_host_share_what_the_limits_of_their_process_leave() {
        assert_eq!(memory("mnist --gpus 2"), None);
        let (Some(rank), Some(host)) = (memory("mnist --ranks 4"), devices::host_memory()) else {
            assert!(!std::path::Path::new("/proc/meminfo").exists());
            everburn_tests::skip("the memory of a stage", "there is no /proc/meminfo");
            return;
        };
        // A quarter. Other processes take and give back memory meanwhile.
        assert!(rank < host / 2, "{rank} {host}");
    }
}
