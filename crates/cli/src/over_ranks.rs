//! A model that several ranks hold together, from a mesh to its training.

use std::fmt::Display;
use std::sync::Arc;

use everburn::burn::prelude::Device;
use everburn::nn::{Activation, InBlocks, Placement, TensorParallel, parameter_counts};
use everburn::pipeline::Stages;
use everburn::prelude::*;
use everburn::train::{
    MeshParallel, MeshParallelConfig, ModelOverRanks, Objective, Parallelism, Samples,
    Stages as Beginnings, Supervised,
};

use crate::error::CliError;
use crate::summary::print_report;

/// How often blocks are timed: the least counts.
const TIMINGS: usize = 3;

/// Trains `model` on the ranks of `trainer`, as `parallelism` shares it out, and shows `samples`; `sample`
/// makes the input on which blocks are timed.
pub(crate) fn fit<M, O, I>(
    trainer: Trainer,
    model: M,
    data: &TrainingData<I, (O::Input, O::Targets)>,
    parallelism: &Parallelism,
    samples: Option<Samples<Supervised<M, O>>>,
    sample: impl FnOnce(&Device) -> O::Input,
) -> Result<TrainingReport, CliError>
where
    M: TensorParallel<Input = O::Input, Output = O::Output> + Display + Sync + 'static,
    O: Objective<Input: Activation, Output: Activation>,
    I: Send + Sync + Clone + 'static,
{
    let stages = stages(&trainer, &model, parallelism, sample);
    let stages = stages.inspect_err(|error| trainer.group.abort(error.to_string()))?;
    let config = MeshParallelConfig {
        schedule: parallelism.schedule,
        micro_batches: match parallelism.mesh.pipeline {
            // Parts that follow each other on one rank are micro-batches too.
            1 => trainer.config.accumulate,
            _ => parallelism.micro_batches,
        },
        tensor_rules: model.tensor_rules(),
        max_gradient_norm: trainer.config.ddp.max_gradient_norm,
        activation_checkpointing: trainer.config.activation_checkpointing,
        overlap: trainer.config.overlap,
        ..MeshParallelConfig::new(parallelism.mesh, stages)
    };
    let (group, device) = (trainer.group.clone(), trainer.device.clone());
    let over = MeshParallel::<M, O>::new(group, &model, config, device)?;
    let over: Arc<dyn ModelOverRanks<_, _>> = Arc::new(over);
    let model = Supervised::<M, O>::of_blocks(model);
    let (_, report) = trainer.fit_over_ranks(model, data, samples, &over)?;
    drop(over);
    if trainer.group.rank() == 0 {
        print_report(&report, trainer.run.as_ref());
    }
    trainer.group.destroy().map_err(TrainError::from)?;
    Ok(report)
}

/// The stages, the same on all ranks: rank 0 times the blocks, where that is asked for, and tells the
/// others.
fn stages<M: InBlocks>(
    trainer: &Trainer,
    model: &M,
    parallelism: &Parallelism,
    sample: impl FnOnce(&Device) -> M::Input,
) -> Result<Stages, CliError> {
    let group = &trainer.group;
    let blocks = model.blocks();
    let names = blocks.names();
    let mut costs = match &parallelism.stages {
        Beginnings::Auto if group.rank() == 0 => times(model, &trainer.device, sample)?,
        Beginnings::Auto => vec![0.0; names.len()],
        Beginnings::Even | Beginnings::Named(_) => parameter_counts(model),
    };
    group
        .broadcast_in_place(&mut costs, 0)
        .map_err(TrainError::from)?;
    let config = |error: String| CliError::from(TrainError::Config(error));
    let cuts = parallelism.cuts(&names, &costs);
    let cuts = cuts.map_err(|error| config(error.to_string()))?;
    if group.rank() == 0 {
        for (stage, cut) in cuts.iter().enumerate() {
            tracing::info!(
                stage,
                blocks = names[cut.clone()].join(" "),
                "a stage of the pipeline"
            );
        }
    }
    let stages = Stages::new(cuts, names.len(), parallelism.mesh.pipeline);
    stages.map_err(|error| config(error.to_string()))
}

/// Seconds of each block's forward pass. They are measured on a copy: lazy weights are drawn there.
fn times<M: InBlocks>(
    model: &M,
    device: &Device,
    sample: impl FnOnce(&Device) -> M::Input,
) -> Result<Vec<f64>, CliError> {
    let failed =
        |error: everburn::nn::PlacementError| CliError::from(TrainError::Device(error.to_string()));
    let split = Placement::even(model, std::slice::from_ref(device)).map_err(failed)?;
    let split = split.split(model).map_err(failed)?;
    let times = split.forward_costs(&model.valid(), sample(device), TIMINGS);
    times.map_err(failed)
}
