//! Collectives of tensors that are on devices: buckets of gradients, and others.

use std::any::Any;
use std::fmt;

use burn::prelude::*;
use everburn_nccl::DeviceBuffer;

use crate::error::DdpError;

/// A way to add up buckets of gradients over the ranks that leaves them on their devices, as far as it can; by NCCL, also
/// for collectives of other tensors.
///
/// All ranks begin the same sums and collectives in the same order. They continue while the device computes;
/// [`PendingTensor::collect`] yields the result.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; }
/// use burn::prelude::*;
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::distributed::{DeviceCommunicator, HostCommunicator};
///
/// let alone = ProcessGroup::alone(GroupOptions::default());
/// let communicator = HostCommunicator::start(alone)?;
/// let bucket = Tensor::<1>::from_floats([1.0, 2.0], &Device::flex());
/// let sum = communicator.begin(0, bucket)?.collect()?;
/// communicator.check()?;
/// assert_eq!(sum.into_data().to_vec::<f32>().unwrap(), [1.0, 2.0]);
/// # Ok::<(), everburn_distributed::DdpError>(())
/// ```
pub trait DeviceCommunicator: Send + Sync + fmt::Debug {
    /// `nccl`, `host`, `host-bf16`: for agreement between ranks, logs and reports.
    fn name(&self) -> &'static str;

    /// Begins the sum over all ranks of the numbers of bucket `bucket`, and waits for no other rank.
    ///
    /// # Errors
    /// What has failed the communicator, now or before.
    fn begin(&self, bucket: usize, numbers: Tensor<1>) -> Result<Box<dyn PendingTensor>, DdpError>;

    /// Whether other tensors have collectives, too ([`DeviceCommunicator::begin_collective`]). Without, it is for sums of
    /// buckets alone, and the others go through host memory.
    fn has_collectives(&self) -> bool {
        false
    }

    /// Begins a collective of the ranks' `numbers`, and waits for no other rank. Nobody else may change the numbers until it
    /// is over on the device.
    ///
    /// # Errors
    /// What has failed the communicator, now or before; [`DdpError::Backend`] if there are no collectives.
    fn begin_collective(
        &self,
        collective: DeviceCollective,
        numbers: Tensor<1>,
    ) -> Result<Box<dyn PendingTensor>, DdpError> {
        drop(numbers);
        Err(DdpError::Backend {
            wanted: self.name().to_string(),
            reason: format!("it sums buckets of gradients and has no {collective}"),
        })
    }

    /// From now on the sums of buckets begin when they are collected, after the passes of their step. For models whose modules
    /// exchange by NCCL within their passes: on a rank without samples, or with other parameters in use, a bucket is full at
    /// another place between those collectives, and all ranks must begin everything on a GPU in the same order.
    fn sum_after_passes(&self) {}

    /// How many bytes of gradients the sums that were collected since the last call have handed to collectives; `None`
    /// for as many as the buckets have.
    fn take_bytes(&self) -> Option<u64> {
        None
    }

    /// Whether nothing has gone wrong by now; does not wait. Sums that nobody has waited for on the host
    /// may still go wrong, so this is asked again before what was computed with them counts.
    ///
    /// # Errors
    /// What has failed the communicator.
    fn check(&self) -> Result<(), DdpError>;

    /// Waits until all sums that were begun are over, on the device too.
    ///
    /// # Errors
    /// What has failed the communicator.
    fn settle(&self) -> Result<(), DdpError>;

    /// Gives the communicator up on all ranks, whose errors have `reason`.
    fn abort(&self, reason: &str);
}

/// The collectives of a [`DeviceCommunicator`] beside the sums of buckets.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use std::sync::Arc;
/// use burn::prelude::*;
/// use everburn::distributed::{DeviceCollective, DeviceCommunicator, NcclCommunicator, NcclWait};
/// use everburn_distributed_fake::FakeMemory;
/// use everburn_nccl_fake::FakeCluster;
///
/// // Two ranks, as threads, on a stand-in for GPUs.
/// let cluster = Arc::new(FakeCluster::new(2));
/// let parts = cluster.on_all_ranks(|nccl, rank| {
///     let memory = Arc::new(FakeMemory::new(cluster.clone(), rank));
///     let communicator = NcclCommunicator::new(nccl, memory, NcclWait::Device);
///     let bucket = Tensor::<1>::from_floats([1.0, 2.0, 3.0, 4.0], &Device::flex());
///     let scatter = DeviceCollective::ReduceScatter { bucket: 0 };
///     communicator.begin_collective(scatter, bucket)?.collect()
/// });
/// for (part, expected) in parts.into_iter().zip([[2.0, 4.0], [6.0, 8.0]]) {
///     assert_eq!(part?.into_data().to_vec::<f32>().unwrap(), expected);
/// }
/// # Ok::<(), everburn_distributed::DdpError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceCollective {
    /// Every rank gets the sum.
    AllReduce,
    /// The numbers of a bucket have a part of equal length for each rank; every rank gets the sum of its own.
    ReduceScatter {
        /// The bucket's number.
        bucket: usize,
    },
    /// Every rank gets the numbers of all, in rank order.
    AllGather,
}

impl fmt::Display for DeviceCollective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter { .. } => "reduce_scatter",
            Self::AllGather => "all_gather",
        })
    }
}

/// The result of a collective that is under way.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use burn::prelude::*;
/// use everburn::distributed::{DdpError, PendingTensor};
///
/// /// The sum over one rank.
/// struct Own(Tensor<1>);
///
/// impl PendingTensor for Own {
///     fn collect(self: Box<Self>) -> Result<Tensor<1>, DdpError> {
///         Ok(self.0)
///     }
/// }
///
/// let pending: Box<dyn PendingTensor> = Box::new(Own(Tensor::ones([2], &Device::flex())));
/// assert_eq!(pending.collect()?.dims(), [2]);
/// # Ok::<(), DdpError>(())
/// ```
pub trait PendingTensor: Send {
    /// The result. What the device is given from now on comes after it; where the driver does not order that, this
    /// thread waits for the result.
    ///
    /// # Errors
    /// What has failed the communicator.
    fn collect(self: Box<Self>) -> Result<Tensor<1>, DdpError>;
}

/// A result that is there.
pub(crate) struct Ready(pub(crate) Tensor<1>);

impl PendingTensor for Ready {
    fn collect(self: Box<Self>) -> Result<Tensor<1>, DdpError> {
        Ok(self.0)
    }
}

/// How the numbers of a tensor get into an operation of NCCL and back.
///
/// `CubeMemory` is that of Burn's tensors on CUDA and ROCm; tests have a stand-in.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use burn::prelude::*;
/// use everburn::distributed::DeviceMemory;
///
/// /// Lends the numbers to an operation, and takes them back.
/// fn lend_and_take(memory: &dyn DeviceMemory, numbers: Tensor<1>) -> Result<Tensor<1>, String> {
///     let lent = memory.lend(numbers)?;
///     // The operation changes `lent.buffer()` here.
///     memory.take_back(lent)
/// }
/// ```
pub trait DeviceMemory: Send + Sync + fmt::Debug {
    /// The memory of `numbers`, in which operations change them in place. What writes them has been given
    /// to the device when this returns, and nobody else has a tensor that operations change. What is lent and not taken back
    /// stays until the operations are over.
    ///
    /// # Errors
    /// A tensor that is elsewhere, or whose memory cannot be had, in words.
    fn lend(&self, numbers: Tensor<1>) -> Result<Lent, String>;

    /// The tensor again, when all that the device is given from now on comes after the operations.
    ///
    /// # Errors
    /// Memory that was lent by something else, in words.
    fn take_back(&self, lent: Lent) -> Result<Tensor<1>, String>;

    /// Waits until the device has done what it was given: where drivers cannot order streams.
    ///
    /// # Errors
    /// What the device says, in words.
    fn synchronize(&self, device: &Device) -> Result<(), String>;
}

/// The memory of a tensor that is lent to operations.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::Lent;
/// use everburn_nccl_fake::FakeCluster;
///
/// let cluster = FakeCluster::new(1);
/// let lent = Lent::new(cluster.allocate(0, &[1f32, 2.0]), "whose it is");
/// assert_eq!(lent.buffer().len(), 2);
/// assert_eq!(lent.into_kept::<&str>(), Ok("whose it is"));
/// ```
pub struct Lent {
    buffer: DeviceBuffer,
    kept: Box<dyn Any + Send>,
}

impl Lent {
    /// The memory, and what is needed to give the tensor back.
    pub fn new(buffer: DeviceBuffer, kept: impl Any + Send) -> Self {
        let kept = Box::new(kept);
        Self { buffer, kept }
    }

    /// The memory.
    pub fn buffer(&self) -> &DeviceBuffer {
        &self.buffer
    }

    /// What was kept.
    ///
    /// # Errors
    /// That it is of another type: somebody else has lent it.
    pub fn into_kept<T: Any>(self) -> Result<T, String> {
        let kept = self.kept.downcast::<T>();
        let kept = kept.map_err(|_| "this memory was lent by somebody else".to_string());
        kept.map(|kept| *kept)
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent")
            .field("buffer", &self.buffer)
            .finish_non_exhaustive()
    }
}
