//! Batch norm over the samples of all ranks.

use std::sync::Arc;

use burn::module::Module;
use everburn_collectives::group::ProcessGroup;

use crate::error::DdpError;
use crate::module_ranks::ModuleRanks;

/// Lets every [`everburn::nn::BatchNorm`](everburn_nn::BatchNorm) of `model` take its training statistics over the
/// samples of all ranks of `group`.
///
/// All ranks call it, once, before training; before or after [`crate::Ddp::new`]. From then on a
/// training step's forward and backward passes are collective operations. A rank without samples
/// takes part through [`crate::Synchronization::with_hooks_stand_in`], or, where the others pass no watched
/// copies, [`everburn::nn::without_samples`](everburn_nn::without_samples). Gradients are those of the mean loss over
/// all samples once [`crate::Ddp::sync_gradients`] has averaged them.
///
/// If a collective fails within a step, the step continues with this rank's own statistics, and `group`
/// is aborted: the step's own synchronisation then fails, on every rank, with the reason.
///
/// Ranks that are threads of one process must not share parameters that require gradients, as
/// plain clones of a model do: Burn locks all that hangs together while it runs backward, and ranks
/// that wait for each other would wait for that lock. [`crate::Ddp::new`] and `fork` separate them.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; pub use everburn_nn as nn; }
/// use burn::prelude::*;
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::distributed::synchronize_batch_norms;
/// use everburn::nn::BatchNormConfig;
///
/// let ranks = ProcessGroup::over_threads(2, GroupOptions::default()).into_iter().map(|group| {
///     std::thread::spawn(move || {
///         let device = Device::flex().autodiff();
///         let model = BatchNormConfig::new(1).with_momentum(1.0).init(&device);
///         let model = synchronize_batch_norms(model, &group)?;
///         let mine = Tensor::<2>::from_floats([[group.rank() as f32 * 4.0]], &device);
///         let _output = model.forward(mine);
///         Ok::<f32, everburn::distributed::DdpError>(model.running_mean.value_sync().into_scalar())
///     })
/// });
/// for rank in ranks.collect::<Vec<_>>() {
///     assert_eq!(rank.join().unwrap().unwrap(), 2.0);
/// }
/// ```
///
/// # Errors
/// [`DdpError::Module`] if the model has batch norms of Burn's own type, which cannot be
/// synchronised; [`DdpError::Collective`] if the ranks cannot make a group for the statistics.
#[doc(alias = "convert_sync_batchnorm")]
#[doc(alias = "SyncBatchNorm")]
pub fn synchronize_batch_norms<M: Module>(model: M, group: &ProcessGroup) -> Result<M, DdpError> {
    let statistics = ModuleRanks::new(group)?;
    Ok(everburn_nn::synchronize_batch_norms(
        model,
        Arc::new(statistics),
    )?)
}
