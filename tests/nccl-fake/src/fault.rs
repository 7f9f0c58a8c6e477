//! What can be made to go wrong.

use everburn_nccl::Status;

/// Something that goes wrong on one rank of a [`FakeCluster`](super::FakeCluster), from when it is
/// injected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// `ncclGetUniqueId` answers so.
    NoUniqueId(Status),
    /// `ncclCommInitRankConfig` answers so, and yields no communicator.
    InitFails(Status),
    /// This rank's side of the initialisation is never done: it stays `ncclInProgress` everywhere.
    InitHangs,
    /// Operations are answered so.
    EnqueueFails(Status),
    /// Operations are answered so, and are on the stream all the same.
    EnqueueFailsLate(Status),
    /// Calls that put an operation on a stream do not return before the cluster is gone.
    EnqueueHangs,
    /// Events cannot be recorded.
    RecordFails,
    /// Operations are answered with `ncclInProgress`, and are on the stream only after this many
    /// questions how the communicator is; with `None`, never.
    LaunchTakes(Option<u32>),
    /// NCCL finds this, as `ncclCommGetAsyncError` tells.
    AsyncError(Status),
    /// `ncclCommAbort` does not return before the cluster is gone.
    AbortHangs,
    /// `ncclCommFinalize` stays `ncclInProgress`.
    FinalizeHangs,
    /// Questions about events are answered with an error, as after a failed kernel.
    GpuFails,
    /// The driver cannot order all streams.
    OldDriver,
    /// NCCL says that it is of this version.
    Version(u32),
    /// The rank is on this rank's GPU.
    SameGpu(usize),
}
