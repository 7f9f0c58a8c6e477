//! Devices by name: `flex`, `cuda:0`, `vulkan:1`.

use std::fmt;
use std::str::FromStr;

use burn::prelude::Device;

/// A device that a rank can be given, as `--devices` names it.
///
/// Indices count the GPUs that an API has on this machine, from 0. On the graphics APIs (Metal, Vulkan, WebGPU)
/// discrete GPUs come first, then integrated ones, then those of virtual machines.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::DeviceName;
///
/// assert_eq!("cuda:1".parse(), Ok(DeviceName::Cuda(1)));
/// assert_eq!(DeviceName::WebGpuCpu.to_string(), "webgpu:cpu");
/// assert!("gpu".parse::<DeviceName>().is_err());
/// assert!(DeviceName::Flex.open().is_ok());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceName {
    /// The processor, by Burn's flex back end.
    Flex,
    /// An NVIDIA GPU, counted as `CUDA_VISIBLE_DEVICES` has them.
    Cuda(usize),
    /// An AMD GPU, counted as HIP has them.
    Rocm(usize),
    /// An Apple GPU.
    Metal(usize),
    /// A GPU that has a Vulkan driver.
    Vulkan(usize),
    /// A GPU on whichever graphics API this machine has, with kernels in WGSL where the build has no SPIR-V.
    WebGpu(usize),
    /// A graphics driver that computes on the processor (lavapipe): for tests, and slow.
    WebGpuCpu,
}

impl DeviceName {
    /// The name of `device`; `None` if this process cannot name it.
    pub fn of(device: &Device) -> Option<Self> {
        if device.clone().inner() == Device::flex() {
            return Some(Self::Flex);
        }
        #[cfg(feature = "gpu")]
        return super::gpu::name_of(device);
        #[cfg(not(feature = "gpu"))]
        None
    }

    /// The API alone: `cuda`, `vulkan`. It is also the feature that a build needs for it.
    pub fn api(self) -> &'static str {
        match self {
            Self::Flex => "flex",
            Self::Cuda(_) => "cuda",
            Self::Rocm(_) => "rocm",
            Self::Metal(_) => "metal",
            Self::Vulkan(_) => "vulkan",
            Self::WebGpu(_) | Self::WebGpuCpu => "webgpu",
        }
    }

    /// Whether kernels are generated for it: everything but [`DeviceName::Flex`].
    pub fn is_gpu(self) -> bool {
        self != Self::Flex
    }

    /// The device, after asking the machine whether it has it. Nothing is computed there yet.
    ///
    /// # Errors
    /// [`DeviceUnavailable`] if this build has no kernels for it, the machine does not have it, or it cannot be used.
    pub fn open(self) -> Result<Device, DeviceUnavailable> {
        if self == Self::Flex {
            return Ok(Device::flex());
        }
        #[cfg(feature = "gpu")]
        let opened = super::gpu::open(self);
        #[cfg(not(feature = "gpu"))]
        let opened = Err(DeviceUnavailable::not_built(self));
        opened
    }
}

impl FromStr for DeviceName {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> Result<Self, UnknownDevice> {
        let unknown = || UnknownDevice(text.to_string());
        let Some((api, number)) = text.split_once(':') else {
            return match text {
                "flex" => Ok(Self::Flex),
                _ => Err(unknown()),
            };
        };
        if text == "webgpu:cpu" {
            return Ok(Self::WebGpuCpu);
        }
        let number = number.parse().map_err(|_| unknown())?;
        match api {
            "cuda" => Ok(Self::Cuda(number)),
            "rocm" => Ok(Self::Rocm(number)),
            "metal" => Ok(Self::Metal(number)),
            "vulkan" => Ok(Self::Vulkan(number)),
            "webgpu" => Ok(Self::WebGpu(number)),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flex => f.write_str("flex"),
            Self::WebGpuCpu => f.write_str("webgpu:cpu"),
            Self::Cuda(number)
            | Self::Rocm(number)
            | Self::Metal(number)
            | Self::Vulkan(number)
            | Self::WebGpu(number) => write!(f, "{}:{number}", self.api()),
        }
    }
}

/// A text that names no device.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::{DeviceName, UnknownDevice};
///
/// let error: UnknownDevice = "gpu:0".parse::<DeviceName>().unwrap_err();
/// assert_eq!(error.to_string(), "there is no device called `gpu:0`");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no device called `{0}`")]
pub struct UnknownDevice(String);

/// Why a device that was named cannot be used.
///
/// ```
/// # mod everburn { pub use everburn_distributed as distributed; }
/// use everburn::distributed::{DeviceName, DeviceUnavailable};
///
/// let name = DeviceName::Vulkan(4000);
/// let error: DeviceUnavailable = name.open().unwrap_err();
/// assert_eq!(error.device, name);
/// assert!(error.to_string().starts_with("vulkan:4000 cannot be used: "));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{device} cannot be used: {reason}")]
pub struct DeviceUnavailable {
    /// The device.
    pub device: DeviceName,
    /// What is missing, and what to do about it.
    pub reason: String,
}

impl DeviceUnavailable {
    /// This build has no kernels for `device`.
    pub(crate) fn not_built(device: DeviceName) -> Self {
        let api = device.api();
        Self {
            device,
            reason: format!(
                "this program was built without the feature `{api}`: build or install it with --features {api}"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_parsed_as_it_is_written() {
        for name in [
            "flex",
            "cuda:3",
            "rocm:0",
            "metal:1",
            "vulkan:2",
            "webgpu:0",
            "webgpu:cpu",
        ] {
            assert_eq!(name.parse::<DeviceName>().unwrap().to_string(), name);
        }
        for wrong in [
            "",
            "cuda",
            "cuda:",
            "cuda:x",
            "gpu:0",
            "vulkan:cpu",
            "cuda:-1",
            "flex:0",
        ] {
            let error = wrong.parse::<DeviceName>().unwrap_err();
            assert!(error.to_string().contains("no device called"), "{error}");
        }
    }

    #[test]
    fn the_processor_is_named_with_and_without_autodiff() {
        let device = DeviceName::Flex.open().unwrap();
        assert_eq!(DeviceName::of(&device), Some(DeviceName::Flex));
        assert_eq!(DeviceName::of(&device.autodiff()), Some(DeviceName::Flex));
    }
}
