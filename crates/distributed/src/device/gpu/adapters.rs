//! The GPUs of this machine, as CubeCL's runtimes find them.

use burn::backend::DispatchDevice;
use burn::prelude::Device;
use burn_cubecl::CubeDevice;
use burn_cubecl::cubecl;
use cubecl::device::{DeviceUnavailable as Missing, WgpuBackend, WgpuDevice, WgpuDeviceKind};

use crate::device::GpuDescription;
use crate::device::name::{DeviceName, DeviceUnavailable};

/// The kinds of GPU of a graphics API, in the order in which they are counted. Software is named, and not counted.
const KINDS: [WgpuDeviceKind; 4] = [
    WgpuDeviceKind::DiscreteGpu(0),
    WgpuDeviceKind::IntegratedGpu(0),
    WgpuDeviceKind::VirtualGpu(0),
    WgpuDeviceKind::Other(0),
];

/// The GPUs that a graphics API has on this machine; none where the build has no such API.
fn adapters(backend: WgpuBackend) -> Vec<WgpuDeviceKind> {
    let of_kind = |kind: WgpuDeviceKind| {
        let one = CubeDevice::Wgpu(WgpuDevice::new(kind).on(backend));
        let found = CubeDevice::enumerate(one.to_id()).into_iter();
        found.filter_map(|id| match CubeDevice::from_id(id) {
            CubeDevice::Wgpu(device) => Some(device.kind),
            _ => None,
        })
    };
    KINDS.into_iter().flat_map(of_kind).collect()
}

/// All GPUs that this build can name on this machine: CUDA's, ROCm's, and those of one graphics API.
pub(crate) fn names() -> Vec<DeviceName> {
    let mut names: Vec<DeviceName> = CubeDevice::enumerate_all()
        .into_iter()
        .filter_map(|device| match device {
            CubeDevice::Cuda(device) => Some(DeviceName::Cuda(device.index)),
            CubeDevice::Hip(device) => Some(DeviceName::Rocm(device.index)),
            _ => None,
        })
        .collect();
    let of = |backend, name: fn(usize) -> DeviceName| (0..adapters(backend).len()).map(name);
    names.extend(of(WgpuBackend::Metal, DeviceName::Metal));
    names.extend(of(WgpuBackend::Vulkan, DeviceName::Vulkan));
    if names.is_empty() {
        names.extend(of(WgpuBackend::Auto, DeviceName::WebGpu));
    }
    if CubeDevice::wgpu(WgpuDeviceKind::Cpu).is_ok() {
        names.push(DeviceName::WebGpuCpu);
    }
    names
}

pub(crate) fn open(name: DeviceName) -> Result<Device, DeviceUnavailable> {
    let opened = match name {
        DeviceName::Flex => return Ok(Device::flex()),
        DeviceName::Cuda(index) => CubeDevice::cuda(index),
        DeviceName::Rocm(index) => CubeDevice::rocm(index),
        DeviceName::Metal(index) => graphics(WgpuBackend::Metal, index),
        DeviceName::Vulkan(index) => graphics(WgpuBackend::Vulkan, index),
        DeviceName::WebGpu(index) => graphics(WgpuBackend::Auto, index),
        DeviceName::WebGpuCpu => CubeDevice::wgpu(WgpuDeviceKind::Cpu),
    };
    let device = opened.map_err(|missing| match missing {
        Missing::NotLinked(_) => DeviceUnavailable::not_built(name),
        Missing::NoSuchDevice { available, .. } => DeviceUnavailable {
            device: name,
            reason: lacks(name, available),
        },
    })?;
    if name == DeviceName::WebGpuCpu && cfg!(feature = "vulkan") {
        // SPIR-V ends by a segmentation fault there, on Mesa 22.3.
        return Err(DeviceUnavailable {
            device: name,
            reason: "this program sends kernels as SPIR-V, with which software drivers crash or compute wrongly: \
                     build it with --features webgpu and without `vulkan`"
                .to_string(),
        });
    }
    Ok(Device::new(DispatchDevice::Cube(device)))
}

/// The GPU of this index on a graphics API.
fn graphics(backend: WgpuBackend, index: usize) -> Result<CubeDevice, Missing> {
    let all = adapters(backend);
    let of = |kind| match backend {
        WgpuBackend::Metal => CubeDevice::metal_msl(kind),
        WgpuBackend::Vulkan => CubeDevice::vulkan(kind),
        _ => CubeDevice::wgpu(kind),
    };
    match all.get(index) {
        Some(kind) => of(kind.clone()),
        // For the reason: a build without the API, or a machine without the GPU.
        None => match of(WgpuDeviceKind::Other(WgpuDeviceKind::MAX_INDEX)) {
            Err(Missing::NoSuchDevice { runtime, .. }) => Err(Missing::NoSuchDevice {
                runtime,
                available: all.len(),
            }),
            other => other,
        },
    }
}

/// What the machine has in place of `name`.
fn lacks(name: DeviceName, available: usize) -> String {
    let api = name.api();
    let driver = match name {
        DeviceName::Cuda(_) => "NVIDIA's driver",
        DeviceName::Rocm(_) => "AMD's ROCm, and access to /dev/kfd",
        DeviceName::Metal(_) => "macOS on a Mac with a GPU",
        DeviceName::WebGpuCpu => "a Vulkan driver for the CPU (Debian: mesa-vulkan-drivers)",
        _ => "a Vulkan driver for the GPU, and access to /dev/dri",
    };
    match available {
        0 => format!("this machine has no such device; it needs {driver}"),
        1 => format!("this machine has one GPU for {api}, which is {api}:0"),
        _ => format!(
            "this machine has {available} GPUs for {api}, {api}:0 to {api}:{}",
            available - 1
        ),
    }
}

pub(crate) fn name_of(device: &Device) -> Option<DeviceName> {
    match device.clone().inner().as_dispatch() {
        DispatchDevice::Cube(CubeDevice::Cuda(device)) => Some(DeviceName::Cuda(device.index)),
        DispatchDevice::Cube(CubeDevice::Hip(device)) => Some(DeviceName::Rocm(device.index)),
        DispatchDevice::Cube(CubeDevice::Wgpu(device)) => {
            if device.kind == WgpuDeviceKind::Cpu {
                return Some(DeviceName::WebGpuCpu);
            }
            let all = adapters(device.backend);
            let index = all.iter().position(|kind| *kind == device.kind)?;
            match device.backend {
                WgpuBackend::Metal => Some(DeviceName::Metal(index)),
                WgpuBackend::Vulkan => Some(DeviceName::Vulkan(index)),
                WgpuBackend::Auto => Some(DeviceName::WebGpu(index)),
                _ => None,
            }
        }
        _ => None,
    }
}

/// What the GPU `device` says of itself; `None` if it is none.
pub(crate) fn describe(device: &Device) -> Option<GpuDescription> {
    match device.clone().inner().as_dispatch() {
        DispatchDevice::Cube(device) => {
            let client = device.client();
            let properties = client.properties();
            Some(GpuDescription {
                name: properties.identity.name.clone(),
                memory_bytes: properties.memory.max_memory(),
                runtime: client.name(),
                fingerprint: properties.identity.fingerprint.clone(),
            })
        }
        _ => None,
    }
}
