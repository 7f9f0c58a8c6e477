//! Collectives by NCCL of tensors where they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::prelude::*;
use everburn_collectives::group::ReduceOp;
use everburn_nccl::NcclBackend;

use super::communicator::{
    DeviceCollective, DeviceCommunicator, DeviceMemory, PendingTensor, Ready,
};
use crate::error::DdpError;

/// Who waits for the sums of a step.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::NcclWait;
///
/// assert_eq!(NcclWait::default(), NcclWait::Device);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NcclWait {
    /// The device: what comes after a sum on it waits, and the host continues. An error is found at the next
    /// [`DeviceCommunicator::check`], when the optimizer may have run with numbers that mean nothing.
    #[default]
    Device,
    /// The host, before the gradients of a step are handed out: for runs that continue from the newest whole
    /// step when a rank is lost. For what modules exchange the device waits here too: the sums of the step's buckets come
    /// after it on the same stream.
    Host,
}

/// The collectives of buckets and other tensors by NCCL: on the GPUs that they are on, without a copy.
///
/// A sum runs on a stream of its own as soon as the kernels that were asked for before it have run, beside
/// the rest of the backward pass. Deadlines, lost ranks and errors are those of the process group.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use std::sync::Arc;
/// use burn::prelude::*;
/// use everburn::distributed::{DeviceCommunicator, NcclCommunicator, NcclWait};
/// use everburn_distributed_fake::FakeMemory;
/// use everburn_nccl_fake::FakeCluster;
///
/// // Two ranks, as threads, on a stand-in for GPUs.
/// let cluster = Arc::new(FakeCluster::new(2));
/// let sums = cluster.on_all_ranks(|nccl, rank| {
///     let memory = Arc::new(FakeMemory::new(cluster.clone(), rank));
///     let communicator = NcclCommunicator::new(nccl, memory, NcclWait::Device);
///     let bucket = Tensor::<1>::full([3], rank as f32 + 1.0, &Device::flex());
///     communicator.begin(0, bucket)?.collect()
/// });
/// for sum in sums {
///     assert_eq!(sum?.into_data().to_vec::<f32>().unwrap(), [3.0; 3]);
/// }
/// # Ok::<(), everburn_distributed::DdpError>(())
/// ```
#[derive(Debug)]
pub struct NcclCommunicator {
    connection: Connection,
    /// Who waits for buckets.
    waits: NcclWait,
    /// Buckets are summed when they are collected.
    after_passes: AtomicBool,
}

/// What operations are begun with.
#[derive(Debug, Clone)]
struct Connection {
    backend: Arc<NcclBackend>,
    memory: Arc<dyn DeviceMemory>,
}

impl NcclCommunicator {
    /// By `backend`, which nobody else uses, with buckets in `memory`.
    #[must_use]
    pub fn new(backend: Arc<NcclBackend>, memory: Arc<dyn DeviceMemory>, waits: NcclWait) -> Self {
        Self {
            connection: Connection { backend, memory },
            waits,
            after_passes: AtomicBool::new(false),
        }
    }

    /// Begins a collective of bucket `bucket`, now or when it is collected.
    fn begin_bucket(
        &self,
        collective: DeviceCollective,
        bucket: usize,
        numbers: Tensor<1>,
    ) -> Result<Box<dyn PendingTensor>, DdpError> {
        let what = format!("bucket {bucket} of the gradients");
        if !self.after_passes.load(Ordering::Acquire) {
            return self.connection.begin(collective, what, self.waits, numbers);
        }
        let (connection, waits) = (self.connection.clone(), self.waits);
        Ok(Box::new(Deferred(move || {
            let begun = connection.begin(collective, what, waits, numbers)?;
            begun.collect()
        })))
    }
}

impl DeviceCommunicator for NcclCommunicator {
    fn name(&self) -> &'static str {
        "nccl"
    }

    fn begin(&self, bucket: usize, numbers: Tensor<1>) -> Result<Box<dyn PendingTensor>, DdpError> {
        self.begin_bucket(DeviceCollective::AllReduce, bucket, numbers)
    }

    fn has_collectives(&self) -> bool {
        true
    }

    fn begin_collective(
        &self,
        collective: DeviceCollective,
        numbers: Tensor<1>,
    ) -> Result<Box<dyn PendingTensor>, DdpError> {
        match collective {
            DeviceCollective::ReduceScatter { bucket } => {
                self.begin_bucket(collective, bucket, numbers)
            }
            DeviceCollective::AllReduce | DeviceCollective::AllGather => {
                let what = format!("a tensor of {collective}");
                self.connection
                    .begin(collective, what, NcclWait::Device, numbers)
            }
        }
    }

    fn sum_after_passes(&self) {
        self.after_passes.store(true, Ordering::Release);
    }

    fn check(&self) -> Result<(), DdpError> {
        Ok(self.connection.backend.check()?)
    }

    fn settle(&self) -> Result<(), DdpError> {
        Ok(self.connection.backend.synchronize()?)
    }

    fn abort(&self, reason: &str) {
        self.connection.backend.process_group().abort(reason);
    }
}

impl Connection {
    /// Puts a collective of `numbers` on the backend's stream; errors call the numbers `what`. Where the driver cannot order
    /// streams, the host waits in any case.
    fn begin(
        &self,
        collective: DeviceCollective,
        what: String,
        waits: NcclWait,
        numbers: Tensor<1>,
    ) -> Result<Box<dyn PendingTensor>, DdpError> {
        let (device, dtype, length) = (numbers.device(), numbers.dtype(), numbers.dims()[0]);
        if length == 0 {
            // All ranks have none.
            return Ok(Box::new(Ready(numbers)));
        }
        let Self { backend, memory } = self;
        let failed = |reason| DdpError::DeviceMemory {
            what: what.clone(),
            reason,
        };
        let ranks = backend.process_group().world_size();
        let room = match collective {
            DeviceCollective::AllReduce => None,
            DeviceCollective::ReduceScatter { .. } => Some(length / ranks),
            DeviceCollective::AllGather => Some(length * ranks),
        };
        let send = memory.lend(numbers).map_err(failed)?;
        let receive = match room {
            None => None,
            Some(room) => {
                let room = Tensor::zeros([room], (&device, dtype));
                Some(memory.lend(room).map_err(failed)?)
            }
        };
        let orders = backend.orders_device();
        if !orders {
            memory.synchronize(&device).map_err(failed)?;
        }
        let work = match (collective, &receive) {
            (DeviceCollective::ReduceScatter { .. }, Some(receive)) => {
                backend.reduce_scatter(send.buffer(), receive.buffer(), ReduceOp::Sum)?
            }
            (DeviceCollective::AllGather, Some(receive)) => {
                backend.all_gather(send.buffer(), receive.buffer())?
            }
            _ => backend.all_reduce(send.buffer(), ReduceOp::Sum)?,
        };
        // The operation keeps what it sends until the GPU has done it.
        let (lent, memory) = (receive.unwrap_or(send), memory.clone());
        let waits = if orders { waits } else { NcclWait::Host };
        Ok(Box::new(Deferred(move || {
            match waits {
                NcclWait::Device => work.hold_device()?,
                NcclWait::Host => work.wait()?,
            }
            let failed = |reason| DdpError::DeviceMemory { what, reason };
            memory.take_back(lent).map_err(failed)
        })))
    }
}

/// A result that is made when it is collected.
struct Deferred<F>(F);

impl<F: FnOnce() -> Result<Tensor<1>, DdpError> + Send> PendingTensor for Deferred<F> {
    fn collect(self: Box<Self>) -> Result<Tensor<1>, DdpError> {
        (self.0)()
    }
}
