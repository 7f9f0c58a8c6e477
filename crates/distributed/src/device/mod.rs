//! Gradients that stay on their devices.
//!
//! On the processor a gradient is in host memory when it is finished, and is copied into a bucket there
//! (`host.rs`). On a GPU it must stay where it is. There a full bucket becomes one row of numbers by one
//! kernel (`flat.rs`), which multiplies by the rank's share on the way; a [`DeviceExchange`] adds the row
//! up over the ranks while the backward pass goes on; and the mean gradients are parts of the row's memory.
//! What the ranks tell each other besides (numbers of samples, which parameters were used, the order of
//! gradients) are a few numbers that the host knows: they go by the process group and wait for no GPU.
//!
//! `exchange.rs` has the seam: [`DeviceExchange`] is a way to add rows up ([`NcclExchange`],
//! [`HostExchange`] through host memory, [`BurnExchange`]), [`DeviceMemory`] is how NCCL gets at a tensor's
//! memory, on CUDA (`cuda/`) or in a stand-in of the tests, so that all but CUDA's own few calls is tested
//! without a GPU. `choice.rs` is by which way gradients go, of which all ranks make one decision, and
//! `connect.rs` connects them.

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

/// What times each kernel that this process runs on `device`; `None` where that cannot be: only CUDA tells.
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

/// The number of the GPU that `device` is, counted as `CUDA_VISIBLE_DEVICES` has them; `None` where it is
/// no NVIDIA GPU.
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
