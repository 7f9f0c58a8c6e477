//! The interface to a group of ranks.

use std::fmt::Debug;

use burn::prelude::Tensor;

/// The ranks over which a module computes, seen from one of them.
///
/// A model holds it as `Arc<dyn StatisticsGroup>` and calls it inside its forward and backward
/// passes. Neither can return an error, so the group keeps errors visible: once a collective has
/// failed or [`StatisticsGroup::abort`] was called, something that the training step does after
/// them (synchronising gradients, say) must fail with the reason, on every rank.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use everburn::nn::{StatisticsGroup, SyncError};
///
/// /// The mean of a number over the ranks. Every rank makes this call.
/// fn mean(group: &dyn StatisticsGroup, number: f64) -> Result<f64, SyncError> {
///     let mut sum = [number];
///     group.all_reduce_sum(&mut sum)?;
///     Ok(sum[0] / group.world_size() as f64)
/// }
/// ```
///
/// The [crate's first page](crate) implements one.
pub trait StatisticsGroup: Send + Sync + Debug {
    /// How many ranks there are.
    fn world_size(&self) -> usize;

    /// Replaces each value by its sum over all ranks. All ranks call with equal lengths in the same
    /// order, and all must get the same bits: modules decide by them what to exchange next.
    ///
    /// # Errors
    /// [`SyncError::Collective`] if the ranks cannot be reached. `values` may then hold anything.
    fn all_reduce_sum(&self, values: &mut [f64]) -> Result<(), SyncError>;

    /// Sums that stay on their devices, where the ranks have such: layers then exchange there, and this thread waits for no
    /// other rank. `None` where sums go through host memory. The same on all ranks, from the first pass to the last.
    fn on_device(&self) -> Option<&dyn DeviceAllReduce> {
        None
    }

    /// Aborts the group on all ranks, because of an error that a module cannot return.
    fn abort(&self, reason: &str);

    /// How the losses of the ranks are combined into the training loss.
    fn loss_reduction(&self) -> LossReduction {
        LossReduction::MeanOverSamples
    }
}

/// Sums over ranks that are made on the device of the numbers.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::nn::{DeviceAllReduce, SyncError};
///
/// /// The mean of numbers over the ranks. Every rank makes this call.
/// fn mean(ranks: &dyn DeviceAllReduce, own: Tensor<1>, world_size: usize) -> Result<Tensor<1>, SyncError> {
///     Ok(ranks.all_reduce(own)?.div_scalar(world_size as f64))
/// }
/// ```
pub trait DeviceAllReduce: Send + Sync + Debug {
    /// The sum of each number over all ranks, on the same device and of the same type. This thread need not wait for it: what
    /// the device is given from now on comes after it. All ranks call with equal lengths and types in the same order, and all
    /// get the same bits.
    ///
    /// # Errors
    /// [`SyncError::Collective`] if the ranks cannot be reached.
    fn all_reduce(&self, numbers: Tensor<1>) -> Result<Tensor<1>, SyncError>;
}

/// How the losses of the ranks are combined into the training loss. Gradients that cross ranks are weighted
/// accordingly.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use everburn::nn::LossReduction;
///
/// let reduction = LossReduction::MeanOverSamples; // a mean loss, as in most models
/// assert_ne!(reduction, LossReduction::Sum);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossReduction {
    /// Each rank's loss is the mean over its own samples, and afterwards gradients are averaged
    /// over the samples of all ranks: data parallelism. A rank's samples are counted by the first
    /// dimension of a module's input.
    MeanOverSamples,
    /// The loss is the sum of the ranks' losses, and so are the gradients.
    Sum,
}

/// Why a module could not compute over all ranks.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use everburn::nn::SyncError;
///
/// let error = SyncError::Collective { reason: "rank 2 has ended".into() };
/// assert_eq!(error.to_string(), "rank 2 has ended");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SyncError {
    /// A collective of the ranks failed.
    #[error("{reason}")]
    Collective {
        /// The group's own error.
        reason: String,
    },
    /// The ranks were at different layers or calls.
    #[error(
        "this rank is at the {pass} of synchronised layer {layer} (call {call}), and another rank is at another \
         layer or call; check that every rank runs the same layers in the same order, and that a rank without \
         samples runs them through `without_samples`"
    )]
    OutOfOrder {
        /// The layer, counted from 0 in the order of the model's fields.
        layer: u32,
        /// How often this layer has run.
        call: u32,
        /// Forward or backward pass.
        pass: &'static str,
    },
    /// The ranks of a tensor group were at different layers or calls.
    #[error(
        "this rank is at the {pass} of sharded layer {layer} (call {call}), and another rank is at another layer or \
         call; check that all ranks of the tensor group run the same layers and micro-batches in the same order"
    )]
    ShardsOutOfOrder {
        /// The layer, counted from 0 in the order of the model's fields.
        layer: u32,
        /// How often this layer has run.
        call: u32,
        /// Forward or backward pass.
        pass: &'static str,
    },
    /// A tensor could not be read from its device.
    #[error("a tensor could not be read from its device: {reason}")]
    Read {
        /// The device's error.
        reason: String,
    },
    /// The model has batch norms of Burn's own type, which cannot be synchronised.
    #[error(
        "`{path}` is a `burn::nn::BatchNorm`, which cannot be synchronised: import it from `everburn::nn` in place of \
         `burn::nn` (same configuration, same records)"
    )]
    PlainBatchNorm {
        /// The path of the first of them.
        path: String,
    },
}
