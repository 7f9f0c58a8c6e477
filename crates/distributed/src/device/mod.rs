//! Gradients that stay on their devices.
//!
//! On CPUs a finished gradient is in host memory and is copied into a bucket there (`host.rs`). On a GPU it must stay
//! where it is. There a full bucket is copied into one flat buffer by one kernel (`flat.rs`), which multiplies by the
//! rank's share; a [`DeviceCommunicator`] sums the buffer over the ranks while the backward pass continues; and the mean
//! gradients are views of the buffer. The other values that ranks exchange (sample counts, used parameters, the order
//! of gradients) are on the host: they go through the process group and wait for no GPU.
//!
//! `communicator.rs` has the seam: a [`DeviceCommunicator`] sums flat buffers ([`NcclCommunicator`], or
//! [`HostCommunicator`] through host memory, with `rounded.rs` in 16 bits), and by NCCL it also sums what modules exchange
//! within passes, and scatters and gathers what is sharded (`segments.rs`); a [`DeviceMemory`] gives NCCL access to a
//! tensor's memory, on CUDA and ROCm (`gpu/memory.rs`) or in a fake for tests, so that everything but a few calls is tested
//! without a GPU. `choice.rs` agrees on one backend for all ranks, and `connect.rs` connects it.

mod choice;
mod communicator;
mod connect;
mod flat;
#[cfg(feature = "gpu")]
mod gpu;
mod host;
mod layout;
mod name;
mod nccl;
mod rounded;
mod segments;
mod staging;

use burn::prelude::*;
use everburn_profile::KernelTimer;

pub use self::choice::{Abilities, Choice, GradientBackend};
pub(crate) use self::communicator::Ready;
pub use self::communicator::{
    DeviceCollective, DeviceCommunicator, DeviceMemory, Lent, PendingTensor,
};
pub use self::connect::Connector;
pub(crate) use self::flat::{flatten, views};
#[cfg(any(feature = "cuda", feature = "rocm"))]
pub use self::gpu::CubeMemory;
pub use self::host::HostCommunicator;
pub(crate) use self::layout::FlatLayout;
pub use self::name::{DeviceName, DeviceUnavailable, UnknownDevice};
pub use self::nccl::{NcclCommunicator, NcclWait};
pub(crate) use self::segments::segments;

/// A timer of the kernels that this process runs on `device`; `None` if it is no GPU.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use burn::prelude::Device;
///
/// assert!(everburn::distributed::kernel_timer(&Device::flex()).is_none());
/// ```
pub fn kernel_timer(device: &Device) -> Option<Box<dyn KernelTimer>> {
    #[cfg(feature = "gpu")]
    return gpu::is_gpu(device).then(|| Box::<gpu::GpuKernelTimer>::default() as _);
    #[cfg(not(feature = "gpu"))]
    {
        let _ = device;
        None
    }
}

/// Whether `device` is a GPU, or a driver that acts as one: kernels are generated for it, and what is computed there
/// is not in the memory that the process reads.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use burn::prelude::Device;
///
/// assert!(!everburn::distributed::is_gpu(&Device::flex().autodiff()));
/// ```
pub fn is_gpu(device: &Device) -> bool {
    #[cfg(feature = "gpu")]
    return gpu::is_gpu(device);
    #[cfg(not(feature = "gpu"))]
    {
        let _ = device;
        false
    }
}

/// What a GPU says of itself.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use burn::prelude::Device;
/// use everburn::distributed::{GpuDescription, describe_gpu};
///
/// match describe_gpu(&Device::flex()) {
///     Some(GpuDescription { name, memory_bytes, .. }) => println!("{name}: {memory_bytes:?} bytes"),
///     None => println!("no GPU"),
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuDescription {
    /// As its driver names it.
    pub name: String,
    /// All of its memory, in bytes; `None` where the driver does not report it.
    pub memory_bytes: Option<u64>,
    /// How its kernels are sent: `cuda<...>`, `wgpu<wgsl>`, `wgpu<spirv>`.
    pub runtime: &'static str,
    /// What kernels are compiled for.
    pub fingerprint: String,
}

/// What the GPU `device` says of itself; `None` if it is no GPU. Opens the device.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use burn::prelude::Device;
///
/// assert_eq!(everburn::distributed::describe_gpu(&Device::flex()), None);
/// ```
pub fn describe_gpu(device: &Device) -> Option<GpuDescription> {
    #[cfg(feature = "gpu")]
    return gpu::describe(device);
    #[cfg(not(feature = "gpu"))]
    {
        let _ = device;
        None
    }
}

/// The GPUs that this build can use on this machine: CUDA's first, then those of ROCm, Metal and Vulkan, last a driver
/// that computes on the processor. Empty in a build without GPUs.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// for name in everburn::distributed::gpu_names() {
///     println!("{name}");
/// }
/// ```
pub fn gpu_names() -> Vec<DeviceName> {
    #[cfg(feature = "gpu")]
    return gpu::names();
    #[cfg(not(feature = "gpu"))]
    Vec::new()
}
