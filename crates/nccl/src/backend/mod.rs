//! NCCL as a backend of process groups.

mod connect;
mod core;
mod issue;
mod leaving;
mod operation;
mod owned;
mod status;
mod supervisor;
mod timed_mutex;
mod work;

use std::fmt;
use std::sync::Arc;

use everburn_collectives::group::{Call, CollectiveError, ProcessGroup, ReduceOp};

use self::core::Core;
pub use self::operation::Operation;
pub use self::status::Status;
pub use self::work::Work;
use crate::api::NcclApi;
use crate::error::LibraryError;
use crate::foreign::DeviceBuffer;

/// The backend of a [`ProcessGroup`] for the memory of GPUs: NCCL moves the numbers, from GPU to GPU.
///
/// Every rank makes the same calls in the same order; they run in that order, on a stream of the backend. A call puts its
/// operation there and returns; the [`Work`] it yields says when the GPU has finished, or has other work of the GPU wait
/// for it.
///
/// Rank, step, timeout, flight record and failure are the process group's: when NCCL fails on a rank, the process group
/// fails on all, and when that fails, NCCL leaves the GPU.
///
/// Dropping the last handle (a [`Work`] counts as one) leaves NCCL, for at most four seconds in good order, else by an
/// abort. The process group continues, unless an operation was under way.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::group::{CollectiveError, ReduceOp};
/// use everburn_nccl_fake::FakeCluster;
///
/// // Two ranks, as threads, on a stand-in for GPUs.
/// let cluster = FakeCluster::new(2);
/// let results = cluster.on_all_ranks(|nccl, rank| {
///     let gradients = cluster.allocate(rank, &[rank as f32, 1.0]);
///     nccl.all_reduce(&gradients, ReduceOp::Sum)?.wait()?;
///     Ok::<_, CollectiveError>(cluster.read::<f32>(&gradients))
/// });
/// for gradients in results {
///     assert_eq!(gradients.unwrap(), [1.0, 2.0]);
/// }
/// ```
#[doc(alias = "ProcessGroupNCCL")]
pub struct NcclBackend {
    core: Arc<Core>,
}

impl NcclBackend {
    /// Connects this rank's GPU with those of the other ranks of `group`, all of which call it. `api` is NCCL on that GPU
    /// ([`Library::on_gpu`], or a stand-in for tests), or why there is none.
    ///
    /// # Errors
    /// [`CollectiveError::NoPath`] on all ranks if one of them has no driver or GPU, or if the ranks cannot be connected;
    /// [`CollectiveError::Timeout`] names the ranks that have not come in time; [`CollectiveError::Device`] if NCCL fails.
    ///
    /// [`Library::on_gpu`]: crate::Library::on_gpu
    pub fn connect(
        api: Result<Arc<dyn NcclApi>, LibraryError>,
        group: &ProcessGroup,
    ) -> Result<Arc<Self>, CollectiveError> {
        let (api, stream, id) = connect::agree(api, group)?;
        let calls = group.duplicate("nccl")?;
        let core = Core::new(api, stream, group.clone(), calls);
        let backend = Self {
            core: Arc::new(core),
        };
        let supervised = backend.core.clone();
        let thread = std::thread::Builder::new().name("everburn-nccl".to_owned());
        let started = thread.spawn(move || supervisor::supervise(&supervised));
        if let Err(error) = started {
            let call = backend.core.calls.device_call(Call::Named("connect"));
            return Err(call.fail(format!("its thread cannot be started: {error}")));
        }
        backend.core.connect(&id)?;
        Ok(Arc::new(backend))
    }

    /// The ranks: who they are, their step and timeout, and whether they have failed.
    #[must_use]
    pub fn process_group(&self) -> &ProcessGroup {
        &self.core.group
    }

    /// Whether operations wait for what the GPU was given before, and [`Work::hold_device`] is available:
    /// with drivers of CUDA 12.5 and later, not with HIP.
    #[must_use]
    pub fn orders_device(&self) -> bool {
        self.core.api.orders_all()
    }

    /// Combines all ranks' numbers, in place; every rank gets the same bits.
    ///
    /// As every operation, it waits on the GPU for all that any stream of this process on the GPU has been given by now, and
    /// not for the host. Where the driver cannot order streams ([`NcclBackend::orders_device`]), it waits for nothing: the
    /// caller has waited for what writes the buffers. The host waits for the other ranks in the first exchange with them
    /// alone, for the group's timeout.
    ///
    /// # Errors
    /// [`CollectiveError::Invalid`] for what can never be, and nothing is sent; else what has failed the
    /// group, at once if that was earlier.
    pub fn all_reduce(
        self: &Arc<Self>,
        buffer: &DeviceBuffer,
        op: ReduceOp,
    ) -> Result<Work, CollectiveError> {
        let buffer = buffer.clone();
        self.issue(Operation::AllReduce { buffer, op })
    }

    /// Combines all ranks' numbers and gives each rank its part: `send` has a part for each rank, in
    /// rank order. In place, `receive` is the rank's own part of `send`.
    ///
    /// # Errors
    /// As [`NcclBackend::all_reduce`].
    pub fn reduce_scatter(
        self: &Arc<Self>,
        send: &DeviceBuffer,
        receive: &DeviceBuffer,
        op: ReduceOp,
    ) -> Result<Work, CollectiveError> {
        let (send, receive) = (send.clone(), receive.clone());
        self.issue(Operation::ReduceScatter { send, receive, op })
    }

    /// Gives every rank the numbers of all, in rank order. In place, `send` is the rank's own part of
    /// `receive`.
    ///
    /// # Errors
    /// As [`NcclBackend::all_reduce`].
    pub fn all_gather(
        self: &Arc<Self>,
        send: &DeviceBuffer,
        receive: &DeviceBuffer,
    ) -> Result<Work, CollectiveError> {
        let (send, receive) = (send.clone(), receive.clone());
        self.issue(Operation::AllGather { send, receive })
    }

    fn issue(self: &Arc<Self>, operation: Operation) -> Result<Work, CollectiveError> {
        let in_flight = self.core.issue(operation)?;
        let backend = self.clone();
        Ok(Work { in_flight, backend })
    }

    /// Whether nothing has gone wrong by now. Where works are only held for on the GPU
    /// ([`Work::hold_device`]) and never waited for, this is to be asked once per step, before what was
    /// computed counts.
    ///
    /// # Errors
    /// What has failed the group.
    pub fn check(&self) -> Result<(), CollectiveError> {
        self.core
            .check(&self.core.calls.device_call(Call::Named("check")))
    }

    /// Waits on this thread until all that this rank has issued is over.
    ///
    /// # Errors
    /// What has failed the group, or [`CollectiveError::Timeout`], which fails it.
    pub fn synchronize(&self) -> Result<(), CollectiveError> {
        let call = self.core.calls.device_call(Call::Named("synchronize"));
        self.core.drain(&call, None).map(|_| ())
    }
}

impl fmt::Debug for NcclBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NcclBackend")
            .field("group", self.process_group())
            .field("nccl", &self.core.api.version())
            .finish_non_exhaustive()
    }
}
