//! How a model is laid over the ranks of a mesh.

use everburn_collectives::group::ProcessGroup;
use everburn_nn::TensorRule;
use everburn_pipeline::Stages;
use everburn_schedules::ScheduleKind;

use crate::config::activation_checkpointing::ActivationCheckpointing;
use crate::elastic::agreement::Agreement;
use crate::error::TrainError;
use crate::parallel::mesh::Mesh;

/// How a model is laid over the ranks of a mesh.
///
/// ```
/// # mod everburn { pub use everburn_pipeline as pipeline; pub use everburn_train as train; }
/// use everburn::pipeline::Stages;
/// use everburn::train::{Mesh, MeshParallelConfig};
///
/// // Four blocks in two stages.
/// let mesh = Mesh { data: 1, pipeline: 2, tensor: 1 };
/// let config = MeshParallelConfig::new(mesh, Stages::even(4, 2, 1).unwrap());
/// assert_eq!(config.micro_batches, 1);
/// ```
#[derive(Debug, Clone)]
pub struct MeshParallelConfig {
    /// The arrangement of the ranks.
    pub mesh: Mesh,
    /// Which blocks make which stage; one stage where the mesh has no pipeline.
    pub stages: Stages,
    /// By which schedule a step runs.
    pub schedule: ScheduleKind,
    /// Into how many parts a replica's share of a batch is cut.
    pub micro_batches: usize,
    /// How layers are cut over the tensor axis; not looked at where that has one rank.
    pub tensor_rules: Vec<TensorRule>,
    /// What backward passes compute again.
    pub activation_checkpointing: ActivationCheckpointing,
    /// Gradients travel while the last backward pass still runs.
    pub overlap: bool,
}

impl MeshParallelConfig {
    /// One micro-batch by 1F1B, no layer cut, nothing computed again.
    pub fn new(mesh: Mesh, stages: Stages) -> Self {
        Self {
            mesh,
            stages,
            schedule: ScheduleKind::OneForwardOneBackward,
            micro_batches: 1,
            tensor_rules: Vec::new(),
            activation_checkpointing: ActivationCheckpointing::None,
            overlap: true,
        }
    }

    /// Compares the configurations of all ranks, which all call it.
    pub(super) fn agree(&self, job: &ProcessGroup) -> Result<(), TrainError> {
        let Self {
            mesh,
            stages,
            schedule,
            micro_batches,
            tensor_rules,
            activation_checkpointing,
            overlap,
        } = self;
        Agreement::default()
            .and("mesh", mesh)
            .and("stages", format!("{stages:?}"))
            .and("schedule", schedule)
            .and("micro-batches", micro_batches)
            .and("layers that are cut", format!("{tensor_rules:?}"))
            .and("activation-checkpointing", activation_checkpointing)
            .and("overlap", overlap)
            .check(job)
    }
}
