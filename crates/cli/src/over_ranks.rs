//! A model that several ranks hold together, from a mesh to its training.

use std::ops::Range;

use crate::prelude::*;
use everburn_pipeline::Stages;
use everburn_train::{
    AnyData, AnyModel, ConfiguredTask, MeshParallelConfig, ModelBlocks, Parallelism, Samples,
    StageSplit,
};

use crate::error::CliError;
use crate::summary::{print_report, told_at_least};

/// Trains `model` on the ranks of `trainer`, as `parallelism` shares it out, and shows `samples`; `measured`
/// yields the stages of `--stages auto`, on rank 0.
pub(crate) fn fit(
    trainer: Trainer,
    task: &dyn ConfiguredTask,
    model: AnyModel,
    data: &AnyData,
    parallelism: &Parallelism,
    samples: Option<Samples<AnyModel>>,
    measured: impl FnOnce() -> Result<Vec<Range<usize>>, CliError>,
) -> Result<TrainingReport, CliError> {
    let stages = stages(&trainer, &task.blocks()?, parallelism, measured);
    let stages = stages.inspect_err(|error| trainer.group.abort(error.to_string()))?;
    let config = MeshParallelConfig {
        schedule: parallelism.schedule,
        micro_batches: match parallelism.mesh.pipeline {
            // Parts that follow each other on one rank are micro-batches too.
            1 => trainer.config.accumulate,
            _ => parallelism.micro_batches,
        },
        activation_checkpointing: trainer.config.activation_checkpointing,
        overlap: trainer.config.overlap,
        ..MeshParallelConfig::new(parallelism.mesh, stages)
    };
    let (group, device) = (trainer.group.clone(), trainer.device.clone());
    let over = task.over_ranks(group, &model, config, device)?;
    let trained = trainer.fit_over_ranks(model, data, samples, &over);
    let (_, report) = told_at_least(trained)?;
    drop(over);
    if trainer.group.rank() == 0 {
        print_report(&report, trainer.run.as_ref());
    }
    trainer.group.destroy().map_err(TrainError::from)?;
    Ok(report)
}

/// The stages, the same on all ranks: rank 0 measures the blocks, where that is asked for, and tells the
/// others.
fn stages(
    trainer: &Trainer,
    blocks: &ModelBlocks,
    parallelism: &Parallelism,
    measured: impl FnOnce() -> Result<Vec<Range<usize>>, CliError>,
) -> Result<Stages, CliError> {
    let group = &trainer.group;
    let names = blocks.names.iter().map(String::as_str).collect::<Vec<_>>();
    let config = |error: String| CliError::from(TrainError::Config(error));
    let count = parallelism.mesh.pipeline * parallelism.chunks;
    let cuts = match &parallelism.stages {
        StageSplit::Auto if count > 1 => {
            let mut starts = vec![0; count];
            if group.rank() == 0 {
                let cuts = measured()?;
                starts = cuts.iter().map(|cut| cut.start as i64).collect();
                // The model's own parameters are yet to be drawn, as on one device.
                trainer.seed();
            }
            group
                .broadcast_in_place(&mut starts, 0)
                .map_err(TrainError::from)?;
            let starts = starts.into_iter().map(|start| start as usize);
            let starts = starts.collect::<Vec<_>>();
            let ends = starts[1..].iter().copied().chain([names.len()]);
            starts
                .iter()
                .zip(ends)
                .map(|(from, to)| *from..to)
                .collect()
        }
        _ => {
            let cuts = parallelism.cuts(&names, &blocks.numbers);
            cuts.map_err(|error| config(error.to_string()))?
        }
    };
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
