//! Devices by name, and what a GPU needs before anything is started on it.

use everburn::burn::prelude::Device;
use everburn::nccl::{Inventory, gpus};

use crate::error::CliError;
#[cfg(feature = "cuda")]
use crate::kernels;

/// A device that a rank can be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceName {
    /// The processor, by Burn's flex back end.
    Flex,
    /// An NVIDIA GPU by its number, counted as `CUDA_VISIBLE_DEVICES` has them.
    Cuda(usize),
}

impl std::str::FromStr for DeviceName {
    type Err = CliError;

    fn from_str(text: &str) -> Result<Self, CliError> {
        match text.split_once(':') {
            None if text == "flex" => Ok(Self::Flex),
            Some(("cuda", number)) if number.parse::<usize>().is_ok() => {
                Ok(Self::Cuda(number.parse().unwrap_or_default()))
            }
            _ => Err(CliError::usage_with_help(
                format!("there is no device called `{text}`"),
                "devices are flex, cuda:0, cuda:1, ...",
            )),
        }
    }
}

/// The numbers of the GPUs among devices, each once, in their order.
pub(crate) fn gpus_of(names: &[String]) -> Result<Vec<usize>, CliError> {
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
pub(crate) fn check(names: &[String], ranks: usize) -> Result<Option<Inventory>, CliError> {
    if names.is_empty() {
        return Err(CliError::usage("--devices names no device"));
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
        CliError::usage_with_help(message, format!("on the processor, the same with {flex}"))
    })?;
    Ok(Some(found))
}

/// The GPUs of these numbers, or what they lack, in words.
fn usable(numbers: &[usize]) -> Result<Inventory, String> {
    let found = gpus().and_then(|found| found.of(numbers));
    let found = found.map_err(|error| error.to_string())?;
    if !cfg!(feature = "cuda") {
        return Err(
            "this program was built without the feature `cuda`; build it with --features cuda, as \
             `cargo xtask train --gpus 1` does"
                .to_string(),
        );
    }
    if cfg!(feature = "cuda-cpp") {
        everburn::nccl::nvrtc().map_err(|error| error.to_string())?;
    }
    Ok(found)
}

/// The device of the rank with this number on its machine. Nothing is put there yet.
pub(crate) fn of_rank(names: &[String], local_rank: usize) -> Result<Device, CliError> {
    match names[local_rank % names.len()].parse()? {
        DeviceName::Flex => Ok(Device::flex()),
        DeviceName::Cuda(number) => cuda(number),
    }
}

/// How much memory the rank with this number on its machine may count on, in bytes: an equal part for each of
/// the `ranks` that have the same device. `None` where the system does not tell.
pub(crate) fn free_memory(names: &[String], local_rank: usize, ranks: usize) -> Option<u64> {
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
fn cuda(number: usize) -> Result<Device, CliError> {
    // Before the first kernel, unless that was done.
    kernels::keep(None);
    Ok(Device::cuda(number))
}

#[cfg(not(feature = "cuda"))]
fn cuda(number: usize) -> Result<Device, CliError> {
    check(&[format!("cuda:{number}")], 1)?;
    Err(CliError::usage("this program was built without CUDA"))
}

/// Whether a driver shows on this machine: quick, and nothing is opened.
#[cfg(test)]
pub(crate) fn has_nvidia_driver() -> bool {
    everburn::nccl::nvidia_driver().is_some()
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
        if has_nvidia_driver() {
            everburn_tests::skip("what is said where there is no GPU", "there is one");
            return;
        }
        let error = check(&["cuda:0".to_string(), "cuda:1".to_string()], 2).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("cuda:0 cannot be used: no driver: "),
            "{text}"
        );
        let help = miette::Diagnostic::help(&error).unwrap().to_string();
        assert!(help.contains("--ranks 2"), "{help}");
    }

    #[test]
    fn the_processor_needs_nothing() {
        assert_eq!(check(&["flex".to_string()], 4).unwrap(), None);
        assert!(check(&[], 1).is_err());
    }
}
