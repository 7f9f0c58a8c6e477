//! Tensors that NCCL exchanges where they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::prelude::*;
use everburn_collectives::group::{CollectiveError, ProcessGroup, ReduceOp};
use everburn_nccl::{Library, NcclGroup, Work};

use super::exchange::{DeviceCollective, DeviceExchange, DeviceMemory, Lent, PendingTensor, Ready};
use crate::error::DdpError;

/// Who waits for the sums of a step.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::Waits;
///
/// assert_eq!(Waits::default(), Waits::Device);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Waits {
    /// The device: what comes after a sum on it waits, and the host continues. An error is found at the next
    /// [`DeviceExchange::check`], when the optimizer may have run with numbers that mean nothing.
    #[default]
    Device,
    /// The host, before the gradients of a step are handed out: for runs that continue from the newest whole
    /// step when a rank is lost. For what modules exchange the device waits here too: the sums of the step's buckets come
    /// after it on the same stream.
    Host,
}

/// Adds buckets up, and exchanges other tensors, by NCCL: on the GPUs that they are on, without a copy.
///
/// A sum runs on a stream of its own as soon as the kernels that were asked for before it have run, beside
/// the rest of the backward pass. Deadlines, lost ranks and errors are those of the [`ProcessGroup`] that was connected.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use std::sync::Arc;
/// use burn::prelude::*;
/// use everburn::distributed::{DeviceExchange, NcclExchange, Waits};
/// use everburn_distributed_fake::FakeMemory;
/// use everburn_nccl_fake::FakeCluster;
///
/// // Two ranks, as threads, on a stand-in for GPUs.
/// let cluster = Arc::new(FakeCluster::new(2));
/// let sums = cluster.on_all_ranks(|group, rank| {
///     let memory = Arc::new(FakeMemory::new(cluster.clone(), rank));
///     let exchange = NcclExchange::new(group, memory, Waits::Device);
///     let bucket = Tensor::<1>::full([3], rank as f32 + 1.0, &Device::flex());
///     exchange.begin(0, bucket)?.collect()
/// });
/// for sum in sums {
///     assert_eq!(sum?.into_data().to_vec::<f32>().unwrap(), [3.0; 3]);
/// }
/// # Ok::<(), everburn_distributed::DdpError>(())
/// ```
#[derive(Debug)]
pub struct NcclExchange {
    connection: Connection,
    /// Who waits for buckets.
    waits: Waits,
    /// Buckets are summed when they are collected.
    after_passes: AtomicBool,
}

/// What operations are begun with.
#[derive(Debug, Clone)]
struct Connection {
    group: NcclGroup,
    memory: Arc<dyn DeviceMemory>,
}

impl NcclExchange {
    /// Connects this rank's GPU number `device`, an index into `CUDA_VISIBLE_DEVICES` or `HIP_VISIBLE_DEVICES`, with those
    /// of the other ranks of `group`, all of which call it. Buckets are in `memory`.
    ///
    /// # Errors
    /// [`CollectiveError::NoPath`] on all ranks if one of them has no driver or GPU, or if the ranks cannot be connected;
    /// [`CollectiveError::Timeout`] names the ranks that have not come in time; [`CollectiveError::Device`] if NCCL fails.
    pub fn connect(
        library: &Arc<Library>,
        device: usize,
        group: &ProcessGroup,
        memory: Arc<dyn DeviceMemory>,
        waits: Waits,
    ) -> Result<Self, CollectiveError> {
        let group = NcclGroup::connect(library, device, group)?;
        Ok(Self::new(group, memory, waits))
    }

    /// Over `group`, which nobody else uses, with buckets in `memory`: for a stand-in of NCCL.
    #[must_use]
    pub fn new(group: NcclGroup, memory: Arc<dyn DeviceMemory>, waits: Waits) -> Self {
        Self {
            connection: Connection { group, memory },
            waits,
            after_passes: AtomicBool::new(false),
        }
    }

    fn group(&self) -> &NcclGroup {
        &self.connection.group
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
        Ok(Box::new(AfterPasses {
            connection: self.connection.clone(),
            waits: self.waits,
            collective,
            what,
            numbers,
        }))
    }
}

impl DeviceExchange for NcclExchange {
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
                    .begin(collective, what, Waits::Device, numbers)
            }
        }
    }

    fn sum_after_passes(&self) {
        self.after_passes.store(true, Ordering::Release);
    }

    fn check(&self) -> Result<(), DdpError> {
        Ok(self.group().check()?)
    }

    fn settle(&self) -> Result<(), DdpError> {
        Ok(self.group().synchronize()?)
    }

    fn abort(&self, reason: &str) {
        self.group().process_group().abort(reason);
    }
}

impl Connection {
    /// Puts a collective of `numbers` on the group's stream; errors call the numbers `what`. Where the driver cannot order
    /// streams, the host waits in any case.
    fn begin(
        &self,
        collective: DeviceCollective,
        what: String,
        waits: Waits,
        numbers: Tensor<1>,
    ) -> Result<Box<dyn PendingTensor>, DdpError> {
        let (device, dtype, length) = (numbers.device(), numbers.dtype(), numbers.dims()[0]);
        if length == 0 {
            // All ranks have none.
            return Ok(Box::new(Ready(numbers)));
        }
        let Self { group, memory } = self;
        let failed = |reason| DdpError::DeviceMemory {
            what: what.clone(),
            reason,
        };
        let ranks = group.process_group().world_size();
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
        let orders = group.orders_device();
        if !orders {
            memory.synchronize(&device).map_err(failed)?;
        }
        let work = match (collective, &receive) {
            (DeviceCollective::ReduceScatter { .. }, Some(receive)) => {
                group.reduce_scatter(send.buffer(), receive.buffer(), ReduceOp::Sum)?
            }
            (DeviceCollective::AllGather, Some(receive)) => {
                group.all_gather(send.buffer(), receive.buffer())?
            }
            _ => group.all_reduce(send.buffer(), ReduceOp::Sum)?,
        };
        Ok(Box::new(NcclTensor {
            work,
            // The operation keeps what it sends until the GPU has done it.
            lent: receive.unwrap_or(send),
            memory: memory.clone(),
            waits: if orders { waits } else { Waits::Host },
            what,
        }))
    }
}

/// What NCCL writes.
struct NcclTensor {
    work: Work,
    lent: Lent,
    memory: Arc<dyn DeviceMemory>,
    waits: Waits,
    what: String,
}

impl PendingTensor for NcclTensor {
    fn collect(self: Box<Self>) -> Result<Tensor<1>, DdpError> {
        let this = *self;
        match this.waits {
            Waits::Device => this.work.hold_device()?,
            Waits::Host => this.work.wait()?,
        }
        let what = this.what;
        let failed = |reason| DdpError::DeviceMemory { what, reason };
        this.memory.take_back(this.lent).map_err(failed)
    }
}

/// A bucket whose turn comes when it is collected.
struct AfterPasses {
    connection: Connection,
    waits: Waits,
    collective: DeviceCollective,
    what: String,
    numbers: Tensor<1>,
}

impl PendingTensor for AfterPasses {
    fn collect(self: Box<Self>) -> Result<Tensor<1>, DdpError> {
        let this = *self;
        let begun = this
            .connection
            .begin(this.collective, this.what, this.waits, this.numbers)?;
        begun.collect()
    }
}
