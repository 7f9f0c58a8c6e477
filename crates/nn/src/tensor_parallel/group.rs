//! What a group of ranks must be able to do.

use crate::group::{StatisticsGroup, SyncError};

/// The ranks over which layers are cut, seen from one of them. `everburn::distributed::ModuleRanks`
/// makes one of a process group.
///
/// A model holds it as `Arc<dyn TensorGroup>` and calls it inside its forward and backward passes, as a
/// [`StatisticsGroup`]: errors show in what the training step does after them.
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
pub trait TensorGroup: StatisticsGroup {
    /// The number of this rank.
    fn rank(&self) -> usize;

    /// Replaces each value by its sum over all ranks. All ranks call with equal lengths in the same
    /// order, and all must get the same bits.
    ///
    /// # Errors
    /// [`SyncError::Collective`] if the ranks cannot be reached. `values` may then hold anything.
    fn all_reduce_sum_f32(&self, values: &mut [f32]) -> Result<(), SyncError>;
}
