//! Errors of data parallelism.

use everburn_collectives::group::CollectiveError;
use everburn_nn::{SyncError, TensorParallelError};

/// Why replicas of a model could not be made or kept equal.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::{DdpConfig, DdpError};
///
/// let config = DdpConfig { bucket_bytes: 0, ..DdpConfig::default() };
/// let error = config.validate().unwrap_err();
/// assert!(matches!(error, DdpError::Config(text) if text.contains("bucket_bytes")));
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum DdpError {
    /// A collective of the ranks failed. Its error is this one's source, which shows whether this rank caused it.
    #[error("{0}")]
    Collective(#[from] CollectiveError),
    /// A module of the model cannot compute over the ranks.
    #[error(transparent)]
    Module(#[from] SyncError),
    /// The model's layers cannot be sharded over the ranks.
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
        /// The tensor of rank 0 there.
        ours: String,
        /// The tensor of the other rank there.
        theirs: String,
    },
    /// An object could not travel between the ranks.
    #[error(
        "the object of rank {rank} cannot be exchanged: {reason}; check that all ranks run the same build of Everburn"
    )]
    Object {
        /// Whose it is.
        rank: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// Saved running statistics of ranks are those of others.
    #[error("the running statistics of the ranks cannot be restored: {reason}")]
    OtherBuffers {
        /// What differs.
        reason: String,
    },
    /// The replicas are no longer equal.
    #[error(
        "the replicas have diverged: `{parameter}` of rank {rank} differs from rank 0's; \
         a rank has changed its parameters outside the synchronised step, or computes wrong results"
    )]
    Diverged {
        /// The first rank whose value differs.
        rank: usize,
        /// The path of the first parameter that differs.
        parameter: String,
    },
    /// A first value could not be read.
    #[error("the first value of `{parameter}` could not be read: {reason}")]
    InitialValue {
        /// The path of the parameter.
        parameter: String,
        /// What is wrong.
        reason: String,
    },
    /// The ranks have read other first values.
    #[error(
        "rank {rank} has read another value of `{parameter}` than rank 0: give all ranks the same file of weights"
    )]
    DifferentInitialValues {
        /// The first rank that differs.
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
    /// A dtype that cannot be exchanged.
    #[error("`{parameter}` has elements of type {dtype}, which cannot be averaged over ranks")]
    UnsupportedType {
        /// The path of the parameter.
        parameter: String,
        /// The type of its elements.
        dtype: String,
    },
    /// A parameter got a gradient after its gradient was complete.
    #[error(
        "`{parameter}` got a second gradient in one pass; call `backward` once for each model from `with_hooks_no_sync`, and use \
         `with_hooks` only for the last one"
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
    /// `backward` was not called for a watched model.
    #[error(
        "backward pass {pass} of the step produced no gradient; run the model from `with_hooks` forward and call \
         `backward` on its loss before `finish`"
    )]
    NoBackward {
        /// The number of the pass in its step, from 0.
        pass: usize,
    },
    /// The model is not the one passed to [`crate::Ddp::new`].
    #[error(
        "this is not the model passed to `Ddp::new`: {difference}; make a new `Ddp` after loading a record or after \
         freezing or unfreezing parameters"
    )]
    OtherModel {
        /// The first difference.
        difference: String,
    },
    /// The optimizer has changed one place of a tied parameter only.
    #[error(
        "`{parameter}` is a tied parameter, and its places hold different values: optimizers change only the first; call \
         `model = ddp.tie(optimizer.step(..))`"
    )]
    Untied {
        /// The path of the place that was left behind.
        parameter: String,
    },
    /// The model has no trainable parameter.
    #[error(
        "the model has no parameter that requires a gradient: is it on a device with autodiff, and \
         not frozen as a whole?"
    )]
    NothingToTrain,
    /// A step was begun while another was open.
    #[error("a step was begun before the previous one was finished: run one at a time")]
    StepOpen,
    /// A gradient to clip is not finite.
    #[error(
        "the gradient of `{parameter}` has no finite norm, on any rank; the step was not made: lower \
         the learning rate, or look for the first loss that is not finite"
    )]
    GradientNotFinite {
        /// The path of the first such parameter.
        parameter: String,
    },
    /// The norm of a step's gradients is not finite, found after the step was made.
    #[error(
        "the gradients of step {step} have the norm {norm}, on all ranks, and the step was made with \
         them: lower the learning rate, or look for the first loss that is not finite; resume from a \
         checkpoint before that step"
    )]
    NormNotFinite {
        /// The norm.
        norm: f64,
        /// The training step.
        step: u64,
    },
    /// A tensor on a device could not be lent to the exchange, or not taken back.
    #[error("{what} cannot be exchanged on its device: {reason}")]
    DeviceMemory {
        /// Which tensor: `bucket 3 of the gradients`.
        what: String,
        /// The cause.
        reason: String,
    },
    /// A tensor is not on this rank's device.
    #[error(
        "{what} is on {found}, and this rank's device is {expected}: all tensors must be on the rank's device"
    )]
    Elsewhere {
        /// The parameter, or the batch.
        what: String,
        /// Where it is.
        found: String,
        /// The rank's device.
        expected: String,
    },
    /// The requested gradient backend cannot be used.
    #[error("gradients cannot be exchanged by `{wanted}`: {reason}")]
    Backend {
        /// The requested backend.
        wanted: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// A value of the configuration cannot be used.
    #[error("{0}")]
    Config(String),
    /// The micro-batches of a step have another number of samples than announced.
    #[error(
        "the step was begun with {announced} samples on this rank, but {}",
        match *.found {
            0 => "no model of `with_hooks_no_sync` or `with_hooks` was used in it: compute the loss with the model that these return, not \
                  with the one that was passed to them"
                .to_owned(),
            found => format!(
                "its micro-batches had {found}; pass `begin` the sum of the samples passed to `with_hooks`"
            ),
        }
    )]
    MicroBatches {
        /// The samples passed to [`crate::Ddp::begin`].
        announced: usize,
        /// The samples of the micro-batches.
        found: usize,
    },
    /// A step with `static_graph` used other parameters than before.
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
    /// The thread that exchanges gradients, or fragments of local steps, has failed.
    #[error("the thread that exchanges with other ranks failed: {0}")]
    Reducer(String),
    /// Sharded parameters could not be gathered.
    #[error("parameters could not be gathered from the ranks: {0}")]
    Gather(String),
    /// No rank had a sample in this step.
    ///
    /// Ranks whose data end at different times take part without samples until all of them get this error: then all
    /// ranks are at the end.
    #[error("no rank had a sample in this step: there is no gradient to average")]
    NoSamples,
}

impl DdpError {
    /// Whether all ranks have this error and can continue with the next step.
    pub(crate) const fn is_verdict_of_all(&self) -> bool {
        matches!(self, Self::NoSamples | Self::GradientNotFinite { .. })
    }
}
