//! Devices by name, and what a GPU needs before anything is started on it.

use burn::prelude::Device;
pub use everburn_distributed::DeviceName;
use everburn_distributed::{DeviceUnavailable, UnknownDevice, describe_gpu, gpu_names};
use everburn_nccl::gpus;

use crate::kernels;

/// Why a device cannot be used.
///
/// ```
/// # mod everburn { pub use everburn_cli::{App, devices, kernels}; }
/// fn show(error: &everburn::devices::DeviceError) {
///     eprintln!("{}", error.message);
///     if let Some(help) = &error.help {
///         eprintln!("{help}");
///     }
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DeviceError {
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub help: Option<String>,
}

impl DeviceError {
    fn new(message: impl Into<String>, help: impl Into<Option<String>>) -> Self {
        Self {
            message: message.into(),
            help: help.into(),
        }
    }
}

impl From<UnknownDevice> for DeviceError {
    fn from(error: UnknownDevice) -> Self {
        let help = "devices are flex, cuda:0, rocm:0, metal:0, vulkan:0, webgpu:0 (or 1, 2, ...), and webgpu:cpu; \
                    `everburn devices` lists those of this machine";
        Self::new(error.to_string(), help.to_string())
    }
}

impl From<DeviceUnavailable> for DeviceError {
    fn from(error: DeviceUnavailable) -> Self {
        Self::new(error.to_string(), None)
    }
}

fn parsed(names: &[String]) -> Result<Vec<DeviceName>, DeviceError> {
    let parsed = names.iter().map(|name| name.parse());
    Ok(parsed.collect::<Result<_, UnknownDevice>>()?)
}

/// The indices of the NVIDIA GPUs among devices, each once, in their order.
fn cuda_indices(names: &[String]) -> Result<Vec<usize>, DeviceError> {
    let mut indices = Vec::new();
    for name in parsed(names)? {
        if let DeviceName::Cuda(index) = name
            && !indices.contains(&index)
        {
            indices.push(index);
        }
    }
    Ok(indices)
}

/// The APIs for whose GPUs this program has kernels, best first.
#[must_use]
pub fn built_for() -> Vec<&'static str> {
    let features = [
        ("cuda", cfg!(feature = "cuda")),
        ("rocm", cfg!(feature = "rocm")),
        ("metal", cfg!(feature = "metal")),
        ("vulkan", cfg!(feature = "vulkan")),
        ("webgpu", cfg!(feature = "webgpu")),
    ];
    let built = features.into_iter().filter(|(_, built)| *built);
    built.map(|(api, _)| api).collect()
}

/// The first `count` GPUs of the best API that has any here: CUDA, then ROCm, Metal, Vulkan, WebGPU. Where there are
/// fewer, or none, the names continue: [`check`] says what is missing.
pub(crate) fn first_gpus(count: usize) -> Vec<String> {
    let nvidia = cfg!(feature = "cuda") && gpus().is_ok();
    let found = match nvidia {
        true => Some("cuda"),
        false => gpu_names()
            .into_iter()
            .find(|name| *name != DeviceName::WebGpuCpu)
            .map(DeviceName::api),
    };
    let api = found.or_else(|| built_for().first().copied());
    let api = api.unwrap_or("cuda");
    (0..count).map(|index| format!("{api}:{index}")).collect()
}

/// Checks that every device of the list can be used, before anything is started; says in a line which GPUs there
/// are in it, if any.
///
/// # Errors
/// [`DeviceError`] if one cannot: a GPU, a driver or a library is missing.
pub fn check(names: &[String], ranks: usize) -> Result<Option<String>, DeviceError> {
    if names.is_empty() {
        return Err(DeviceError::new("--devices names no device", None));
    }
    let on_processor = || {
        let flex = match ranks == names.len() {
            true => format!("--ranks {ranks} in place of --gpus {ranks}"),
            false => format!("--devices {}", vec!["flex"; names.len()].join(",")),
        };
        Some(format!("on the CPU, the same with {flex}"))
    };
    let mut lines = Vec::new();
    let indices = cuda_indices(names)?;
    if let Some(first) = indices.first() {
        let found = gpus().and_then(|found| found.of(&indices));
        let usable = found.map_err(|error| error.to_string()).and_then(|found| {
            if cfg!(feature = "cuda-cpp") {
                everburn_nccl::nvrtc().map_err(|error| error.to_string())?;
            }
            if cfg!(feature = "cuda") {
                return Ok(found);
            }
            Err("this program was built without the feature `cuda`: build or install it with --features cuda".into())
        });
        let found = usable.map_err(|missing| {
            let message = match missing.starts_with("cuda:") {
                true => missing,
                false => format!("cuda:{first} cannot be used: {missing}"),
            };
            DeviceError::new(message, on_processor())
        })?;
        lines.push(found.to_string());
    }
    let mut others: Vec<DeviceName> = Vec::new();
    for name in parsed(names)? {
        if name.is_gpu() && !matches!(name, DeviceName::Cuda(_)) && !others.contains(&name) {
            others.push(name);
        }
    }
    for name in &others {
        name.open()
            .map_err(|missing| DeviceError::new(missing.to_string(), on_processor()))?;
    }
    if !others.is_empty() {
        let listed = others.iter().map(ToString::to_string);
        lines.push(listed.collect::<Vec<_>>().join(", "));
    }
    Ok((!lines.is_empty()).then(|| lines.join("; ")))
}

/// The name of the device of the rank with this number on its machine: ranks take them in turn.
pub(crate) fn name_of_rank(names: &[String], local_rank: usize) -> &str {
    &names[local_rank % names.len()]
}

/// The device of the rank with this number on its machine. Nothing is put there yet.
///
/// # Errors
/// [`DeviceError`] if the name is no device's, or this program or machine cannot use it.
///
/// # Panics
/// If there are no names.
pub fn of_rank(names: &[String], local_rank: usize) -> Result<Device, DeviceError> {
    let name: DeviceName = name_of_rank(names, local_rank).parse()?;
    if name.is_gpu() {
        // Before the first kernel, unless that was done.
        kernels::keep(None);
    }
    if let DeviceName::Cuda(index) = name {
        check(&[format!("cuda:{index}")], 1)?;
    }
    Ok(name.open()?)
}

/// How much memory the rank with this number on its machine may count on, in bytes: an equal part for each of
/// the `ranks` that have the same device. `None` where the system does not report it.
///
/// # Panics
/// If there are no names.
pub fn free_memory(names: &[String], local_rank: usize, ranks: usize) -> Option<u64> {
    let name = name_of_rank(names, local_rank);
    let sharing = (0..ranks.max(1)).filter(|rank| name_of_rank(names, *rank) == name);
    let free = match name.parse().ok()? {
        DeviceName::Flex | DeviceName::WebGpuCpu => host_memory()?,
        DeviceName::Cuda(index) => {
            let inventory = gpus().ok()?;
            let gpu = inventory.gpus.get(index)?;
            gpu.free_bytes.unwrap_or(gpu.memory_bytes)
        }
        other => describe_gpu(&other.open().ok()?)?.memory_bytes?,
    };
    Some(free / sharing.count().max(1) as u64)
}

/// How much memory of the machine this process may still use, in bytes: what is left, or less where the limits of its control
/// groups leave less. `None` where the system does not report it.
pub(crate) fn host_memory() -> Option<u64> {
    let machine = everburn_record::proc::available_memory()?;
    Some(everburn_record::cgroup::memory_left().map_or(machine, |left| left.min(machine)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_and_nonsense_is_refused() {
        let error = check(&["gpu:0".to_string()], 1).unwrap_err();
        assert!(error.to_string().contains("no device called"), "{error}");
        assert!(error.help.unwrap().contains("vulkan:0"));
        let names = ["cuda:3", "flex", "cuda:1", "vulkan:0", "cuda:3"].map(String::from);
        assert_eq!(cuda_indices(&names).unwrap(), [3, 1]);
    }

    #[test]
    fn gpus_are_counted_from_the_first_of_one_api() {
        let names = first_gpus(3);
        let (api, first) = names[0].split_once(':').unwrap();
        assert_eq!(first, "0");
        assert_eq!(names[2], format!("{api}:2"));
        assert!(names[0].parse::<DeviceName>().unwrap().is_gpu());
    }

    #[test]
    fn what_is_not_built_in_or_not_there_is_refused_before_anything_is_started() {
        let error = check(&["rocm:99".to_string()], 1).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("rocm:99 cannot be used: "), "{text}");
        assert!(error.help.unwrap().contains("--ranks 1"));
    }

    #[test]
    fn ranks_on_one_device_share_its_memory() {
        let names = ["flex".to_string()];
        let (Some(alone), Some(four)) = (free_memory(&names, 0, 1), free_memory(&names, 3, 4))
        else {
            assert!(!std::path::Path::new("/proc/meminfo").exists());
            everburn_tests::skip(
                "the memory of a device's ranks",
                "there is no /proc/meminfo",
            );
            return;
        };
        // Other processes take and give back memory meanwhile.
        assert!(four < alone, "{four} {alone}");
        assert_eq!(free_memory(&["cuda:99".to_string()], 0, 1), None);
    }

    #[test]
    fn a_missing_gpu_says_what_is_missing_and_offers_ranks_on_the_processor() {
        if everburn_nccl::nvidia_driver().is_some() {
            everburn_tests::skip("what is said where there is no GPU", "there is one");
            return;
        }
        let error = check(&["cuda:0".to_string(), "cuda:1".to_string()], 2).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("cuda:0 cannot be used: no driver: "),
            "{text}"
        );
        let help = error.help.unwrap();
        assert!(help.contains("--ranks 2"), "{help}");
    }

    #[test]
    fn the_processor_needs_nothing() {
        assert_eq!(check(&["flex".to_string()], 4).unwrap(), None);
        assert!(check(&[], 1).is_err());
    }
}
