//! What a group of ranks must be able to do.

use std::fmt::Debug;

use crate::group::{DeviceAllReduce, SyncError};

/// The ranks over which layers are cut, seen from one of them. `everburn::distributed::ModuleRanks`
/// makes one of a process group.
///
/// A model holds it as `Arc<dyn TensorGroup>` and calls it inside its forward and backward passes.
/// Neither can return an error, so the group keeps errors visible: once a collective has failed or
/// [`TensorGroup::abort`] was called, something that the training step does after them must fail
/// with the reason, on every rank.
///
/// ```
/// # mod everburn { pub use everburn_nn as nn; }
/// use everburn::nn::{SyncError, TensorGroup};
///
/// /// The output of a row shard: the sum of the ranks' products. Every rank makes this call.
/// fn output(group: &dyn TensorGroup, mut product: Vec<f32>) -> Result<Vec<f32>, SyncError> {
///     group.all_reduce_sum_f32(&mut product)?;
///     Ok(product)
/// }
/// ```
pub trait TensorGroup: Send + Sync + Debug {
    /// How many ranks there are.
    fn world_size(&self) -> usize;

    /// The number of this rank.
    fn rank(&self) -> usize;

    /// Replaces each value by its sum over all ranks. All ranks call with equal lengths in the same
    /// order, and all must get the same bits.
    ///
    /// # Errors
    /// [`SyncError::Collective`] if the ranks cannot be reached. `values` may then hold anything.
    fn all_reduce_sum_f32(&self, values: &mut [f32]) -> Result<(), SyncError>;

    /// Sums that stay on their devices, where the ranks have such: layers then exchange their activations there, and this
    /// thread waits for no other rank. `None` where sums go through host memory. The same on all ranks, from the first pass to
    /// the last.
    fn on_device(&self) -> Option<&dyn DeviceAllReduce> {
        None
    }

    /// Gives the group up on all ranks, because a layer has found what it cannot return.
    fn abort(&self, reason: &str);
}
