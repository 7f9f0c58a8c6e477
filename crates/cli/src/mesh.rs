//! `--mesh` and `--pipeline`: a model shared out over ranks.

use everburn_train::{Mesh, ParallelError, Parallelism};

use crate::arguments::{ParallelFlags, ScheduleFlag, Strategy, TrainArguments};
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
    let flags = &arguments.parallel;
    if let Some(pipeline) = flags.pipeline {
        config.parallel.mesh = Some(mesh_of_pipeline(pipeline, config.world_size())?);
    }
    let parallelism = resolve(config)?;
    let mesh = parallelism.mesh;
    if mesh.pipeline == 1 {
        refuse_flags_of_pipelines(arguments)?;
    } else if config.training.accumulate != 1 {
        return Err(CliError::usage_with_help(
            format!(
                "--accumulate {} and a pipeline do not go together",
                config.training.accumulate
            ),
            "a pipeline cuts its samples by --micro-batches",
        ));
    }
    if let (false, Some(count)) = (mesh.is_data_only(), config.training.virtual_ranks) {
        return Err(CliError::usage_with_help(
            format!("--virtual-ranks {count} and the mesh {mesh} do not go together"),
            "virtual ranks are for replicas: leave --mesh and --pipeline away, or --virtual-ranks",
        ));
    }
    if let (false, Some(_)) = (mesh.is_data_only(), config.training.hash_every) {
        return Err(CliError::usage_with_help(
            format!("--hash-every and the mesh {mesh} do not go together"),
            "no rank has the whole state: leave --hash-every away",
        ));
    }
    if let (false, Some(steps)) = (mesh.is_data_only(), config.training.sync.steps()) {
        return Err(CliError::usage_with_help(
            format!("--local-steps {steps} and the mesh {mesh} do not go together"),
            "local steps need the whole model on each rank: leave --mesh and --pipeline away, or --local-steps",
        ));
    }
    if !mesh.is_data_only() && config.training.ema.is_some() {
        return Err(CliError::usage_with_help(
            format!("--ema and the mesh {mesh} do not go together"),
            "no rank has the whole model: leave --ema away",
        ));
    }
    if let (false, Some(stage)) = (mesh.is_data_only(), config.training.ddp.shard) {
        return Err(CliError::usage_with_help(
            format!("--shard {stage} and the mesh {mesh} do not go together"),
            "a mesh cuts the model itself: leave --mesh and --pipeline away, or --shard",
        ));
    }
    if !mesh.is_data_only() && config.ranks.strategy != Strategy::Ddp {
        let name = match config.ranks.strategy {
            Strategy::ModelParallel => "model-parallel",
            _ => "data-parallel",
        };
        return Err(CliError::usage_with_help(
            format!("--strategy {name} and the mesh {mesh} do not go together"),
            "the ranks of a mesh are processes: leave --strategy away",
        ));
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
    let ParallelFlags {
        micro_batches,
        pipeline_schedule,
        chunks,
        stages,
        ..
    } = &arguments.parallel;
    if let Some(count) = micro_batches {
        return Err(CliError::usage_with_help(
            format!("--micro-batches {count} is for pipelines"),
            format!("without one, the same is --accumulate {count}; with one, add --pipeline 2"),
        ));
    }
    let old = arguments.training.schedule.iter();
    let old = old.filter_map(|flag| match flag {
        ScheduleFlag::Pipeline(kind) => Some(*kind),
        ScheduleFlag::LearningRate(_) => None,
    });
    let schedules = pipeline_schedule.iter().copied().chain(old);
    let schedule = schedules.map(|kind| format!("--pipeline-schedule {kind}"));
    let chunks = chunks.map(|chunks| format!("--chunks {chunks}"));
    let stages = stages.as_ref().map(|stages| format!("--stages {stages}"));
    match schedule.chain(chunks).chain(stages).next() {
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
    if config.training.sync_batch_norm {
        return Err(CliError::usage_with_help(
            "--sync-batch-norm and a model over several ranks do not go together",
            "leave it away: statistics are then those of each micro-batch",
        ));
    }
    let precision = config.training.precision;
    if precision.compute_type().low().is_some() {
        return Err(CliError::usage_with_help(
            format!("--precision {precision} and a model over several ranks do not go together"),
            "what ranks of one model hand each other is f32: use --precision f32, or replicas without --mesh",
        ));
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
            format!("use a pipeline of {blocks} ranks or fewer, or fewer chunks")
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
