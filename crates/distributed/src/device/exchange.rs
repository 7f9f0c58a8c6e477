//! How buckets that are on devices are added up over the ranks.

use std::any::Any;
use std::fmt;

use burn::prelude::*;
use everburn_nccl::DeviceBuffer;

use crate::error::DdpError;

/// A way to add up buckets of gradients over the ranks that leaves them on their devices, as far as it can.
///
/// All ranks begin the same sums in the same order. A sum continues while the backward pass does;
/// [`PendingSum::collect`] yields it.
///
/// ```
/// # mod everburn { pub use everburn_collectives as collectives; pub use everburn_distributed as distributed; }
/// use burn::prelude::*;
/// use everburn::collectives::group::{GroupOptions, ProcessGroup};
/// use everburn::distributed::{DeviceExchange, HostExchange};
///
/// let alone = ProcessGroup::alone(GroupOptions::default());
/// let exchange = HostExchange::start(alone)?;
/// let bucket = Tensor::<1>::from_floats([1.0, 2.0], &Device::flex());
/// let sum = exchange.begin(0, bucket)?.collect()?;
/// exchange.check()?;
/// assert_eq!(sum.into_data().to_vec::<f32>().unwrap(), [1.0, 2.0]);
/// # Ok::<(), everburn_distributed::DdpError>(())
/// ```
pub trait DeviceExchange: Send + Sync + fmt::Debug {
    /// `nccl`, `host`, `host-bf16`, `burn`: for agreement between ranks, logs and reports.
    fn name(&self) -> &'static str;

    /// Begins the sum over all ranks of the numbers of bucket `bucket`, and waits for no other rank.
    ///
    /// # Errors
    /// What has failed the exchange, now or before.
    fn begin(&self, bucket: usize, numbers: Tensor<1>) -> Result<Box<dyn PendingSum>, DdpError>;

    /// How many bytes of gradients the sums that were collected since the last call have handed to collectives; `None`
    /// for as many as the buckets have.
    fn take_bytes(&self) -> Option<u64> {
        None
    }

    /// Whether nothing has gone wrong by now; does not wait. Sums that nobody has waited for on the host
    /// may still go wrong, so this is asked again before what was computed with them counts.
    ///
    /// # Errors
    /// What has failed the exchange.
    fn check(&self) -> Result<(), DdpError>;

    /// Waits until all sums that were begun are over, on the device too.
    ///
    /// # Errors
    /// What has failed the exchange.
    fn settle(&self) -> Result<(), DdpError>;

    /// Gives the exchange up on all ranks, which are told `reason`.
    fn abort(&self, reason: &str);
}

/// A sum over ranks under way.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use burn::prelude::*;
/// use everburn::distributed::{DdpError, PendingSum};
///
/// /// The sum over one rank.
/// struct Own(Tensor<1>);
///
/// impl PendingSum for Own {
///     fn collect(self: Box<Self>) -> Result<Tensor<1>, DdpError> {
///         Ok(self.0)
///     }
/// }
///
/// let pending: Box<dyn PendingSum> = Box::new(Own(Tensor::ones([2], &Device::flex())));
/// assert_eq!(pending.collect()?.dims(), [2]);
/// # Ok::<(), DdpError>(())
/// ```
pub trait PendingSum: Send {
    /// The sum. What the device is given from now on comes after it; where that cannot be had, this
    /// thread waits for the sum.
    ///
    /// # Errors
    /// What has failed the exchange.
    fn collect(self: Box<Self>) -> Result<Tensor<1>, DdpError>;
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
    /// to the device when this returns, and nobody else has the tensor.
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
    #[must_use]
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
