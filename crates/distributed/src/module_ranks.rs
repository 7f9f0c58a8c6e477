//! The ranks of a process group, as modules see them.

use everburn_collectives::group::{CollectiveError, ProcessGroup, ReduceOp};
use everburn_nn::{StatisticsGroup, SyncError, TensorGroup};

use crate::error::DdpError;

/// The ranks of a process group, as modules see them: batch norms over several ranks, layers that are cut over them, and
/// [`everburn::nn::all_reduce_sum`](everburn_nn::all_reduce_sum).
///
/// It has a sub-group of its own, so that what modules exchange within a step never mixes with what the step exchanges
/// beside them. Sums have the same bits on all ranks; with [`everburn::collectives::group::ReductionOrder::Rank`](everburn_collectives::group::ReductionOrder::Rank) the order
/// is that of the ranks, whatever carries them.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; pub use everburn_nn as nn; }
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::distributed::ModuleRanks;
/// use everburn::nn::{StatisticsGroup, TensorGroup};
///
/// let ranks = ModuleRanks::new(&ProcessGroup::alone(GroupOptions::default())).unwrap();
/// let (mut statistics, mut values) = ([1.0, 2.0], [3.0]);
/// ranks.all_reduce_sum(&mut statistics).unwrap();
/// ranks.all_reduce_sum_f32(&mut values).unwrap();
/// assert_eq!((ranks.rank(), statistics, values), (0, [1.0, 2.0], [3.0]));
/// ```
#[derive(Debug)]
pub struct ModuleRanks {
    own: ProcessGroup,
    /// What fails when an exchange does.
    whole: ProcessGroup,
}

impl ModuleRanks {
    /// All ranks of `group`, which all call it. A failed exchange fails `group`.
    ///
    /// # Errors
    /// [`DdpError::Collective`] if the ranks cannot make a sub-group.
    pub fn new(group: &ProcessGroup) -> Result<Self, DdpError> {
        Self::within(group, group)
    }

    /// All ranks of `group`, which all call it. A failed exchange fails `whole`: the group of all ranks
    /// of the job, of which `group` is a part.
    ///
    /// # Errors
    /// [`DdpError::Collective`] if the ranks cannot make a sub-group.
    pub fn within(group: &ProcessGroup, whole: &ProcessGroup) -> Result<Self, DdpError> {
        let all = (0..group.world_size()).collect::<Vec<_>>();
        let own = group
            .subgroup(&all)?
            .expect("a group of all ranks has this one")
            .named("layers");
        Ok(Self {
            own,
            whole: whole.clone(),
        })
    }

    /// Tells of an exchange that has failed.
    fn told(&self, exchanged: Result<(), CollectiveError>) -> Result<(), SyncError> {
        let Err(error) = exchanged else {
            return Ok(());
        };
        let reason = format!("in a module's forward or backward pass: {error}");
        if is_known_to_the_whole(&error) {
            tracing::debug!("{reason}");
        } else {
            // Who hears of it also learns whether a rank did not come in time.
            self.whole.abort_because(&error, &reason);
        }
        Err(SyncError::Exchange { reason })
    }
}

impl StatisticsGroup for ModuleRanks {
    fn world_size(&self) -> usize {
        self.own.world_size()
    }

    fn all_reduce_sum(&self, values: &mut [f64]) -> Result<(), SyncError> {
        self.told(self.own.all_reduce_in_place(values, ReduceOp::Sum))
    }

    fn abort(&self, reason: &str) {
        // The others may be waiting in either group; the whole one's failure is its sub-groups' too.
        self.whole.abort(reason);
    }
}

impl TensorGroup for ModuleRanks {
    fn world_size(&self) -> usize {
        self.own.world_size()
    }

    fn rank(&self) -> usize {
        self.own.rank()
    }

    fn all_reduce_sum_f32(&self, values: &mut [f32]) -> Result<(), SyncError> {
        self.told(self.own.all_reduce_in_place(values, ReduceOp::Sum))
    }

    fn abort(&self, reason: &str) {
        StatisticsGroup::abort(self, reason);
    }
}

/// Whether the whole group fails by itself, and knows the cause better: the loss of a rank, which
/// every group notices, and what follows from an earlier failure, of which whoever saw it first has
/// told it.
fn is_known_to_the_whole(error: &CollectiveError) -> bool {
    matches!(
        error,
        CollectiveError::PeerLost { .. }
            | CollectiveError::Aborted { .. }
            | CollectiveError::Poisoned { .. }
            | CollectiveError::Destroyed { .. }
    )
}
