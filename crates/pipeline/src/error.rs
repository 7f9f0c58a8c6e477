//! What can go wrong between the stages of a model.

use everburn_collectives::group::CollectiveError;
use everburn_nn::ActivationError;
use everburn_schedules::{Action, ScheduleError};

/// Why a model could not be run, or put together, over several ranks.
///
/// ```
/// # mod everburn { pub use everburn_pipeline as pipeline; }
/// use everburn::pipeline::PipelineError;
///
/// /// Whether another rank may be the cause.
/// fn comes_from_others(error: &PipelineError) -> bool {
///     matches!(error, PipelineError::Collective(_) | PipelineError::Received { .. })
/// }
/// assert!(!comes_from_others(&PipelineError::NotFinite));
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// A collective of the ranks failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// There is no such schedule.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// What came from another stage does not fit.
    #[error(
        "stage {stage} cannot use the message from rank {from} for micro-batch {micro_batch}: {reason}; \
         check that all ranks run the same model with the same stages"
    )]
    Received {
        /// The stage.
        stage: usize,
        /// The rank of the pipeline that sent it.
        from: usize,
        /// The micro-batch.
        micro_batch: usize,
        /// What is wrong.
        reason: String,
    },
    /// A tensor could not be read or used.
    #[error("{action}: {reason}")]
    Tensor {
        /// What the rank was doing.
        action: Action,
        /// What is wrong.
        reason: ActivationError,
    },
    /// A pass could not be finished: its result cannot be sent, or gradients of weights that had been put
    /// off cannot be computed.
    #[error("{action}: {reason}")]
    Pass {
        /// What the rank was doing.
        action: Action,
        /// What is wrong.
        reason: String,
    },
    /// A stage's output has no gradient, so nothing before it can learn.
    #[error(
        "{action}: it got no gradient; the stages after it do not use its output, or \
         pass no floating-point tensor on"
    )]
    NoGradient {
        /// What the rank was doing.
        action: Action,
    },
    /// A parameter could not be read from its device, or is not what was expected.
    #[error("the parameter {path}: {reason}")]
    Parameter {
        /// Its path.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// The norm of the gradients is not a number.
    #[error(
        "the norm of the gradients of all stages is not finite; the learning rate may be too high"
    )]
    NotFinite,
}
