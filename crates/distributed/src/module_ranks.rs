//! The ranks of a process group, as modules see them.

use std::sync::Arc;

use burn::prelude::*;
use everburn_collectives::group::{CollectiveError, ProcessGroup, ReduceOp};
use everburn_nn::{DeviceAllReduce, StatisticsGroup, SyncError, TensorGroup};

use crate::device::{DeviceCollective, DeviceCommunicator};
use crate::error::DdpError;

/// The ranks of a process group, as modules see them: batch norms over several ranks, layers that are cut over them, and
/// [`everburn::nn::all_reduce_sum`](everburn_nn::all_reduce_sum).
///
/// It has a sub-group of its own, so that what modules exchange within a step never mixes with what the step exchanges
/// beside them. Sums have the same bits on all ranks. They go through host memory; with
/// [`everburn::collectives::group::ReductionOrder::Rank`](everburn_collectives::group::ReductionOrder::Rank) their order
/// is that of the ranks, whatever carries them. With [`ModuleRanks::with_communicator`] those of batch norms and of layers that
/// are cut stay on their devices, and their order is the library's.
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
    /// What fails when a collective does.
    whole: ProcessGroup,
    /// Sums that stay on their devices, if there are any.
    on_device: Option<OnDevice>,
}

impl ModuleRanks {
    /// All ranks of `group`, which all call it. A failed collective fails `group`.
    ///
    /// # Errors
    /// [`DdpError::Collective`] if the ranks cannot make a sub-group.
    pub fn new(group: &ProcessGroup) -> Result<Self, DdpError> {
        Self::within(group, group)
    }

    /// All ranks of `group`, which all call it. A failed collective fails `whole`: the group of all ranks
    /// of the job, of which `group` is a part.
    ///
    /// # Errors
    /// [`DdpError::Collective`] if the ranks cannot make a sub-group.
    pub fn within(group: &ProcessGroup, whole: &ProcessGroup) -> Result<Self, DdpError> {
        Ok(Self {
            own: group.duplicate("layers")?,
            whole: whole.clone(),
            on_device: None,
        })
    }

    /// The same ranks, whose sums of tensors stay on their devices and go by `communicator`, which connects them too, if it
    /// has collectives ([`DeviceCommunicator::has_collectives`]). From then on it sums buckets of gradients after the passes
    /// of a step ([`DeviceCommunicator::sum_after_passes`]). All ranks give the same kind.
    #[must_use]
    pub fn with_communicator(self, communicator: &Arc<dyn DeviceCommunicator>) -> Self {
        if !communicator.has_collectives() {
            return self;
        }
        communicator.sum_after_passes();
        let on_device = OnDevice {
            communicator: communicator.clone(),
            whole: self.whole.clone(),
        };
        Self {
            on_device: Some(on_device),
            ..self
        }
    }

    fn checked(&self, outcome: Result<(), CollectiveError>) -> Result<(), SyncError> {
        outcome.map_err(|error| failed(&self.whole, &error.into()))
    }
}

/// The ranks, whose sums stay on their devices.
#[derive(Debug)]
struct OnDevice {
    communicator: Arc<dyn DeviceCommunicator>,
    /// What fails when a collective does.
    whole: ProcessGroup,
}

impl OnDevice {
    fn sum(&self, numbers: Tensor<1>) -> Result<Tensor<1>, DdpError> {
        let sum = DeviceCollective::AllReduce;
        self.communicator.begin_collective(sum, numbers)?.collect()
    }
}

impl DeviceAllReduce for OnDevice {
    fn all_reduce(&self, numbers: Tensor<1>) -> Result<Tensor<1>, SyncError> {
        self.sum(numbers)
            .map_err(|error| failed(&self.whole, &error))
    }
}

/// Ends `whole`, because of a collective of a module that has failed of `error`.
fn failed(whole: &ProcessGroup, error: &DdpError) -> SyncError {
    let reason = format!("in a module's forward or backward pass: {error}");
    match error {
        DdpError::Collective(error) if is_known_to_the_whole(error) => tracing::debug!("{reason}"),
        // Who hears of it also learns whether a rank did not come in time.
        DdpError::Collective(error) => whole.abort_because(error, &reason),
        _ => whole.abort(&reason),
    }
    SyncError::Collective { reason }
}

impl StatisticsGroup for ModuleRanks {
    fn world_size(&self) -> usize {
        self.own.world_size()
    }

    fn all_reduce_sum(&self, values: &mut [f64]) -> Result<(), SyncError> {
        self.checked(self.own.all_reduce_in_place(values, ReduceOp::Sum))
    }

    fn on_device(&self) -> Option<&dyn DeviceAllReduce> {
        let on_device = self.on_device.as_ref();
        on_device.map(|on_device| on_device as &dyn DeviceAllReduce)
    }

    fn abort(&self, reason: &str) {
        // The others may be waiting in either group; the whole one's failure is its sub-groups' too.
        self.whole.abort(reason);
    }
}

impl TensorGroup for ModuleRanks {
    fn rank(&self) -> usize {
        self.own.rank()
    }

    fn all_reduce_sum_f32(&self, values: &mut [f32]) -> Result<(), SyncError> {
        self.checked(self.own.all_reduce_in_place(values, ReduceOp::Sum))
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
