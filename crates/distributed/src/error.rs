//! What can go wrong between replicas.

use everburn_collectives::group::CollectiveError;
use everburn_nn::{SyncError, TensorParallelError};

/// Why replicas of a model could not be made or kept equal.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DdpError {
    /// The exchange between the ranks failed. It is this error's source, by which a rank knows whether it is to
    /// blame.
    #[error("{0}")]
    Collective(#[from] CollectiveError),
    /// A module of the model cannot compute over the ranks.
    #[error(transparent)]
    Module(#[from] SyncError),
    /// The model's layers cannot be cut over the ranks.
    #[error(transparent)]
    TensorParallel(#[from] TensorParallelError),
    /// The ranks have built different models.
    #[error(
        "rank {rank} has built another model than rank 0: tensor {position} is {theirs} there and \
         {ours} on rank 0; check that every rank runs the same program with the same configuration"
    )]
    DifferentModels {
        /// The first rank that differs.
        rank: usize,
        /// The position of the first differing tensor in visiting order.
        position: usize,
        /// What rank 0 has there.
        ours: String,
        /// What the other rank has there.
        theirs: String,
    },
    /// The replicas are no longer equal.
    #[error(
        "the replicas have diverged: `{parameter}` of rank {rank} differs from rank 0's; \
         a rank has changed its parameters outside the synchronised step, or computes wrongly"
    )]
    Diverged {
        /// The first rank whose value differs.
        rank: usize,
        /// The path of the first parameter that differs.
        parameter: String,
    },
    /// A tensor could not be read from its device.
    #[error("`{parameter}` could not be read from its device: {reason}")]
    Read {
        /// The path of the parameter.
        parameter: String,
        /// The device's error.
        reason: String,
    },
    /// A type of number that cannot be exchanged.
    #[error("`{parameter}` has elements of type {dtype}, which cannot be averaged over ranks")]
    UnsupportedType {
        /// The path of the parameter.
        parameter: String,
        /// The type of its elements.
        dtype: String,
    },
    /// A parameter got a gradient after its gradient was complete.
    #[error(
        "`{parameter}` got a second gradient in one pass; call `backward` once for each model that \
         `watch` gives, and say `last` with the last one only"
    )]
    GradientTwice {
        /// The path of the parameter.
        parameter: String,
    },
    /// A gradient came after the step was finished.
    #[error(
        "a gradient of `{parameter}` came after `finish` was called; call `finish` when all backward \
         passes of the step have returned"
    )]
    LateGradient {
        /// The path of the parameter.
        parameter: String,
    },
    /// A watched model was not run backward.
    #[error(
        "backward pass {pass} of the step brought no gradient; run the model that `watch` gave \
         forward, and call `backward` on its loss, before `finish`"
    )]
    NoBackward {
        /// The number of the pass in its step, from 0.
        pass: usize,
    },
    /// The model is not the one whose replicas are kept equal.
    #[error(
        "this is not the model that `Ddp::new` was given: {difference}; make a new `Ddp` after \
         loading a record or after freezing or unfreezing parameters"
    )]
    OtherModel {
        /// The first difference.
        difference: String,
    },
    /// The model has no parameter that learns.
    #[error(
        "the model has no parameter that requires a gradient: is it on a device with autodiff, and \
         not frozen as a whole?"
    )]
    NothingToTrain,
    /// A step was begun while another was open.
    #[error("a step was begun before the one before it was finished: one at a time")]
    StepOpen,
    /// A gradient that was to be clipped is not a number.
    #[error(
        "the gradient of `{parameter}` has no finite norm, on any rank; the step was not made: lower \
         the learning rate, or look for the first loss that is not finite"
    )]
    GradientNotFinite {
        /// The path of the first such parameter.
        parameter: String,
    },
    /// The norm of a step's gradients was found not to be a number after the step had been made.
    #[error(
        "the gradients of step {step} have the norm {norm}, on all ranks, and the step was made with \
         them: lower the learning rate, or look for the first loss that is not finite; go on from a \
         checkpoint before that step"
    )]
    NormNotFinite {
        /// The norm.
        norm: f64,
        /// The training step.
        step: u64,
    },
    /// A bucket on a device could not be lent to the exchange, or not taken back.
    #[error("bucket {bucket} of the gradients cannot be exchanged on its device: {reason}")]
    DeviceMemory {
        /// The bucket's number.
        bucket: usize,
        /// The cause.
        reason: String,
    },
    /// A tensor is not on this rank's device.
    #[error(
        "{what} is on {found}, and this rank's device is {expected}: nothing of a rank may be anywhere \
         else, or another rank's GPU would compute for it"
    )]
    Elsewhere {
        /// The parameter, or the batch.
        what: String,
        /// Where it is.
        found: String,
        /// Where it belongs.
        expected: String,
    },
    /// The ranks cannot exchange gradients in the way that was asked for.
    #[error("gradients cannot be exchanged by `{wanted}`: {reason}")]
    Backend {
        /// What was asked for.
        wanted: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// A value of the configuration cannot be used.
    #[error("{0}")]
    Config(String),
    /// The micro-batches of a step are not what was announced.
    #[error(
        "the step was begun with {announced} samples on this rank, but its micro-batches had \
         {found}; hand `begin` the sum of what `watch` is told"
    )]
    MicroBatches {
        /// What [`crate::Ddp::begin`] was told.
        announced: usize,
        /// What the micro-batches had.
        found: usize,
    },
    /// A static model used other parameters than before.
    #[error(
        "`{parameter}` was {}, unlike on other ranks or in the first step; \
         `static_graph` is for models that use the \
         same parameters in every step on every rank: switch it off",
        if *.used { "used" } else { "not used" }
    )]
    StaticGraph {
        /// The path of the first parameter that differs.
        parameter: String,
        /// Whether it was used in this step.
        used: bool,
    },
    /// The thread that exchanges gradients is in trouble.
    #[error("the gradient reducer failed: {0}")]
    Reducer(String),
    /// Parameters that are cut over the ranks could not be gathered.
    #[error("parameters could not be gathered from the ranks: {0}")]
    Gather(String),
    /// No rank had a sample in this step.
    ///
    /// Ranks whose data end at different times take part with no samples until all of them get
    /// this: then everybody has come to the end.
    #[error("no rank had a sample in this step: there is no gradient to average")]
    NoSamples,
}

impl DdpError {
    /// Whether all ranks have found the same, and the next step can be made.
    pub(crate) const fn is_verdict_of_all(&self) -> bool {
        matches!(self, Self::NoSamples | Self::GradientNotFinite { .. })
    }
}
