//! `--mesh` and `--pipeline`: a model shared out over ranks.

use everburn_record::units::counted;
use everburn_train::{Mesh, ParallelError, Parallelism};

use crate::arguments::{ScheduleFlag, TrainArguments};
use crate::config::RunConfig;
use crate::error::CliError;

/// Puts the mesh of `--pipeline` into the configuration, and refuses flags that say nothing here. What
/// the configuration itself asks for is checked by [`ParallelConfig::resolve`], which this calls.
///
/// [`ParallelConfig::resolve`]: everburn_train::ParallelConfig::resolve
pub(crate) fn settle(
    config: &mut RunConfig,
    arguments: &TrainArguments,
) -> Result<Parallelism, CliError> {
    if let Some(pipeline) = arguments.pipeline {
        config.parallel.mesh = Some(mesh_of_pipeline(pipeline, config.world_size())?);
    }
    let parallelism = resolve(config)?;
    if parallelism.mesh.pipeline == 1 {
        refuse_flags_of_pipelines(arguments)?;
    }
    Ok(parallelism)
}

fn mesh_of_pipeline(pipeline: usize, world_size: usize) -> Result<Mesh, CliError> {
    if pipeline == 0 {
        return Err(CliError::usage("--pipeline must be at least 1"));
    }
    if !world_size.is_multiple_of(pipeline) {
        return Err(CliError::usage_with_help(
            format!("--pipeline {pipeline} does not divide the {world_size} ranks that there are"),
            format!(
                "use --ranks {pipeline}, or {} for two replicas",
                pipeline.saturating_mul(2)
            ),
        ));
    }
    Ok(Mesh {
        data: world_size / pipeline,
        pipeline,
        tensor: 1,
    })
}

/// Flags that a file may hold for another mesh, but that nobody gives without a pipeline.
fn refuse_flags_of_pipelines(arguments: &TrainArguments) -> Result<(), CliError> {
    let keys = &arguments.keys;
    if let Some(count) = keys.get("parallel.micro_batches") {
        return Err(CliError::usage_with_help(
            format!("--micro-batches {count} is for pipelines"),
            format!("without one, the same is --accumulate {count}; with one, add --pipeline 2"),
        ));
    }
    let old = arguments.schedule.iter().find_map(|flag| match flag {
        ScheduleFlag::Pipeline(kind) => Some(format!("--pipeline-schedule {kind}")),
        ScheduleFlag::LearningRate(_) => None,
    });
    let paths = ["parallel.schedule", "parallel.chunks", "parallel.stages"];
    let flag = old.or_else(|| paths.iter().find_map(|path| keys.quoted(path)));
    match flag {
        None => Ok(()),
        Some(flag) => Err(CliError::usage_with_help(
            format!("{flag} is for pipelines"),
            "add --pipeline 2, or leave it out",
        )),
    }
}

/// The configured parallelism, with every number decided.
pub(crate) fn resolve(config: &RunConfig) -> Result<Parallelism, CliError> {
    let resolved = config
        .parallel
        .resolve(config.world_size(), config.training.batch_size);
    resolved.map_err(|error| refusal(&error))
}

/// What is to be done where the model is shared out over ranks; `None` where each has a whole one. The
/// blocks of the model are checked, and nothing is drawn or started.
pub(crate) fn check(config: &RunConfig) -> Result<Option<Parallelism>, CliError> {
    let parallelism = resolve(config)?;
    if parallelism.mesh.is_data_only() {
        return Ok(None);
    }
    let blocks = config.task()?.blocks()?;
    let names = blocks.names.iter().map(String::as_str);
    let checked = parallelism.check_blocks(&names.collect::<Vec<_>>());
    checked.map_err(|error| match refusal(&error) {
        CliError::Usage { message, help } => CliError::Usage {
            message: format!("{}: {message}", config.model),
            help,
        },
        other => other,
    })?;
    check_layers(config, parallelism.mesh)?;
    Ok(Some(parallelism))
}

/// Checks that the layers of the model can be cut over the tensor axis.
fn check_layers(config: &RunConfig, mesh: Mesh) -> Result<(), CliError> {
    if mesh.tensor == 1 {
        return Ok(());
    }
    let model = &config.model;
    match config
        .task()?
        .shards(mesh.tensor)
        .map(|shards| shards.len())
    {
        Ok(0) => Err(CliError::usage_with_help(
            format!("{model} has no layers that can be cut, as the mesh {mesh} asks for"),
            "use tensor=1, and more ranks of another axis",
        )),
        Ok(_) => Ok(()),
        Err(error) => Err(CliError::usage_with_help(
            format!("{model} and the mesh {mesh}: {error}"),
            error.help().unwrap_or("use another tensor=T"),
        )),
    }
}

/// The same error, with what to do.
fn refusal(error: &ParallelError) -> CliError {
    let help = match error {
        ParallelError::WorldSize { mesh, .. } => format!(
            "use --ranks {}, or axes whose product is the number of ranks",
            mesh.world_size()
        ),
        ParallelError::Chunks { .. } => {
            "leave --chunks away, or add --pipeline-schedule interleaved".to_string()
        }
        ParallelError::Replicas {
            batch_size,
            replicas,
        } => {
            let fitting = batch_size.div_ceil(*replicas).saturating_mul(*replicas);
            format!("use --batch-size {fitting}")
        }
        ParallelError::MicroBatches {
            nearest: Some(nearest),
            ..
        } => format!("use --micro-batches {nearest}, or another --batch-size"),
        ParallelError::MicroBatches { nearest: None, .. } => {
            "use --micro-batches 1 or more".to_string()
        }
        ParallelError::TooFewBlocks { blocks, .. } => {
            format!(
                "use a pipeline of {} or fewer, or fewer chunks",
                counted(*blocks, "rank")
            )
        }
        ParallelError::StageCount { .. } => {
            "name the blocks that begin a stage, or use --stages auto".to_string()
        }
        ParallelError::Stage { blocks, .. } => format!("the blocks are {}", blocks.join(", ")),
        _ => "see --mesh, --micro-batches, --pipeline-schedule and --chunks in train --help"
            .to_string(),
    };
    CliError::usage_with_help(error.to_string(), help)
}

#[cfg(test)]
mod tests;
