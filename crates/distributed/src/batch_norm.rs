//! Batch norm over the samples of all ranks.

use std::sync::Arc;

use burn::module::Module;
use everburn_collectives::group::{CollectiveError, ProcessGroup, ReduceOp};
use everburn_nn::{StatisticsGroup, SyncError};

use crate::error::DdpError;

/// Lets every [`everburn_nn::SyncBatchNorm`] of `model` take its training statistics over the
/// samples of all ranks of `group`.
///
/// All ranks call it, once, before training; before or after [`crate::Ddp::new`]. From then on a
/// training step's forward and backward passes are collective operations. A rank without samples
/// takes part through [`crate::Synchronization::watch_stand_in`], or, where the others pass no watched
/// copies, [`everburn_nn::without_samples`]. Gradients are those of the mean loss over
/// all samples once [`crate::Ddp::sync_gradients`] has averaged them.
///
/// If an exchange fails within a step, the step goes on with this rank's own statistics, and `group`
/// is aborted: the step's own synchronisation then fails, on every rank, with the reason.
///
/// Ranks that are threads of one process must not share parameters that require gradients, as
/// plain clones of a model do: Burn locks all that hangs together while it runs backward, and ranks
/// that wait for each other would wait for that lock. [`crate::Ddp::new`] and `fork` separate them.
///
/// ```
/// use burn::prelude::*;
/// use everburn_collectives::group::{GroupOptions, ProcessGroup};
/// use everburn_distributed::synchronize_batch_norms;
/// use everburn_nn::SyncBatchNormConfig;
///
/// let ranks = ProcessGroup::over_threads(2, GroupOptions::default()).into_iter().map(|group| {
///     std::thread::spawn(move || {
///         let device = Device::flex().autodiff();
///         let model = SyncBatchNormConfig::new(1).with_momentum(1.0).init(&device);
///         let model = synchronize_batch_norms(model, &group)?;
///         let mine = Tensor::<2>::from_floats([[group.rank() as f32 * 4.0]], &device);
///         let _output = model.forward(mine);
///         Ok::<f32, everburn_distributed::DdpError>(model.running_mean.value_sync().into_scalar())
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
pub fn synchronize_batch_norms<M: Module>(model: M, group: &ProcessGroup) -> Result<M, DdpError> {
    let statistics = RankStatistics::new(group)?;
    Ok(everburn_nn::synchronize_batch_norms(
        model,
        Arc::new(statistics),
    )?)
}

/// The ranks of a process group, as modules see them: for [`synchronize_batch_norms`] and
/// [`everburn_nn::all_reduce_sum`].
///
/// It has a sub-group of its own, so that what modules exchange within a step never mixes with
/// gradients that are already under way.
///
/// ```
/// use everburn_collectives::group::{GroupOptions, ProcessGroup};
/// use everburn_distributed::RankStatistics;
/// use everburn_nn::StatisticsGroup;
///
/// let ranks = RankStatistics::new(&ProcessGroup::alone(GroupOptions::default())).unwrap();
/// let mut values = [1.0, 2.0];
/// ranks.all_reduce_sum(&mut values).unwrap();
/// assert_eq!((ranks.world_size(), values), (1, [1.0, 2.0]));
/// ```
#[derive(Debug)]
pub struct RankStatistics {
    own: ProcessGroup,
    parent: ProcessGroup,
}

impl RankStatistics {
    /// All ranks of `group`, which all call it.
    ///
    /// # Errors
    /// [`DdpError::Collective`] if the ranks cannot make a sub-group.
    pub fn new(group: &ProcessGroup) -> Result<Self, DdpError> {
        let all = (0..group.world_size()).collect::<Vec<_>>();
        let own = group
            .subgroup(&all)?
            .expect("a group of all ranks has this one");
        Ok(Self {
            own,
            parent: group.clone(),
        })
    }
}

impl StatisticsGroup for RankStatistics {
    fn world_size(&self) -> usize {
        self.own.world_size()
    }

    fn all_reduce_sum(&self, values: &mut [f64]) -> Result<(), SyncError> {
        let Err(error) = self.own.all_reduce_in_place(values, ReduceOp::Sum) else {
            return Ok(());
        };
        let reason = format!("in a module's forward or backward pass: {error}");
        if is_known_to_the_parent(&error) {
            tracing::debug!("{reason}");
        } else {
            // Who hears of it also learns whether a rank did not come in time.
            self.parent.abort_because(&error, &reason);
        }
        Err(SyncError::Exchange { reason })
    }

    fn abort(&self, reason: &str) {
        // The others may be waiting in either group; the parent's failure is its sub-groups' too.
        self.parent.abort(reason);
    }
}

/// Whether the parent group fails by itself, and knows the cause better: the loss of a rank, which
/// every group notices, and what follows from an earlier failure, of which whoever saw it first has
/// told the parent.
pub(crate) fn is_known_to_the_parent(error: &CollectiveError) -> bool {
    matches!(
        error,
        CollectiveError::PeerLost { .. }
            | CollectiveError::Aborted { .. }
            | CollectiveError::Poisoned { .. }
            | CollectiveError::Destroyed { .. }
    )
}
