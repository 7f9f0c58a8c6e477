//! A stand-in for NCCL and GPUs, on threads of one process, for tests: memory that is the host's, streams
//! and events that are asynchronous, collectives that really reduce and copy, and faults on request.
//!
//! [`FakeCluster`] is the machine room: it connects process groups by the real [`NcclBackend`] over its own
//! [`NcclApi`]. [`Fault`] is what can be made to go wrong. Like NCCL, the stand-in waits for ever for a
//! rank that does not come, and does not compare what ranks call.

mod fabric;
mod fault;
mod gpu;
mod memory;
mod number;
mod stream;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use everburn_collectives::group::{CollectiveError, GroupOptions, ProcessGroup};
use everburn_nccl::api::NcclApi;
use everburn_nccl::{DeviceBuffer, NcclBackend, Status};
use everburn_record::sync::lock;

use self::fabric::Fabric;
pub use self::fault::Fault;
use self::gpu::FakeGpu;
pub use self::number::Number;

/// Long enough for a busy machine; only tests of the deadline itself use less.
const GENEROUS: Duration = Duration::from_secs(60);

/// A cluster of ranks with a GPU each, all of it made up.
///
/// ```
/// use everburn_collectives::group::{CollectiveError, ReduceOp};
/// use everburn_nccl_fake::FakeCluster;
///
/// let cluster = FakeCluster::new(4);
/// let sums = cluster.on_all_ranks(|nccl, rank| {
///     let numbers = cluster.allocate(rank, &[rank as i32]);
///     nccl.all_reduce(&numbers, ReduceOp::Sum)?.wait()?;
///     Ok::<_, CollectiveError>(cluster.read::<i32>(&numbers))
/// });
/// assert!(sums.into_iter().all(|sum| sum.unwrap() == [6]));
/// ```
pub struct FakeCluster {
    gpus: Vec<Arc<FakeGpu>>,
    fabric: Arc<Fabric>,
}

/// A stream on which a rank computes, beside that of its backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComputeStream(usize);

impl FakeCluster {
    /// A cluster of this many ranks.
    #[must_use]
    pub fn new(ranks: usize) -> Self {
        let fabric = Arc::new(Fabric::default());
        // Handles are never zero, which would be a null pointer.
        let handles = Arc::new(AtomicUsize::new(1));
        let gpu = |rank| Arc::new(FakeGpu::new(rank, fabric.clone(), handles.clone()));
        Self {
            gpus: (0..ranks).map(gpu).collect(),
            fabric,
        }
    }

    /// Process groups of all ranks, as threads, in rank order.
    #[must_use]
    pub fn process_groups(&self, timeout: Duration) -> Vec<ProcessGroup> {
        let timeout = Some(timeout);
        let options = GroupOptions {
            timeout,
            ..GroupOptions::default()
        };
        ProcessGroup::over_threads(self.gpus.len(), options)
    }

    /// NCCL on the GPU of `rank`.
    #[must_use]
    pub fn gpu(&self, rank: usize) -> Arc<dyn NcclApi> {
        self.gpus[rank].clone()
    }

    /// Connects `rank` of the cluster with the others of `group`.
    ///
    /// # Errors
    /// As [`NcclBackend::connect`].
    pub fn connect(
        &self,
        rank: usize,
        group: &ProcessGroup,
    ) -> Result<Arc<NcclBackend>, CollectiveError> {
        NcclBackend::connect(Ok(self.gpu(rank)), group)
    }

    /// The backend of a cluster of one rank.
    ///
    /// # Panics
    /// When the cluster has more ranks, or a fault keeps it from connecting.
    #[must_use]
    pub fn alone(&self) -> Arc<NcclBackend> {
        self.alone_within(GENEROUS)
    }

    /// The same with another deadline.
    ///
    /// # Panics
    /// As [`FakeCluster::alone`].
    #[must_use]
    pub fn alone_within(&self, timeout: Duration) -> Arc<NcclBackend> {
        assert_eq!(self.gpus.len(), 1, "the others would be waited for");
        let group = self.process_groups(timeout).remove(0);
        self.connect(0, &group)
            .expect("nothing is made to go wrong")
    }

    /// Connects all ranks, each on a thread of its own, and calls `body` there; the results in rank
    /// order.
    ///
    /// # Panics
    /// When a rank does not connect, or `body` panics.
    pub fn on_all_ranks<R: Send>(
        &self,
        body: impl Fn(Arc<NcclBackend>, usize) -> R + Sync,
    ) -> Vec<R> {
        self.on_all_ranks_within(GENEROUS, body)
    }

    /// [`FakeCluster::on_all_ranks`] with another deadline.
    ///
    /// # Panics
    /// As [`FakeCluster::on_all_ranks`].
    pub fn on_all_ranks_within<R: Send>(
        &self,
        timeout: Duration,
        body: impl Fn(Arc<NcclBackend>, usize) -> R + Sync,
    ) -> Vec<R> {
        let run = |group: ProcessGroup| {
            let rank = group.rank();
            let connected = self.connect(rank, &group);
            let connected = connected.unwrap_or_else(|error| panic!("{error}"));
            // None fails while another still connects.
            let all = group.barrier().wait();
            all.unwrap_or_else(|error| panic!("{error}"));
            drop(group);
            body(connected, rank)
        };
        std::thread::scope(|scope| {
            let run = &run;
            let groups = self.process_groups(timeout).into_iter();
            let threads: Vec<_> = groups
                .map(|group| scope.spawn(move || run(group)))
                .collect();
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

    /// The operations that `rank` has called since this was last asked, in their order: `all_reduce(f32[2], sum)`.
    #[must_use]
    pub fn take_calls(&self, rank: usize) -> Vec<String> {
        std::mem::take(&mut *lock(&self.gpus[rank].calls))
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
