//! Buckets that are added up by NCCL where they are.

use std::sync::Arc;

use burn::prelude::*;
use everburn_collectives::group::ReduceOp;
use everburn_nccl::{NcclGroup, Work};

use super::exchange::{DeviceExchange, DeviceMemory, Lent, PendingSum};
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
    /// step when a rank is lost.
    Host,
}

/// Adds buckets up by NCCL, on the GPUs that they are on, without a copy.
///
/// A sum runs on a stream of its own as soon as the kernels that were asked for before it have run, beside
/// the rest of the backward pass. Deadlines, lost ranks and errors are [`NcclGroup`]'s.
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
    group: NcclGroup,
    memory: Arc<dyn DeviceMemory>,
    waits: Waits,
}

impl NcclExchange {
    /// Over `group`, which nobody else uses, with buckets in `memory`.
    #[must_use]
    pub fn new(group: NcclGroup, memory: Arc<dyn DeviceMemory>, waits: Waits) -> Self {
        Self {
            group,
            memory,
            waits,
        }
    }

    /// The group of ranks.
    #[must_use]
    pub fn group(&self) -> &NcclGroup {
        &self.group
    }
}

impl DeviceExchange for NcclExchange {
    fn name(&self) -> &'static str {
        "nccl"
    }

    fn begin(&self, bucket: usize, numbers: Tensor<1>) -> Result<Box<dyn PendingSum>, DdpError> {
        let device = numbers.device();
        let failed = |reason| DdpError::DeviceMemory { bucket, reason };
        let lent = self.memory.lend(numbers).map_err(failed)?;
        let orders = self.group.orders_device();
        if !orders {
            self.memory.synchronize(&device).map_err(failed)?;
        }
        let work = self.group.all_reduce(lent.buffer(), ReduceOp::Sum)?;
        Ok(Box::new(NcclSum {
            work,
            lent,
            memory: self.memory.clone(),
            waits: if orders { self.waits } else { Waits::Host },
            bucket,
        }))
    }

    fn check(&self) -> Result<(), DdpError> {
        Ok(self.group.check()?)
    }

    fn settle(&self) -> Result<(), DdpError> {
        Ok(self.group.synchronize()?)
    }

    fn abort(&self, reason: &str) {
        self.group.process_group().abort(reason);
    }
}

/// A bucket that NCCL adds up.
struct NcclSum {
    work: Work,
    lent: Lent,
    memory: Arc<dyn DeviceMemory>,
    waits: Waits,
    bucket: usize,
}

impl PendingSum for NcclSum {
    fn collect(self: Box<Self>) -> Result<Tensor<1>, DdpError> {
        let Self {
            work,
            lent,
            memory,
            waits,
            bucket,
        } = *self;
        match waits {
            Waits::Device => work.hold_device()?,
            Waits::Host => work.wait()?,
        }
        let failed = |reason| DdpError::DeviceMemory { bucket, reason };
        memory.take_back(lent).map_err(failed)
    }
}
