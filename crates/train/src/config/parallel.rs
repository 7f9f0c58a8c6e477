//! How a model is shared out over ranks.

mod stage_split;

use std::ops::Range;

use clap::Args;
use everburn_nn::balanced_parts;
use everburn_schedules::{Schedule, ScheduleError, ScheduleKind};
use serde::{Deserialize, Serialize};

pub use self::stage_split::StageSplit;
use crate::parallel::mesh::Mesh;

/// How many micro-batches there are for each rank of a pipeline, unless another number is given: with
/// four the bubble of `1f1b` is below a fifth.
const MICRO_BATCHES_A_RANK: usize = 4;

/// How many chunks a rank has in the schedule `interleaved`, unless another number is given.
const CHUNKS: usize = 2;

/// The part of a run's configuration that says how a model is shared out over ranks. What is absent
/// is decided by [`ParallelConfig::resolve`].
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::ParallelConfig;
///
/// let config: ParallelConfig = toml::from_str("mesh = 'pipeline=2'\nschedule = 'zb-h1'").unwrap();
/// let parallelism = config.resolve(2, 64).unwrap();
/// assert_eq!((parallelism.mesh.pipeline, parallelism.micro_batches), (2, 8));
/// assert_eq!(parallelism.num_stages(), 2);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Model over ranks")]
#[serde(deny_unknown_fields, default)]
pub struct ParallelConfig {
    /// The device mesh, as in data=2,pipeline=2,tensor=1: replicas of the model, stages of a pipeline per replica, ranks
    /// per layer [default: data=RANKS].
    #[arg(long, value_name = "AXES")]
    pub mesh: Option<Mesh>,
    /// The number of micro-batches per step of a replica's pipeline [default: 4 per rank of the pipeline, or the next
    /// smaller divisor of the local batch].
    #[arg(long, value_name = "M")]
    pub micro_batches: Option<usize>,
    /// The order of the passes in a pipeline: gpipe, 1f1b, interleaved or zb-h1 [default: 1f1b].
    #[arg(long = "pipeline-schedule", value_name = "SCHEDULE")]
    pub schedule: Option<ScheduleKind>,
    /// The number of stages per rank with --pipeline-schedule interleaved [default: 2].
    #[arg(long, value_name = "V")]
    pub chunks: Option<usize>,
    /// The stages: auto (balanced by measured times within a rank's memory), even (by numbers of parameters), or the
    /// first block of each further stage, as in conv2,fc1 [default: auto].
    #[arg(long, value_name = "WHERE")]
    pub stages: StageSplit,
}

impl ParallelConfig {
    /// Decides what is left open, for `world_size` ranks that read `batch_size` samples per step.
    ///
    /// # Errors
    /// [`ParallelError`] if numbers do not go together.
    pub fn resolve(
        &self,
        world_size: usize,
        batch_size: usize,
    ) -> Result<Parallelism, ParallelError> {
        let mesh = self.mesh.unwrap_or(Mesh::of_replicas(world_size));
        if mesh.world_size() != world_size {
            return Err(ParallelError::WorldSize { mesh, world_size });
        }
        let schedule = self.schedule.unwrap_or(ScheduleKind::OneForwardOneBackward);
        let mut resolved = Parallelism {
            mesh,
            micro_batches: 1,
            schedule,
            chunks: 1,
            stages: self.stages.clone(),
        };
        if mesh.pipeline == 1 {
            return Ok(resolved);
        }
        resolved.chunks = match (self.chunks, schedule.has_chunks()) {
            (Some(chunks), true) => chunks,
            (None, true) => CHUNKS,
            (Some(chunks), false) if chunks != 1 => {
                return Err(ParallelError::Chunks { chunks, schedule });
            }
            (_, false) => 1,
        };
        let share = batch_size / mesh.data;
        if share * mesh.data != batch_size {
            let replicas = mesh.data;
            return Err(ParallelError::Replicas {
                batch_size,
                replicas,
            });
        }
        let most = mesh.pipeline.saturating_mul(MICRO_BATCHES_A_RANK);
        let divides = |count: &usize| *count > 0 && share.is_multiple_of(*count);
        resolved.micro_batches = match self.micro_batches {
            Some(count) if divides(&count) => count,
            Some(micro_batches) => {
                return Err(ParallelError::MicroBatches {
                    micro_batches,
                    share,
                    nearest: (1..=micro_batches.min(share)).rev().find(divides),
                });
            }
            None => (1..=most.min(share)).rev().find(divides).unwrap_or(1),
        };
        resolved.schedule()?;
        Ok(resolved)
    }
}

/// How a model is shared out over ranks, with every number decided: made by
/// [`ParallelConfig::resolve`].
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::{ParallelConfig, StageSplit};
///
/// let config = ParallelConfig { mesh: Some("pipeline=2".parse()?), ..Default::default() };
/// let parallelism = config.resolve(2, 32)?;
/// assert_eq!(parallelism.schedule()?.actions(0).len(), 2 * 8);
/// let cuts = parallelism.cuts(&["conv1", "conv2", "fc1"], &[1.0, 1.0, 2.0])?;
/// assert_eq!(cuts, [0..2, 2..3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parallelism {
    /// How the ranks are arranged.
    pub mesh: Mesh,
    /// Into how many parts a pipeline cuts its replica's share of a global batch.
    pub micro_batches: usize,
    /// The order of a pipeline's passes.
    pub schedule: ScheduleKind,
    /// How many stages each rank of a pipeline has.
    pub chunks: usize,
    /// Where the stages of a pipeline begin.
    pub stages: StageSplit,
}

impl Parallelism {
    /// How many stages the model is cut into.
    pub const fn num_stages(&self) -> usize {
        self.mesh.pipeline.saturating_mul(self.chunks)
    }

    /// What each rank of a pipeline does in a step.
    ///
    /// # Errors
    /// [`ScheduleError`] if there are no chunks, or far more passes than any training has.
    pub fn schedule(&self) -> Result<Schedule, ScheduleError> {
        Schedule::new(
            self.schedule,
            self.mesh.pipeline,
            self.micro_batches,
            self.chunks,
        )
    }

    /// Which of the blocks called `names` each stage has. `costs` has a number for each block, by which
    /// [`StageSplit::Auto`] (seconds) and [`StageSplit::Even`] (parameters) balance; [`StageSplit::Named`] do not
    /// look at it.
    ///
    /// # Errors
    /// [`ParallelError`] if there are fewer blocks than stages, a name is no block's, or a cost is no
    /// number.
    pub fn cuts(&self, names: &[&str], costs: &[f64]) -> Result<Vec<Range<usize>>, ParallelError> {
        let stages = self.num_stages();
        self.check_blocks(names)?;
        match &self.stages {
            StageSplit::Named(starts) => Ok(named_cuts(starts, names)),
            StageSplit::Auto | StageSplit::Even => balanced_parts(costs, stages)
                .map_err(|error| ParallelError::Costs(error.to_string())),
        }
    }

    /// Checks that blocks of these names can be cut as [`Parallelism::cuts`] is to cut them, before
    /// anything is measured.
    ///
    /// # Errors
    /// [`ParallelError`] if there are fewer blocks than stages, or a name is no block's.
    pub fn check_blocks(&self, names: &[&str]) -> Result<(), ParallelError> {
        let (stages, blocks) = (self.num_stages(), names.len());
        if stages > blocks {
            return Err(ParallelError::TooFewBlocks {
                stages,
                blocks,
                ranks: self.mesh.pipeline,
                chunks: self.chunks,
            });
        }
        let StageSplit::Named(starts) = &self.stages else {
            return Ok(());
        };
        if starts.len() + 1 != stages {
            return Err(ParallelError::StageCount {
                named: starts.len(),
                stages,
            });
        }
        let mut before = 0;
        for start in starts {
            let refuse = |reason| ParallelError::Stage {
                name: start.clone(),
                reason,
                blocks: names.iter().map(ToString::to_string).collect(),
            };
            match names.iter().position(|name| name == start) {
                None => return Err(refuse("is no block of the model")),
                Some(0) => return Err(refuse("begins the first stage anyway")),
                Some(block) if block <= before => {
                    return Err(refuse("does not come after the stage before it"));
                }
                Some(block) => before = block,
            }
        }
        Ok(())
    }
}

/// The stages that begin at the first block and at those called `starts`, which are there and in order.
fn named_cuts(starts: &[String], names: &[&str]) -> Vec<Range<usize>> {
    let position = |start: &String| names.iter().position(|name| name == start);
    let begins = std::iter::once(0).chain(starts.iter().filter_map(position));
    let begins = begins.collect::<Vec<_>>();
    let ends = begins[1..].iter().copied().chain([names.len()]);
    begins
        .iter()
        .zip(ends)
        .map(|(from, to)| *from..to)
        .collect()
}

/// Why a model cannot be shared out as it was asked for.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::ParallelConfig;
///
/// let config = ParallelConfig { mesh: Some("data=2,pipeline=2".parse()?), ..Default::default() };
/// let error = config.resolve(3, 64).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "the mesh data=2,pipeline=2,tensor=1 has 4 places, and there are 3 ranks"
/// );
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParallelError {
    /// A mesh of another size.
    #[error("the mesh {mesh} has {} places, and there are {world_size} ranks", mesh.world_size())]
    WorldSize {
        /// The mesh.
        mesh: Mesh,
        /// How many ranks there are.
        world_size: usize,
    },
    /// More than one chunk, with a schedule that has one.
    #[error(
        "`parallel.chunks = {chunks}` goes with `parallel.schedule = interleaved` only, not with {schedule}"
    )]
    Chunks {
        /// How many were asked for.
        chunks: usize,
        /// The schedule.
        schedule: ScheduleKind,
    },
    /// Replicas that would get unequal shares.
    #[error(
        "a global batch of {batch_size} samples cannot be shared evenly by the pipelines of {replicas} \
         replicas"
    )]
    Replicas {
        /// How many samples all ranks read a step.
        batch_size: usize,
        /// How many replicas there are.
        replicas: usize,
    },
    /// Micro-batches that would be of unequal size.
    #[error(
        "{micro_batches} micro-batches do not divide a replica's local batch of {share} samples"
    )]
    MicroBatches {
        /// How many were asked for.
        micro_batches: usize,
        /// How many samples a replica reads a step.
        share: usize,
        /// The next smaller number that divides them, if there is one.
        nearest: Option<usize>,
    },
    /// More stages than blocks.
    #[error(
        "a model of {blocks} blocks cannot be cut into {stages} stages (pipeline {ranks}, chunks {chunks})"
    )]
    TooFewBlocks {
        /// How many stages there would be.
        stages: usize,
        /// How many blocks the model has.
        blocks: usize,
        /// The number of ranks of the pipeline.
        ranks: usize,
        /// How many stages each of them has.
        chunks: usize,
    },
    /// Names of more or fewer stages than there are.
    #[error(
        "`parallel.stages` names {named} of the blocks that begin a stage, but {stages} stages need {}: all but \
         the first",
        stages - 1
    )]
    StageCount {
        /// How many were named.
        named: usize,
        /// How many stages there are.
        stages: usize,
    },
    /// A name at which no stage can begin.
    #[error("`{name}` of `parallel.stages` {reason}")]
    Stage {
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
        /// What the blocks of the model are called.
        blocks: Vec<String>,
    },
    /// Costs by which nothing can be balanced.
    #[error("{0}")]
    Costs(String),
    /// Numbers of which there is no schedule.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
}

#[cfg(test)]
mod tests;
