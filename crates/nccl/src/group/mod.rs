//! Groups of ranks on GPUs.

mod connect;
mod core;
mod gpu;
mod issue;
mod leaving;
mod operation;
mod operations;
mod owned;
mod status;
mod supervisor;
mod timed_mutex;
mod work;

use std::fmt;
use std::sync::Arc;

use everburn_collectives::group::{Call, CollectiveError, ProcessGroup};

use self::core::Core;
pub use self::operation::Operation;
pub use self::status::Status;
pub use self::work::Work;
use crate::api::NcclApi;
use crate::foreign::Library;
use crate::version::NcclVersion;

/// The ranks of a [`ProcessGroup`], connected once more by NCCL, from GPU to GPU.
///
/// Every member makes the same collective calls in the same order; they run in that order, on one
/// stream a group. A call puts its operation there and returns; the [`Work`] it yields says when the
/// GPU has finished, or has other work of the GPU wait for it.
///
/// Rank, step, timeout, flight record and failure are the process group's: when NCCL fails on a rank, the process group
/// fails on all, and when that fails, NCCL leaves the GPU.
///
/// Cloning is cheap and gives another handle on the same group. Dropping the last handle (a [`Work`]
/// counts as one) leaves the group, for at most four seconds in good order, else by an abort;
/// [`NcclGroup::destroy`] waits longer and reports.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; }
/// use everburn::collectives::group::{CollectiveError, ReduceOp};
/// use everburn_nccl_fake::FakeCluster;
///
/// // Two ranks, as threads, on a stand-in for GPUs.
/// let cluster = FakeCluster::new(2);
/// let results = cluster.on_all_ranks(|group, rank| {
///     let gradients = cluster.allocate(rank, &[rank as f32, 1.0]);
///     group.all_reduce(&gradients, ReduceOp::Sum)?.wait()?;
///     group.destroy()?;
///     Ok::<_, CollectiveError>(cluster.read::<f32>(&gradients))
/// });
/// for gradients in results {
///     assert_eq!(gradients.unwrap(), [1.0, 2.0]);
/// }
/// ```
#[derive(Clone)]
pub struct NcclGroup {
    shared: Arc<Shared>,
}

/// What handles and works keep alive.
pub(crate) struct Shared {
    core: Arc<Core>,
}

impl NcclGroup {
    /// Connects this rank's GPU number `device`, an index into `CUDA_VISIBLE_DEVICES` or `HIP_VISIBLE_DEVICES`, with those
    /// of the other ranks of `group`, all of which call it.
    ///
    /// # Errors
    /// [`CollectiveError::NoPath`] on all ranks if one of them has no driver or GPU, or if the ranks cannot be connected;
    /// [`CollectiveError::Timeout`] names the ranks that have not come in time; [`CollectiveError::Device`] if NCCL fails.
    pub fn connect(
        library: &Arc<Library>,
        device: usize,
        group: &ProcessGroup,
    ) -> Result<Self, CollectiveError> {
        let gpu = if group.world_size() > 1 && std::env::var_os("NCCL_COMM_ID").is_some() {
            Err(
                "NCCL_COMM_ID is set, which has all groups meet at one address; unset it"
                    .to_owned(),
            )
        } else {
            gpu::Gpu::new(library.clone(), device).map_err(|error| error.to_string())
        };
        Self::over(gpu.map(|gpu| Arc::new(gpu) as _), group)
    }

    /// [`NcclGroup::connect`] with another NCCL and GPU than those of this machine, such as a stand-in
    /// for tests.
    ///
    /// # Errors
    /// As [`NcclGroup::connect`].
    pub fn connect_with(
        api: Arc<dyn NcclApi>,
        group: &ProcessGroup,
    ) -> Result<Self, CollectiveError> {
        Self::over(Ok(api), group)
    }

    fn over(
        api: Result<Arc<dyn NcclApi>, String>,
        group: &ProcessGroup,
    ) -> Result<Self, CollectiveError> {
        let (api, stream, id) = connect::agree(api, group)?;
        let all: Vec<usize> = (0..group.world_size()).collect();
        let calls = group.subgroup(&all)?.expect("every rank is a member");
        let core = Core::new(api, stream, group.clone(), calls.named("nccl"));
        let core = Arc::new(core);
        let shared = Arc::new(Shared { core: core.clone() });
        let supervised = core.clone();
        let thread = std::thread::Builder::new().name("everburn-nccl".to_owned());
        let started = thread.spawn(move || supervisor::supervise(&supervised));
        if let Err(error) = started {
            let call = core.calls.device_call(Call::Named("connect"));
            return Err(call.fail(format!("its thread cannot be started: {error}")));
        }
        core.connect(&id)?;
        Ok(Self { shared })
    }

    /// The ranks: who they are, their step and timeout, and whether they have failed.
    #[must_use]
    pub fn process_group(&self) -> &ProcessGroup {
        &self.shared.core.group
    }

    /// Which NCCL it uses.
    #[must_use]
    pub fn nccl_version(&self) -> NcclVersion {
        self.shared.core.api.version()
    }

    /// Whether operations wait for what the GPU was given before, and [`Work::hold_device`] is available:
    /// with drivers of CUDA 12.5 and later, not with HIP.
    #[must_use]
    pub fn orders_device(&self) -> bool {
        self.shared.core.api.orders_all()
    }

    /// Whether nothing has gone wrong by now. Where works are only held for on the GPU
    /// ([`Work::hold_device`]) and never waited for, this is to be asked once per step, before what was
    /// computed counts.
    ///
    /// # Errors
    /// What has failed the group.
    pub fn check(&self) -> Result<(), CollectiveError> {
        let core = &self.shared.core;
        core.check(&core.calls.device_call(Call::Named("check")))
    }

    /// Waits on this thread until all that this rank has issued is over.
    ///
    /// # Errors
    /// What has failed the group, or [`CollectiveError::Timeout`], which fails it.
    pub fn synchronize(&self) -> Result<(), CollectiveError> {
        let core = &self.shared.core;
        let call = core.calls.device_call(Call::Named("synchronize"));
        core.drain(&call, None).map(|_| ())
    }

    /// Leaves the group in good order: waits until what was issued is over and NCCL has given
    /// everything back. Other handles of the group fail from then on; the process group continues.
    ///
    /// # Errors
    /// What has failed the group; [`CollectiveError::Device`] when NCCL takes longer than the group's timeout: it is
    /// aborted then.
    pub fn destroy(self) -> Result<(), CollectiveError> {
        self.shared.core.leave()
    }
}

impl fmt::Debug for NcclGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NcclGroup")
            .field("group", self.process_group())
            .field("nccl", &self.nccl_version())
            .finish_non_exhaustive()
    }
}
