//! What is there: driver, CUDA, NCCL and GPUs.

use std::fmt;

use crate::error::LibraryError;
use crate::foreign::{Driver, Library, Nvml};
use crate::vendor::Vendor;
use crate::version::{CudaVersion, NcclVersion};

/// Bytes in a GiB.
const GIB: f64 = (1u64 << 30) as f64;

/// One GPU that this process may use.
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// let gpu = everburn::nccl::Gpu {
///     index: 0,
///     name: "NVIDIA H200".to_owned(),
///     memory_bytes: 150_754_820_096,
///     free_bytes: None,
///     compute_capability: (9, 0),
///     uuid: "GPU-00112233-4455-6677-8899-aabbccddeeff".to_owned(),
/// };
/// assert_eq!(gpu.to_string(), "NVIDIA H200 (140.4 GiB)");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Its number, `cuda:0` being the first of `CUDA_VISIBLE_DEVICES`.
    pub index: usize,
    /// As NVIDIA names it.
    pub name: String,
    /// All of its memory, in bytes.
    pub memory_bytes: u64,
    /// Its free memory when it was asked, in bytes; `None` where NVML does not report it.
    pub free_bytes: Option<u64>,
    /// What kernels it runs: (9, 0) for Hopper.
    pub compute_capability: (u32, u32),
    /// Its identity: no other GPU has it.
    pub uuid: String,
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({:.1} GiB)",
            self.name,
            self.memory_bytes as f64 / GIB
        )
    }
}

/// What [`gpus`] has found.
///
/// As text it is one line: GPUs, driver, CUDA, NCCL.
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// match everburn::nccl::gpus() {
///     Ok(inventory) => println!("{inventory}"),
///     Err(error) => println!("{error}"),
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inventory {
    /// The driver's version, such as `580.159.03`; `None` where neither NVML nor `/proc` has it.
    pub driver: Option<String>,
    /// The newest CUDA that the driver can do.
    pub cuda: CudaVersion,
    /// NCCL's version, or why there is none. One GPU does without.
    pub nccl: Result<NcclVersion, LibraryError>,
    /// At least one.
    pub gpus: Vec<Gpu>,
}

impl Inventory {
    /// The same with these of its GPUs only, as a job that uses them says it.
    ///
    /// # Errors
    /// [`LibraryError::NoSuchGpu`] for a number that does not exist.
    pub fn of(&self, devices: &[usize]) -> Result<Self, LibraryError> {
        let gpus = devices.iter().map(|device| {
            self.gpus
                .get(*device)
                .cloned()
                .ok_or(LibraryError::NoSuchGpu {
                    vendor: Vendor::Nvidia,
                    device: *device,
                    count: self.gpus.len(),
                    visible: Vendor::Nvidia.visible(),
                })
        });
        Ok(Self {
            gpus: gpus.collect::<Result<_, _>>()?,
            ..self.clone()
        })
    }
}

impl fmt::Display for Inventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // GPUs of one kind are counted, in the order in which the kinds come.
        let mut kinds: Vec<(String, usize)> = Vec::new();
        for gpu in &self.gpus {
            let kind = gpu.to_string();
            match kinds.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, count)) => *count += 1,
                None => kinds.push((kind, 1)),
            }
        }
        for (index, (kind, count)) in kinds.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            match count {
                1 => write!(f, "{comma}{kind}")?,
                _ => write!(f, "{comma}{count} x {kind}")?,
            }
        }
        match &self.driver {
            Some(driver) => write!(f, ", driver {driver}")?,
            None => f.write_str(", driver of unknown version")?,
        }
        write!(f, ", CUDA {}", self.cuda)?;
        match &self.nccl {
            Ok(version) => write!(f, ", NCCL {version}"),
            Err(LibraryError::TooOld { found, .. }) => write!(f, ", NCCL {found} (too old)"),
            Err(_) => f.write_str(", no NCCL"),
        }
    }
}

/// What is there: driver, CUDA, NCCL, and every GPU that this process may use.
///
/// Libraries are opened at run time and stay open. No context is made on any GPU, so it takes no
/// memory there; the driver's start can take a second where no other process uses a GPU.
///
/// # Errors
/// [`LibraryError::NoDriver`] ("no driver: ..."), [`LibraryError::NoGpu`], or
/// [`LibraryError::Driver`] when the driver refuses a call. That NCCL is not there is no error here.
pub fn gpus() -> Result<Inventory, LibraryError> {
    let driver = Driver::load(Vendor::Nvidia)?;
    let count = driver.count()?;
    if count == 0 {
        return Err(LibraryError::NoGpu {
            vendor: Vendor::Nvidia,
            visible: Vendor::Nvidia.visible(),
        });
    }
    let nvml = Nvml::load();
    let gpu = |index| {
        let device = driver.device(index)?;
        let uuid = driver.uuid(device)?;
        Ok(Gpu {
            index,
            name: driver.name(device)?,
            memory_bytes: driver.memory(device)?,
            free_bytes: nvml.as_ref().and_then(|nvml| nvml.free_memory(&uuid)),
            compute_capability: driver.compute_capability(device)?,
            uuid,
        })
    };
    let by_nvml = nvml.as_ref().and_then(Nvml::driver_version);
    Ok(Inventory {
        driver: by_nvml.or_else(driver_version_of_proc),
        cuda: driver.version()?,
        nccl: Library::load().map(|nccl| nccl.version()),
        gpus: (0..count).map(gpu).collect::<Result<_, LibraryError>>()?,
    })
}

/// What identifies the GPU of `vendor` with this number among all GPUs.
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// use everburn::nccl::{Vendor, gpu_uuid};
///
/// match gpu_uuid(Vendor::Amd, 0) {
///     Ok(uuid) => println!("{uuid}"),
///     Err(error) => println!("{error}"),
/// }
/// ```
///
/// # Errors
/// As [`gpus`], and [`LibraryError::NoSuchGpu`].
pub fn gpu_uuid(vendor: Vendor, number: usize) -> Result<String, LibraryError> {
    let driver = Driver::load(vendor)?;
    driver.uuid(driver.device(number)?)
}

fn driver_version_of_proc() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    driver_version_in(&text)
}

/// The first word of the kernel module's line that is a version: `580.159.03`.
fn driver_version_in(text: &str) -> Option<String> {
    let line = text.lines().next()?;
    let is_version =
        |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    line.split_whitespace().find(is_version).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: usize, name: &str) -> Gpu {
        Gpu {
            index,
            name: name.to_owned(),
            memory_bytes: 24 << 30,
            free_bytes: Some(23 << 30),
            compute_capability: (8, 9),
            uuid: format!("GPU-{index}"),
        }
    }

    fn inventory() -> Inventory {
        Inventory {
            driver: Some("550.54.15".into()),
            cuda: CudaVersion::from_code(12040),
            nccl: Ok(NcclVersion::from_code(22105)),
            gpus: vec![gpu(0, "L4"), gpu(1, "A30"), gpu(2, "L4")],
        }
    }

    #[test]
    fn one_line_says_what_is_used() {
        let all = inventory();
        assert_eq!(
            all.to_string(),
            "2 x L4 (24.0 GiB), A30 (24.0 GiB), driver 550.54.15, CUDA 12.4, NCCL 2.21.5"
        );
        let one = Inventory {
            driver: None,
            nccl: Err(LibraryError::NoNccl {
                vendor: Vendor::Nvidia,
                tried: Vec::new(),
            }),
            ..all.of(&[1]).unwrap()
        };
        assert_eq!(
            one.to_string(),
            "A30 (24.0 GiB), driver of unknown version, CUDA 12.4, no NCCL"
        );
        let error = all.of(&[0, 3]).unwrap_err().to_string();
        assert!(
            error.starts_with("cuda:3 does not exist: this machine has 3 GPUs"),
            "{error}"
        );
        assert!(error.ends_with("devices are cuda:0 to cuda:2"), "{error}");
    }

    #[test]
    fn the_kernels_module_tells_the_drivers_version() {
        let text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\n\
                    GCC version:  gcc version 12.3.0";
        assert_eq!(driver_version_in(text).as_deref(), Some("550.54.15"));
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.03  Release";
        assert_eq!(driver_version_in(open).as_deref(), Some("580.159.03"));
        assert_eq!(driver_version_in("nothing"), None);
    }

    #[test]
    fn a_machine_is_described_or_the_error_says_what_is_missing() {
        match gpus() {
            Ok(found) => assert!(!found.gpus.is_empty() && found.to_string().contains("CUDA")),
            Err(error) => {
                let text = error.to_string();
                let known = ["no driver: ", "no GPU: ", "the NVIDIA driver refuses "];
                assert!(known.iter().any(|start| text.starts_with(start)), "{text}");
            }
        }
    }
}
