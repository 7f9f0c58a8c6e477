//! Whose GPUs they are.

use std::fmt;

/// Whose GPUs, drivers and library for collectives. AMD's have NVIDIA's interface under names of their own.
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// use everburn::nccl::Vendor;
///
/// assert_eq!(Vendor::Amd.to_string(), "AMD");
/// assert_eq!(Vendor::Amd.collectives(), "RCCL");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Vendor {
    /// CUDA's driver, and NCCL.
    Nvidia,
    /// ROCm's HIP, and RCCL.
    Amd,
}

impl Vendor {
    /// The library for collectives: `NCCL` or `RCCL`.
    #[must_use]
    pub const fn collectives(self) -> &'static str {
        match self {
            Self::Nvidia => "NCCL",
            Self::Amd => "RCCL",
        }
    }

    /// What devices are called by: `cuda`, `rocm`.
    #[must_use]
    pub const fn api(self) -> &'static str {
        match self {
            Self::Nvidia => "cuda",
            Self::Amd => "rocm",
        }
    }

    /// The files of the library for collectives: with the number of its interface, as it is installed, and without, as
    /// it is installed for development.
    pub(crate) const fn collectives_files(self) -> [&'static str; 2] {
        match self {
            Self::Nvidia => ["libnccl.so.2", "libnccl.so"],
            Self::Amd => ["librccl.so.1", "librccl.so"],
        }
    }

    pub(crate) const fn driver_files(self) -> &'static [&'static str] {
        match self {
            Self::Nvidia => &["libcuda.so.1", "libcuda.so"],
            // One for each major version of ROCm.
            Self::Amd => &["libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"],
        }
    }

    /// What limits the GPUs of a process.
    pub(crate) const fn visible_variable(self) -> &'static str {
        match self {
            Self::Nvidia => "CUDA_VISIBLE_DEVICES",
            Self::Amd => "HIP_VISIBLE_DEVICES",
        }
    }

    pub(crate) fn visible(self) -> Option<String> {
        std::env::var(self.visible_variable()).ok()
    }

    pub(crate) const fn install_driver(self) -> &'static str {
        match self {
            Self::Nvidia => "install NVIDIA's driver, or in a container start it with `--gpus all`",
            Self::Amd => {
                "install ROCm, or in a container start it with `--device /dev/kfd --device /dev/dri`"
            }
        }
    }

    pub(crate) const fn install_collectives(self) -> &'static str {
        match self {
            Self::Nvidia => "(Debian and Ubuntu: libnccl2, pip: nvidia-nccl-cu12)",
            Self::Amd => "(Debian and Ubuntu: librccl1, AMD's packages: rccl)",
        }
    }

    /// What to check where no GPU is listed.
    pub(crate) const fn list_gpus(self) -> &'static str {
        match self {
            Self::Nvidia => {
                "`nvidia-smi -L`, and in a container that it was started with `--gpus all`"
            }
            Self::Amd => "`rocminfo`, and that this user may open /dev/kfd and /dev/dri",
        }
    }
}

impl fmt::Display for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nvidia => "NVIDIA",
            Self::Amd => "AMD",
        })
    }
}
