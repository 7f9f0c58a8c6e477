//! Groups of ranks on GPUs.

mod config;
mod connect;
mod core;
mod diagnosis;
mod error;
mod failing;
mod failure_monitor;
mod failure_notifier;
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
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use everburn_collectives::group::CollectiveError;
use everburn_collectives::store::{PrefixStore, SharedStore};
use everburn_collectives::sync::lock;

pub use self::config::NcclConfig;
use self::core::Core;
pub use self::error::NcclError;
pub use self::failure_monitor::FailureMonitor;
use self::failure_notifier::{FailureNotifier, Heartbeat};
use self::leaving::who_is_told;
pub use self::operation::Operation;
use self::owned::OwnedStream;
pub use self::status::Status;
pub use self::work::Work;
use crate::api::NcclApi;
use crate::foreign::Library;
use crate::version::NcclVersion;

/// One rank's end of a group of ranks that exchange numbers between GPUs by NCCL.
///
/// Every member makes the same collective calls in the same order; they run in that order, on one
/// stream a group. A call puts its operation there and returns; the [`Work`] it yields says when the
/// GPU has finished, or has other work of the GPU wait for it.
///
/// Cloning is cheap and gives another handle on the same group. Dropping the last handle (a [`Work`]
/// counts as one) leaves the group, for at most four seconds in good order, else by an abort;
/// [`NcclGroup::destroy`] waits longer and reports.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_nccl as nccl; }
/// use everburn::collectives::group::ReduceOp;
/// use everburn_nccl_fake::FakeCluster;
///
/// // Two ranks, as threads, on a stand-in for GPUs.
/// let cluster = FakeCluster::new(2);
/// let results = cluster.on_all_ranks(|group, rank| {
///     let gradients = cluster.allocate(rank, &[rank as f32, 1.0]);
///     group.all_reduce(&gradients, ReduceOp::Sum)?.wait()?;
///     group.destroy()?;
///     Ok::<_, everburn::nccl::NcclError>(cluster.read::<f32>(&gradients))
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
    /// The group ends as if its process had been killed.
    silent: AtomicBool,
}

impl NcclGroup {
    /// Connects this rank's GPU with those of the other ranks. All ranks call it with the same `store` and `config`,
    /// except rank and device.
    ///
    /// `monitor` is usually the job's [`ProcessGroup`](everburn_collectives::group::ProcessGroup): when it fails, this
    /// group fails at once instead of after a deadline, and when this group fails, it is notified.
    ///
    /// # Errors
    /// [`NcclError::Library`] without driver, GPU, NCCL or RCCL; [`NcclError::Incomplete`] names the ranks that have not
    /// connected in time; [`NcclError::Refused`] says why the ranks cannot form a group.
    pub fn connect(
        library: &Arc<Library>,
        store: SharedStore,
        config: NcclConfig,
        monitor: Option<Arc<dyn FailureMonitor>>,
    ) -> Result<Self, NcclError> {
        config.check()?;
        if config.world_size() > 1 && std::env::var_os("NCCL_COMM_ID").is_some() {
            return Err(NcclError::Refused {
                rank: config.job_rank(),
                group: config.name,
                reason: "NCCL_COMM_ID is set, which has all groups meet at one address; unset it"
                    .to_owned(),
            });
        }
        let notifier = notifier_of(store, &config);
        match gpu::Gpu::new(library.clone(), config.device) {
            Ok(gpu) => Self::over(Arc::new(gpu), notifier, config, monitor),
            Err(error) => Err(missed(error.into(), &config, monitor, notifier)),
        }
    }

    /// [`NcclGroup::connect`] with another NCCL and GPU than those of this machine, such as a stand-in
    /// for tests.
    ///
    /// # Errors
    /// As [`NcclGroup::connect`].
    pub fn connect_with(
        api: Arc<dyn NcclApi>,
        store: SharedStore,
        config: NcclConfig,
        monitor: Option<Arc<dyn FailureMonitor>>,
    ) -> Result<Self, NcclError> {
        config.check()?;
        let notifier = notifier_of(store, &config);
        Self::over(api, notifier, config, monitor)
    }

    fn over(
        api: Arc<dyn NcclApi>,
        notifier: Option<Arc<FailureNotifier>>,
        config: NcclConfig,
        monitor: Option<Arc<dyn FailureMonitor>>,
    ) -> Result<Self, NcclError> {
        let stream = match OwnedStream::new(&api) {
            Ok(stream) => stream,
            Err(error) => return Err(missed(error.into(), &config, monitor, notifier)),
        };
        let core = Arc::new(Core::new(api, stream, config, monitor, notifier));
        let shared = Arc::new(Shared {
            core: core.clone(),
            silent: AtomicBool::new(false),
        });
        start_threads(&core)?;
        match core.connect() {
            Ok(()) => Ok(Self { shared }),
            Err(error) => {
                core.fail(None, who_is_told(&error), || error.clone());
                Err(error)
            }
        }
    }

    /// This rank's number in the group.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.config().rank
    }

    /// How many ranks the group has.
    #[must_use]
    pub fn world_size(&self) -> usize {
        self.config().world_size()
    }

    /// What the group was made with.
    #[must_use]
    pub fn config(&self) -> &NcclConfig {
        &self.shared.core.config
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

    /// Labels this rank's next operations with the training step, which errors then name.
    pub fn set_step(&self, step: u64) {
        self.shared.core.step.store(step, Ordering::Relaxed);
    }

    /// Whether nothing has gone wrong by now. Where works are only held for on the GPU
    /// ([`Work::hold_device`]) and never waited for, this is to be asked once per step, before what was
    /// computed counts.
    ///
    /// # Errors
    /// What has failed the group.
    pub fn check(&self) -> Result<(), NcclError> {
        let core = &self.shared.core;
        core.health(&core.context("check".to_owned(), None))
    }

    /// Waits on this thread until all that this rank has issued is over.
    ///
    /// # Errors
    /// What has failed the group, or [`CollectiveError::Timeout`], which fails it.
    pub fn synchronize(&self) -> Result<(), NcclError> {
        let core = &self.shared.core;
        let context = core.context("synchronize".to_owned(), None);
        core.health(&context)?;
        loop {
            // As long as an operation ends now and then, the turn of the last will come.
            let finished = lock(&core.state).finished;
            match core.drain(Instant::now() + core.config.timeout) {
                Ok(true) => return core.health(&context),
                Ok(false) => core.health(&context)?,
                Err(source) => return Err(core.gpu_failed(&context, source)),
            }
            if lock(&core.state).finished == finished {
                return Err(core.late(&core.present()));
            }
        }
    }

    /// Gives the group up: what is under way and all later operations, here and on the other ranks,
    /// fail with `reason`, and NCCL lets go of the GPU.
    pub fn abort(&self, reason: impl Into<String>) {
        self.shared.core.abort(reason.into());
    }

    /// Ends this rank's part as if its process had been killed: without a word to the others, nor to
    /// NCCL. For tests of what the others do then.
    pub fn fall_silent(self) {
        self.shared.silent.store(true, Ordering::Relaxed);
        self.shared.close(false);
    }

    /// Leaves the group in good order: waits until what was issued is over and NCCL has given
    /// everything back. Other handles of the group fail from then on.
    ///
    /// # Errors
    /// What has failed the group; [`CollectiveError::Timeout`] or [`NcclError::NoAnswer`] when that takes
    /// longer than the group's timeout: it is aborted then.
    pub fn destroy(self) -> Result<(), NcclError> {
        let core = &self.shared.core;
        let left = core.leave(Instant::now() + core.config.timeout);
        self.shared.close(true);
        left
    }
}

/// What a rank tells the others through `store`; a group of one needs none.
fn notifier_of(store: SharedStore, config: &NcclConfig) -> Option<Arc<FailureNotifier>> {
    if config.world_size() == 1 {
        return None;
    }
    let prefix = format!("everburn/nccl/{}/{}", config.name, config.generation);
    let store = PrefixStore::new(prefix, store);
    let job_ranks = config.job_ranks.clone();
    Some(Arc::new(FailureNotifier::new(
        store,
        config.rank,
        job_ranks,
        config.heartbeat,
    )))
}

/// This rank will not come, for which the others would wait.
fn missed(
    error: NcclError,
    config: &NcclConfig,
    monitor: Option<Arc<dyn FailureMonitor>>,
    notifier: Option<Arc<FailureNotifier>>,
) -> NcclError {
    if let Some(monitor) = monitor {
        monitor.failed(&error);
    }
    if let Some(notifier) = notifier {
        notifier.tell_at_once(&error, config.job_rank());
    }
    error
}

fn start_threads(core: &Arc<Core>) -> Result<(), CollectiveError> {
    let start = |name: &str, body: Box<dyn FnOnce() + Send>| {
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(body);
        let refused = |error: std::io::Error| CollectiveError::System {
            rank: core.job_rank(),
            action: format!("start the thread {name}"),
            reason: error.to_string(),
        };
        thread.map(|_| ()).map_err(refused)
    };
    let supervised = core.clone();
    start(
        "everburn-nccl",
        Box::new(move || supervisor::supervise(&supervised)),
    )?;
    if let Some(notifier) = core.notifier.clone() {
        let core = Arc::downgrade(core);
        let progress = move || {
            let core = core.upgrade()?;
            let last = lock(&core.state).last.clone();
            Some(Heartbeat {
                issued: core.issued.load(Ordering::Acquire),
                last,
                ..Heartbeat::default()
            })
        };
        start(
            "everburn-nccl-notifier",
            Box::new(move || notifier.run(&progress)),
        )?;
    }
    Ok(())
}

impl fmt::Debug for NcclGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NcclGroup")
            .field("config", self.config())
            .field("nccl", &self.nccl_version())
            .finish_non_exhaustive()
    }
}
