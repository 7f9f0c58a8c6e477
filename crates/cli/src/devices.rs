//! Devices by name, and what a GPU needs before anything is started on it.

use burn::prelude::Device;
use everburn_nccl::{Inventory, gpus};

#[cfg(feature = "cuda")]
use crate::kernels;

/// Why a device cannot be used.
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

/// A device that a rank can be given.
///
/// ```
/// use everburn_cli::devices::DeviceName;
///
/// assert_eq!("cuda:1".parse(), Ok(DeviceName::Cuda(1)));
/// assert!("gpu".parse::<DeviceName>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceName {
    /// The processor, by Burn's flex back end.
    Flex,
    /// An NVIDIA GPU by its number, counted as `CUDA_VISIBLE_DEVICES` has them.
    Cuda(usize),
}

impl std::str::FromStr for DeviceName {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        match text.split_once(':') {
            None if text == "flex" => Ok(Self::Flex),
            Some(("cuda", number)) if number.parse::<usize>().is_ok() => {
                Ok(Self::Cuda(number.parse().unwrap_or_default()))
            }
            _ => Err(DeviceError::new(
                format!("there is no device called `{text}`"),
                "devices are flex, cuda:0, cuda:1, ...".to_string(),
            )),
        }
    }
}

/// The numbers of the GPUs among devices, each once, in their order.
///
/// # Errors
/// [`DeviceError`] if a name is no device's.
pub fn gpus_of(names: &[String]) -> Result<Vec<usize>, DeviceError> {
    let mut numbers = Vec::new();
    for name in names {
        if let DeviceName::Cuda(number) = name.parse()?
            && !numbers.contains(&number)
        {
            numbers.push(number);
        }
    }
    Ok(numbers)
}

/// Checks that every device of the list can be used, before anything is started; says what GPUs there
/// are in it.
///
/// # Errors
/// [`DeviceError`] if one cannot: a GPU, a driver or a library is missing.
pub fn check(names: &[String], ranks: usize) -> Result<Option<Inventory>, DeviceError> {
    if names.is_empty() {
        return Err(DeviceError::new("--devices names no device", None));
    }
    let numbers = gpus_of(names)?;
    let Some(first) = numbers.first() else {
        return Ok(None);
    };
    let flex = match ranks == names.len() {
        true => format!("--ranks {ranks} in place of --gpus {ranks}"),
        false => format!("--devices {}", vec!["flex"; names.len()].join(",")),
    };
    let found = usable(&numbers).map_err(|missing| {
        let message = match missing.starts_with("cuda:") {
            true => missing,
            false => format!("cuda:{first} cannot be used: {missing}"),
        };
        DeviceError::new(message, format!("on the processor, the same with {flex}"))
    })?;
    Ok(Some(found))
}

/// The GPUs of these numbers, or what they lack, in words.
fn usable(numbers: &[usize]) -> Result<Inventory, String> {
    let found = gpus().and_then(|found| found.of(numbers));
    let found = found.map_err(|error| error.to_string())?;
    if !cfg!(feature = "cuda") {
        return Err(
            "this program was built without the feature `cuda`: build or install it with --features cuda"
                .to_string(),
        );
    }
    if cfg!(feature = "cuda-cpp") {
        everburn_nccl::nvrtc().map_err(|error| error.to_string())?;
    }
    Ok(found)
}

/// The device of the rank with this number on its machine. Nothing is put there yet.
///
/// # Errors
/// [`DeviceError`] if the name is no device's, or this program was built without CUDA.
///
/// # Panics
/// If there are no names.
pub fn of_rank(names: &[String], local_rank: usize) -> Result<Device, DeviceError> {
    match names[local_rank % names.len()].parse()? {
        DeviceName::Flex => Ok(Device::flex()),
        DeviceName::Cuda(number) => cuda(number),
    }
}

/// How much memory the rank with this number on its machine may count on, in bytes: an equal part for each of
/// the `ranks` that have the same device. `None` where the system does not tell.
///
/// # Panics
/// If there are no names.
pub fn free_memory(names: &[String], local_rank: usize, ranks: usize) -> Option<u64> {
    let name = &names[local_rank % names.len()];
    let sharing = (0..ranks.max(1)).filter(|rank| names[rank % names.len()] == *name);
    let free = match name.parse().ok()? {
        DeviceName::Flex => everburn_record::proc::available_memory()?,
        DeviceName::Cuda(number) => {
            let inventory = gpus().ok()?;
            let gpu = inventory.gpus.get(number)?;
            gpu.free_bytes.unwrap_or(gpu.memory_bytes)
        }
    };
    Some(free / sharing.count().max(1) as u64)
}

#[cfg(feature = "cuda")]
fn cuda(number: usize) -> Result<Device, DeviceError> {
    // Before the first kernel, unless that was done.
    kernels::keep(None);
    Ok(Device::cuda(number))
}

#[cfg(not(feature = "cuda"))]
fn cuda(number: usize) -> Result<Device, DeviceError> {
    check(&[format!("cuda:{number}")], 1)?;
    Err(DeviceError::new(
        "this program was built without CUDA",
        None,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_and_nonsense_is_refused() {
        assert_eq!("flex".parse::<DeviceName>().unwrap(), DeviceName::Flex);
        assert_eq!("cuda:3".parse::<DeviceName>().unwrap(), DeviceName::Cuda(3));
        for wrong in ["", "cuda", "cuda:", "cuda:x", "gpu:0"] {
            let error = wrong.parse::<DeviceName>().unwrap_err();
            assert!(error.to_string().contains("no device called"), "{error}");
        }
        let names = ["cuda:3", "flex", "cuda:1", "cuda:3"].map(String::from);
        assert_eq!(gpus_of(&names).unwrap(), [3, 1]);
    }

    #[test]
    fn ranks_on_one_device_share_its_memory() {
        let names = ["flex".to_string()];
        let (Some(alone), Some(four)) = (free_memory(&names, 0, 1), free_memory(&names, 3, 4))
        else {
            assert!(!std::path::Path::new("/proc/meminfo").exists());
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
