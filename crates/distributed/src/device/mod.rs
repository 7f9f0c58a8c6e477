//! Gradients that stay on their devices.
//!
//! On CPUs a finished gradient is in host memory and is copied into a bucket there (`host.rs`). On a GPU it must stay
//! where it is. There a full bucket is copied into one flat buffer by one kernel (`flat.rs`), which multiplies by the
//! rank's share; a [`DeviceExchange`] sums the buffer over the ranks while the backward pass goes on; and the mean
//! gradients are views of the buffer. The other values that ranks exchange (sample counts, used parameters, the order
//! of gradients) are on the host: they go through the process group and wait for no GPU.
//!
//! `exchange.rs` has the seam: a [`DeviceExchange`] sums flat buffers ([`NcclExchange`], [`HostExchange`] through host
//! memory, [`BurnExchange`]); a [`DeviceMemory`] gives NCCL access to a tensor's memory, on CUDA (`cuda/`) or in a
//! fake for tests, so that everything but a few CUDA calls is tested without a GPU. `choice.rs` agrees on one exchange
//! for all ranks, and `connect.rs` connects it.

mod choice;
mod collective;
mod connect;
#[cfg(feature = "cuda")]
mod cuda;
mod exchange;
mod flat;
mod host;
mod layout;
mod nccl;
mod staging;

use burn::prelude::*;
use everburn_profile::KernelTimer;

pub use self::choice::{Abilities, Choice, GradientBackend};
pub use self::collective::BurnExchange;
pub use self::connect::{ConnectExchange, Connector};
#[cfg(feature = "cuda")]
pub use self::cuda::CudaMemory;
pub use self::exchange::{DeviceExchange, DeviceMemory, Lent, PendingSum};
pub(crate) use self::flat::{flatten, views};
pub use self::host::HostExchange;
pub(crate) use self::layout::FlatLayout;
pub use self::nccl::{NcclExchange, Waits};

/// A timer of the kernels that this process runs on `device`; `None` if it is not on CUDA.
///
/// ```
/// use burn::prelude::Device;
///
/// assert!(everburn_distributed::kernel_timer(&Device::flex()).is_none());
/// ```
#[must_use]
pub fn kernel_timer(device: &Device) -> Option<Box<dyn KernelTimer>> {
    #[cfg(feature = "cuda")]
    return cuda::number_of(device).map(|_| Box::<cuda::CudaKernelTimer>::default() as _);
    #[cfg(not(feature = "cuda"))]
    {
        let _ = device;
        None
    }
}

/// The index of the GPU `device` among `CUDA_VISIBLE_DEVICES`; `None` if it is no NVIDIA GPU.
///
/// ```
/// use burn::prelude::Device;
///
/// assert_eq!(everburn_distributed::gpu_number(&Device::flex().autodiff()), None);
/// ```
#[must_use]
pub fn gpu_number(device: &Device) -> Option<usize> {
    #[cfg(feature = "cuda")]
    return cuda::number_of(device);
    #[cfg(not(feature = "cuda"))]
    {
        let _ = device;
        None
    }
}
