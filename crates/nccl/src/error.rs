//! What can go wrong before a GPU is used: in words that say what to install.

use std::path::PathBuf;

use crate::vendor::Vendor;
use crate::version::NcclVersion;

/// Why a library of the GPU, or a GPU, cannot be used.
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// use everburn::nccl::{LibraryError, Vendor};
///
/// let (vendor, reason) = (Vendor::Nvidia, "libcuda.so.1 is not there".to_owned());
/// let error = LibraryError::NoDriver { vendor, reason };
/// assert!(error.to_string().starts_with("no driver: libcuda.so.1 is not there; install"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// The driver's library is not there.
    #[error("no driver: {reason}; {}", .vendor.install_driver())]
    NoDriver {
        /// Whose.
        vendor: Vendor,
        /// What was tried.
        reason: String,
    },
    /// The driver is there and refuses a call.
    #[error("the {vendor} driver refuses {call}: {name} (error {code}); {}", advice(*.vendor, *.code))]
    Driver {
        /// Whose driver.
        vendor: Vendor,
        /// The function of the driver.
        call: &'static str,
        /// The driver's name of the error.
        name: String,
        /// The driver's number of the error.
        code: i32,
    },
    /// The driver lists no GPU.
    #[error(
        "no GPU: the driver is there and lists none{}; check {}",
        among(*.vendor, .visible), .vendor.list_gpus()
    )]
    NoGpu {
        /// Whose.
        vendor: Vendor,
        /// What `CUDA_VISIBLE_DEVICES` or `HIP_VISIBLE_DEVICES` says.
        visible: Option<String>,
    },
    /// There is no GPU of this number.
    #[error(
        "{api}:{device} does not exist: this machine has {count} GPUs{}; devices are {api}:0 to \
         {api}:{}",
        among(*.vendor, .visible), .count.saturating_sub(1), api = .vendor.api()
    )]
    NoSuchGpu {
        /// Whose.
        vendor: Vendor,
        /// The number.
        device: usize,
        /// How many there are.
        count: usize,
        /// As above.
        visible: Option<String>,
    },
    /// NCCL or RCCL is nowhere.
    #[error(
        "no {}: {}; install it {}, or name the file in EVERBURN_NCCL_LIBRARY",
        .vendor.collectives(), .tried.join("; "), .vendor.install_collectives()
    )]
    NoNccl {
        /// Whose.
        vendor: Vendor,
        /// What was tried, each with the loader's answer.
        tried: Vec<String>,
    },
    /// NVRTC or its headers are nowhere.
    #[error(
        "no NVRTC: {reason}; install the CUDA toolkit, and name its folder in CUDA_PATH if it is not \
         /usr/local/cuda; a build with `cuda` in place of `cuda-cpp` does without"
    )]
    NoNvrtc {
        /// What was tried.
        reason: String,
    },
    /// The file that the user has named cannot be opened.
    #[error(
        "EVERBURN_NCCL_LIBRARY names {path}, which cannot be opened: {reason}; name the file \
         {}, or unset the variable",
        .vendor.collectives_files()[0],
        path = .path.display()
    )]
    Named {
        /// Whose library is wanted.
        vendor: Vendor,
        /// The file.
        path: PathBuf,
        /// The loader's answer.
        reason: String,
    },
    /// NCCL or RCCL is older than what this crate calls.
    #[error(
        "{} {found} at {path} is too old: {needed} or later is needed; install a newer one \
         {}, or name one in EVERBURN_NCCL_LIBRARY",
        .vendor.collectives(), .vendor.install_collectives(),
        path = .path.display()
    )]
    TooOld {
        /// Whose.
        vendor: Vendor,
        /// Which version it is.
        found: NcclVersion,
        /// The oldest that will do.
        needed: NcclVersion,
        /// Where it was found.
        path: PathBuf,
    },
    /// Memory that cannot be.
    #[error("no such buffer: {reason}; check its address, type and length")]
    Buffer {
        /// What is wrong.
        reason: String,
    },
    /// A library lacks a function.
    #[error(
        "{path} has no function {symbol}: it is damaged, too old, or another library of that name",
        path = .path.display()
    )]
    Symbol {
        /// The library.
        path: PathBuf,
        /// The function.
        symbol: &'static str,
    },
}

/// What to do about an error of the driver (`CUresult` in cuda.h, `hipError_t` in hip_runtime_api.h).
fn advice(vendor: Vendor, code: i32) -> &'static str {
    if vendor == Vendor::Amd {
        return match code {
            2 => "check with `rocm-smi` which other process has the GPU's memory",
            100 => "check `rocminfo` and HIP_VISIBLE_DEVICES",
            _ => "check `rocm-smi`, and `dmesg` for amdgpu",
        };
    }
    match code {
        2 => "check with `nvidia-smi` which other process has the GPU's memory",
        46 => "another process has the GPU for itself (`nvidia-smi -q -d COMPUTE`)",
        100 => "check `nvidia-smi -L` and CUDA_VISIBLE_DEVICES",
        802 => "start nvidia-fabricmanager, in the version of the driver",
        803 | 804 => {
            "the library and the kernel's module are of different versions: restart the machine, \
             or install the driver anew"
        }
        700..=719 => {
            "a kernel on this GPU has failed and left it unusable for this process: look for the \
             first error, and for Xid in `dmesg`"
        }
        _ => "check `nvidia-smi`, and `dmesg` for Xid",
    }
}

fn among(vendor: Vendor, visible: &Option<String>) -> String {
    match visible {
        Some(list) => format!(" with {}={list}", vendor.visible_variable()),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_to_do() {
        let driver = LibraryError::Driver {
            vendor: Vendor::Nvidia,
            call: "cuInit",
            name: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH".into(),
            code: 803,
        };
        assert_eq!(
            driver.to_string(),
            "the NVIDIA driver refuses cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (error 803); the \
             library and the kernel's module are of different versions: restart the machine, or \
             install the driver anew"
        );
        let visible = Some("-1".to_owned());
        let vendor = Vendor::Nvidia;
        let none = LibraryError::NoGpu { vendor, visible }.to_string();
        assert!(
            none.contains("lists none with CUDA_VISIBLE_DEVICES=-1; check"),
            "{none}"
        );
        let old = LibraryError::TooOld {
            vendor,
            found: NcclVersion::from_code(21602),
            needed: NcclVersion::from_code(21800),
            path: "/lib/libnccl.so.2".into(),
        };
        assert!(old.to_string().starts_with(
            "NCCL 2.16.2 at /lib/libnccl.so.2 is too old: 2.18.0 or later is needed; install"
        ));
    }

    #[test]
    fn amds_users_are_sent_to_amds_tools() {
        let vendor = Vendor::Amd;
        let texts = [
            LibraryError::NoDriver {
                vendor,
                reason: "libamdhip64.so is not there".into(),
            },
            LibraryError::NoGpu {
                vendor,
                visible: Some("3".into()),
            },
            LibraryError::NoNccl {
                vendor,
                tried: vec!["librccl.so.1 is not there".into()],
            },
            LibraryError::Driver {
                vendor,
                call: "hipInit",
                name: "hipErrorNoDevice".into(),
                code: 100,
            },
            LibraryError::NoSuchGpu {
                vendor,
                device: 8,
                count: 8,
                visible: None,
            },
        ]
        .map(|error| error.to_string());
        let expected = [
            "libamdhip64.so is not there; install ROCm",
            "with HIP_VISIBLE_DEVICES=3; check `rocminfo`",
            "no RCCL: librccl.so.1 is not there; install it (Debian and Ubuntu: librccl1",
            "the AMD driver refuses hipInit: hipErrorNoDevice (error 100); check `rocminfo`",
            "rocm:8 does not exist: this machine has 8 GPUs; devices are rocm:0 to rocm:7",
        ];
        for (text, expected) in texts.iter().zip(expected) {
            assert!(text.contains(expected), "{text}");
            assert!(
                !text.contains("nvidia") && !text.contains("NVIDIA"),
                "{text}"
            );
        }
    }
}
