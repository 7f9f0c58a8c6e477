//! What can go wrong before a GPU is used: in words that say what to install.

use std::path::PathBuf;

use crate::version::NcclVersion;

/// Why a library of the GPU, or a GPU, cannot be used.
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// use everburn::nccl::LibraryError;
///
/// let error = LibraryError::NoDriver { reason: "libcuda.so.1 is not there".to_owned() };
/// assert!(error.to_string().starts_with("no driver: libcuda.so.1 is not there; install"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// The driver's library is not there.
    #[error(
        "no driver: {reason}; install NVIDIA's driver, or in a container start it with `--gpus all`"
    )]
    NoDriver {
        /// What was tried.
        reason: String,
    },
    /// The driver is there and refuses a call.
    #[error("the NVIDIA driver refuses {call}: {name} (error {code}); {}", advice(*.code))]
    Driver {
        /// The function of the driver.
        call: &'static str,
        /// NVIDIA's name of the error.
        name: String,
        /// NVIDIA's number of the error.
        code: i32,
    },
    /// The driver lists no GPU.
    #[error(
        "no GPU: the driver is there and lists none{}; check `nvidia-smi -L`, and in a container \
         that it was started with `--gpus all`",
        among(.visible)
    )]
    NoGpu {
        /// What `CUDA_VISIBLE_DEVICES` says.
        visible: Option<String>,
    },
    /// There is no GPU of this number.
    #[error(
        "cuda:{device} does not exist: this machine has {count} GPUs{}; devices are cuda:0 to \
         cuda:{}",
        among(.visible), .count.saturating_sub(1)
    )]
    NoSuchGpu {
        /// The number.
        device: usize,
        /// How many there are.
        count: usize,
        /// What `CUDA_VISIBLE_DEVICES` says.
        visible: Option<String>,
    },
    /// NCCL is nowhere.
    #[error(
        "no NCCL: {}; install it (Debian and Ubuntu: libnccl2, pip: nvidia-nccl-cu12), or name the \
         file in EVERBURN_NCCL_LIBRARY",
        .tried.join("; ")
    )]
    NoNccl {
        /// What was tried, each with the loader's answer.
        tried: Vec<String>,
    },
    /// NCCL may be there, but not under a name by which CubeCL asks for it.
    #[error(
        "CubeCL opens NCCL as libnccl.so, which the system's loader does not find; install libnccl-dev, or put \
         a link of that name to libnccl.so.2 into a folder of LD_LIBRARY_PATH"
    )]
    NotForCubecl,
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
         libnccl.so.2, or unset the variable",
        path = .path.display()
    )]
    Named {
        /// The file.
        path: PathBuf,
        /// The loader's answer.
        reason: String,
    },
    /// NCCL is older than what this crate calls.
    #[error(
        "NCCL {found} at {path} is too old: {needed} or later is needed; install a newer one \
         (Debian and Ubuntu: libnccl2, pip: nvidia-nccl-cu12), or name one in EVERBURN_NCCL_LIBRARY",
        path = .path.display()
    )]
    TooOld {
        /// Which version it is.
        found: NcclVersion,
        /// The oldest that will do.
        needed: NcclVersion,
        /// Where it was found.
        path: PathBuf,
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

/// What to do about an error of the driver (`CUresult` in cuda.h).
fn advice(code: i32) -> &'static str {
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

fn among(visible: &Option<String>) -> String {
    match visible {
        Some(list) => format!(" with CUDA_VISIBLE_DEVICES={list}"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_to_do() {
        let driver = LibraryError::Driver {
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
        let none = LibraryError::NoGpu { visible }.to_string();
        assert!(
            none.contains("lists none with CUDA_VISIBLE_DEVICES=-1; check"),
            "{none}"
        );
        let old = LibraryError::TooOld {
            found: NcclVersion::from_code(21602),
            needed: NcclVersion::from_code(21800),
            path: "/lib/libnccl.so.2".into(),
        };
        assert!(old.to_string().starts_with(
            "NCCL 2.16.2 at /lib/libnccl.so.2 is too old: 2.18.0 or later is needed; install"
        ));
    }
}
