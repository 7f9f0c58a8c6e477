//! A stand-in for NCCL and GPUs, on threads of one process, for tests: memory that is the host's, streams
//! and events that are asynchronous, collectives that really reduce and copy, and faults on request.
//!
//! [`FakeCluster`] is the machine room: it connects ranks to real [`NcclGroup`]s over its own
//! [`NcclApi`]. [`Fault`] is what can be made to go wrong. Like NCCL, the stand-in waits for ever for a
//! rank that does not come, and does not compare what ranks call.

mod exchange;
mod fault;
mod gpu;
mod memory;
mod number;
mod stream;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use everburn_collectives::store::{HashStore, SharedStore};
use everburn_nccl::api::NcclApi;
use everburn_nccl::{DeviceBuffer, FailureMonitor, NcclConfig, NcclError, NcclGroup, Status};
use everburn_record::sync::lock;

use self::exchange::Fabric;
pub use self::fault::Fault;
use self::gpu::FakeGpu;
pub use self::number::Number;

/// Long enough for a busy machine; only tests of the deadline itself use less.
const GENEROUS: Duration = Duration::from_secs(60);

/// A cluster of ranks with a GPU each, all of it made up.
///
/// ```
/// use everburn_collectives::group::ReduceOp;
/// use everburn_nccl_fake::FakeCluster;
///
/// let cluster = FakeCluster::new(4);
/// let sums = cluster.on_all_ranks(|group, rank| {
///     let numbers = cluster.allocate(rank, &[rank as i32]);
///     group.all_reduce(&numbers, ReduceOp::Sum)?.wait()?;
///     Ok::<_, everburn_nccl::NcclError>(cluster.read::<i32>(&numbers))
/// });
/// assert!(sums.into_iter().all(|sum| sum.unwrap() == [6]));
/// ```
pub struct FakeCluster {
    gpus: Vec<Arc<FakeGpu>>,
    fabric: Arc<Fabric>,
    store: SharedStore,
}

/// A stream on which a rank computes, beside that of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComputeStream(usize);

impl FakeCluster {
    /// A cluster of this many ranks, with a store.
    #[must_use]
    pub fn new(ranks: usize) -> Self {
        let fabric = Arc::new(Fabric::default());
        // Handles are never zero, which would be a null pointer.
        let handles = Arc::new(AtomicUsize::new(1));
        let gpu = |rank| Arc::new(FakeGpu::new(rank, fabric.clone(), handles.clone()));
        Self {
            gpus: (0..ranks).map(gpu).collect(),
            store: Arc::new(HashStore::new()),
            fabric,
        }
    }

    /// What the ranks meet at.
    #[must_use]
    pub fn store(&self) -> SharedStore {
        self.store.clone()
    }

    /// The group of all ranks with generous deadlines, and frequent heartbeats.
    #[must_use]
    pub fn config(&self, rank: usize) -> NcclConfig {
        NcclConfig {
            timeout: GENEROUS,
            heartbeat: Duration::from_millis(10),
            tick: Duration::from_millis(2),
            ..NcclConfig::world(rank, self.gpus.len(), rank)
        }
    }

    /// Connects `rank` of the cluster as `config` says.
    ///
    /// # Errors
    /// As [`NcclGroup::connect`].
    pub fn connect(
        &self,
        rank: usize,
        config: NcclConfig,
        monitor: Option<Arc<dyn FailureMonitor>>,
    ) -> Result<NcclGroup, NcclError> {
        let gpu: Arc<dyn NcclApi> = self.gpus[rank].clone();
        NcclGroup::connect_with(gpu, self.store(), config, monitor)
    }

    /// The group of a cluster of one rank.
    ///
    /// # Panics
    /// When the cluster has more ranks, or a fault keeps it from connecting.
    #[must_use]
    pub fn alone(&self) -> NcclGroup {
        assert_eq!(self.gpus.len(), 1, "the others would be waited for");
        self.connect(0, self.config(0), None)
            .expect("nothing is made to go wrong")
    }

    /// Connects all ranks, each on a thread of its own, and calls `body` there; the results in rank
    /// order.
    ///
    /// # Panics
    /// When a rank does not connect, or `body` panics.
    pub fn on_all_ranks<R: Send>(&self, body: impl Fn(NcclGroup, usize) -> R + Sync) -> Vec<R> {
        self.on_ranks_of(|rank| self.config(rank), body)
    }

    /// [`FakeCluster::on_all_ranks`] with other configurations.
    ///
    /// # Panics
    /// As [`FakeCluster::on_all_ranks`].
    pub fn on_ranks_of<R: Send>(
        &self,
        config: impl Fn(usize) -> NcclConfig + Sync,
        body: impl Fn(NcclGroup, usize) -> R + Sync,
    ) -> Vec<R> {
        let run = |rank| {
            let group = self.connect(rank, config(rank), None);
            body(group.unwrap_or_else(|error| panic!("{error}")), rank)
        };
        std::thread::scope(|scope| {
            let run = &run;
            let ranks = 0..self.gpus.len();
            let threads: Vec<_> = ranks.map(|rank| scope.spawn(move || run(rank))).collect();
            let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
            joined
                .map(|result| result.expect("the rank's thread has panicked"))
                .collect()
        })
    }

    /// Numbers in the memory of `rank`.
    #[must_use]
    pub fn allocate<T: Number>(&self, rank: usize, numbers: &[T]) -> DeviceBuffer {
        self.allocate_for(rank, numbers, ())
    }

    /// Numbers in the memory of `rank` that belong to `owner`.
    ///
    /// # Panics
    /// When the cluster has no such rank.
    #[must_use]
    pub fn allocate_for<T: Number>(
        &self,
        rank: usize,
        numbers: &[T],
        owner: impl Send + 'static,
    ) -> DeviceBuffer {
        assert!(rank < self.gpus.len(), "there is no rank {rank}");
        let bytes = numbers.iter().flat_map(|number| number.bytes()).collect();
        self.fabric.memory.buffer(bytes, T::DTYPE, owner)
    }

    /// What is in the buffer now.
    #[must_use]
    pub fn read<T: Number>(&self, buffer: &DeviceBuffer) -> Vec<T> {
        let bytes = self.fabric.memory.read(buffer.bytes());
        bytes.chunks(T::DTYPE.size()).map(T::from_bytes).collect()
    }

    /// A stream on which `rank` computes.
    #[must_use]
    pub fn compute_stream(&self, rank: usize) -> ComputeStream {
        ComputeStream(self.gpus[rank].stream())
    }

    /// Puts a kernel on a stream of `rank`: it runs when all before it on the stream is over.
    ///
    /// # Panics
    /// When `rank` has no such stream.
    pub fn launch(
        &self,
        rank: usize,
        stream: ComputeStream,
        kernel: impl FnOnce() + Send + 'static,
    ) {
        let stream = self.gpus[rank].stream_of(stream.0);
        stream
            .expect("the stream was made by this rank")
            .give(kernel);
    }

    /// A kernel that writes numbers, for [`FakeCluster::launch`].
    pub fn writer<T: Number>(
        &self,
        buffer: &DeviceBuffer,
        numbers: &[T],
    ) -> impl FnOnce() + Send + use<T> + 'static {
        let (fabric, at) = (self.fabric.clone(), buffer.pointer());
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.bytes()).collect();
        move || fabric.memory.write(at, &bytes)
    }

    /// A kernel that copies numbers, for [`FakeCluster::launch`].
    pub fn copier(
        &self,
        from: &DeviceBuffer,
        to: &DeviceBuffer,
    ) -> impl FnOnce() + Send + use<> + 'static {
        let (fabric, from, at) = (self.fabric.clone(), from.bytes(), to.pointer());
        move || fabric.memory.write(at, &fabric.memory.read(from))
    }

    /// From now on this goes wrong on `rank`.
    pub fn inject(&self, rank: usize, fault: Fault) {
        lock(&self.gpus[rank].faults).push(fault);
    }

    /// Nothing goes wrong on `rank` any more.
    pub fn mend(&self, rank: usize) {
        lock(&self.gpus[rank].faults).clear();
    }

    /// The process of `rank` is gone, and with it what its GPU had to do. With `noticed`, the others'
    /// NCCL finds a closed connection, as between machines; else nothing.
    pub fn kill(&self, rank: usize, noticed: bool) {
        self.gpus[rank].dead.store(true, Ordering::Release);
        if noticed {
            let mut state = lock(&self.fabric.state);
            let others = state
                .communicators
                .values_mut()
                .filter(|other| other.rank != rank);
            others.for_each(|other| other.found = Some(Status::RemoteError));
        }
    }
}

impl Drop for FakeCluster {
    fn drop(&mut self) {
        lock(&self.fabric.state).closed = true;
        self.fabric.moved.notify_all();
    }
}

impl fmt::Debug for FakeCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeCluster")
            .field("ranks", &self.gpus.len())
            .finish_non_exhaustive()
    }
}
