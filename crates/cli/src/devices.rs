//! Devices by name.

use everburn::burn::prelude::Device;

use crate::error::CliError;

/// A device that a rank can be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceName {
    /// The processor, by Burn's flex back end.
    Flex,
    /// An NVIDIA GPU by its number.
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

/// Checks that every device of the list can be used, before anything is started.
pub(crate) fn check(names: &[String], ranks: usize) -> Result<(), CliError> {
    if names.is_empty() {
        return Err(CliError::usage("--devices names no device"));
    }
    for name in names {
        if let DeviceName::Cuda(number) = name.parse()? {
            let flex = match ranks == names.len() {
                true => format!("--ranks {ranks} in place of --gpus {ranks}"),
                false => format!("--devices {}", vec!["flex"; names.len()].join(",")),
            };
            check_cuda(number, &flex)?;
        }
    }
    Ok(())
}

/// The device of the rank with this number on its machine.
pub(crate) fn of_rank(names: &[String], local_rank: usize) -> Result<Device, CliError> {
    match names[local_rank % names.len()].parse()? {
        DeviceName::Flex => Ok(Device::flex()),
        DeviceName::Cuda(number) => cuda(number),
    }
}

#[cfg(feature = "cuda")]
fn cuda(number: usize) -> Result<Device, CliError> {
    Ok(Device::cuda(number))
}

#[cfg(not(feature = "cuda"))]
fn cuda(number: usize) -> Result<Device, CliError> {
    check_cuda(number, "--devices flex")?;
    Err(CliError::usage("this program was built without CUDA"))
}

fn check_cuda(number: usize, flex: &str) -> Result<(), CliError> {
    let missing = if !has_nvidia_driver() {
        "there is no NVIDIA driver on this machine (no /proc/driver/nvidia/version)"
    } else if !cfg!(feature = "cuda") {
        "this program was built without the feature `cuda`"
    } else {
        return check_number(number);
    };
    Err(CliError::usage_with_help(
        format!("cuda:{number} cannot be used: {missing}"),
        format!("on the processor, the same with {flex}"),
    ))
}

/// What the driver lists, where it does; a container may be given fewer.
fn check_number(number: usize) -> Result<(), CliError> {
    let gpus = std::fs::read_dir("/proc/driver/nvidia/gpus").map_or(0, Iterator::count);
    if gpus == 0 || number < gpus {
        return Ok(());
    }
    Err(CliError::usage_with_help(
        format!("cuda:{number} cannot be used: this machine has {gpus} GPUs"),
        format!("devices are flex, cuda:0 to cuda:{}", gpus - 1),
    ))
}

fn has_nvidia_driver() -> bool {
    std::path::Path::new("/proc/driver/nvidia/version").exists()
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
    }

    #[test]
    fn a_missing_gpu_offers_ranks_on_the_processor() {
        if has_nvidia_driver() && cfg!(feature = "cuda") {
            eprintln!("skipped: there is a GPU");
            return;
        }
        let error = check(&["cuda:0".to_string(), "cuda:1".to_string()], 2).unwrap_err();
        let help = miette::Diagnostic::help(&error).unwrap().to_string();
        assert!(help.contains("--ranks 2"), "{help}");
    }
}
