//! What a group of ranks must be able to do.

use std::fmt::Debug;

use crate::group::SyncError;

/// The ranks over which layers are cut, seen from one of them. `everburn::distributed::ModuleRanks`
/// makes one of a process group.
///
/// A model holds it as `Arc<dyn TensorGroup>` and calls it inside its forward and backward passes.
/// Neither can return an error, so the group keeps errors visible: once an exchange has failed or
/// [`TensorGroup::abort`] was called, something that the training step does after them must fail
/// with the reason, on every rank.
///
/// See the example of [`crate::tensor_parallel`].
pub trait TensorGroup: Send + Sync + Debug {
    /// How many ranks there are.
    fn world_size(&self) -> usize;

    /// The number of this rank.
    fn rank(&self) -> usize;

    /// Replaces each value by its sum over all ranks. All ranks call with equal lengths in the same
    /// order, and all must get the same bits.
    ///
    /// # Errors
    /// [`SyncError::Exchange`] if the ranks cannot be reached. `values` may then hold anything.
    fn all_reduce_sum_f32(&self, values: &mut [f32]) -> Result<(), SyncError>;

    /// Gives the group up on all ranks, because a layer has found what it cannot return.
    fn abort(&self, reason: &str);
}
