//! The drivers for GPUs that are not asked here what they have: ROCm, Metal and Vulkan. Nothing is opened but the nodes of
//! devices.

use std::env;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use crate::library_paths::{asked_folders, first_named, usual_folders};

/// An API for GPUs, and what this machine has for it.
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// for driver in everburn::nccl::drivers() {
///     match driver.here {
///         Ok(found) => println!("{}: {found}", driver.api),
///         Err(missing) => println!("{}: {}; {}", driver.api, missing.what, missing.advice),
///     }
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiDriver {
    /// As the names of devices begin: `rocm`, `metal`, `vulkan`.
    pub api: &'static str,
    /// As its makers call it: `ROCm`.
    pub name: &'static str,
    /// What there is, or what is missing.
    pub here: Result<String, MissingDriver>,
}

/// What an API lacks on this machine.
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// let missing = everburn::nccl::MissingDriver {
///     what: "/dev/kfd is not there".to_owned(),
///     advice: "install AMD's driver",
///     has_gpu: false,
/// };
/// assert!(!missing.has_gpu);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingDriver {
    /// The first thing that is missing, and what is there.
    pub what: String,
    /// What to do about it, where there is a GPU for it.
    pub advice: &'static str,
    /// Whether the machine shows a GPU that could be used by this API.
    pub has_gpu: bool,
}

/// What this machine has for the GPUs of AMD (ROCm), of Apple (Metal), and for those with a Vulkan driver; in this order.
#[must_use]
pub fn drivers() -> [ApiDriver; 3] {
    Machine::here().drivers()
}

/// The Vulkan drivers that are installed, by the names of their manifests, in order: `intel`, `lvp` (lavapipe, which
/// computes on the CPU), `nvidia`, `radeon`.
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// let computes_on_the_cpu = everburn::nccl::vulkan_drivers().iter().any(|name| name == "lvp");
/// println!("{computes_on_the_cpu}");
/// ```
#[must_use]
pub fn vulkan_drivers() -> Vec<String> {
    Machine::here().vulkan_drivers()
}

/// Where the Vulkan loader looks for the manifests of drivers, where no variable names them.
const MANIFESTS: [&str; 3] = [
    "etc/vulkan/icd.d",
    "usr/local/share/vulkan/icd.d",
    "usr/share/vulkan/icd.d",
];

/// By what they are known on the PCI bus.
const AMD: &str = "0x1002";
const NVIDIA: &str = "0x10de";
const INTEL: &str = "0x8086";

/// Where things are looked for.
struct Machine {
    root: PathBuf,
    /// Folders of libraries.
    libraries: Vec<PathBuf>,
    /// Manifests of Vulkan's drivers, or folders of them, that a variable names in place of the usual ones.
    manifests: Option<Vec<PathBuf>>,
    is_mac: bool,
}

impl Machine {
    fn here() -> Self {
        let root = Path::new("/");
        let named = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"].map(env::var_os);
        let named = named.into_iter().flatten().find(|list| !list.is_empty());
        Self {
            root: root.to_path_buf(),
            libraries: asked_folders().chain(usual_folders(root)).collect(),
            manifests: named.map(|list| env::split_paths(&list).collect()),
            is_mac: cfg!(target_os = "macos"),
        }
    }

    fn drivers(&self) -> [ApiDriver; 3] {
        [
            ("rocm", "ROCm", self.rocm()),
            ("metal", "Metal", self.metal()),
            ("vulkan", "Vulkan", self.vulkan()),
        ]
        .map(|(api, name, here)| ApiDriver { api, name, here })
    }

    fn rocm(&self) -> Result<String, MissingDriver> {
        let has_gpu = self.has_gpu_of(&[AMD]);
        let missing = |what: String, advice| MissingDriver {
            what,
            advice,
            has_gpu,
        };
        let node = self.root.join("dev/kfd");
        if !node.exists() {
            let advice = "install AMD's driver, or in a container start it with `--device /dev/kfd --device /dev/dri`";
            return Err(missing("/dev/kfd is not there".to_string(), advice));
        }
        may_be_used(&node).map_err(|error| missing(error, IN_GROUPS))?;
        match first_named(self.libraries.clone(), "libamdhip64.so") {
            Some(hip) => Ok(format!("HIP at {}", hip.display())),
            None => Err(missing(
                "/dev/kfd is there, and libamdhip64.so is not".to_string(),
                "install ROCm",
            )),
        }
    }

    fn metal(&self) -> Result<String, MissingDriver> {
        match self.is_mac {
            true => Ok("part of macOS".to_string()),
            false => Err(MissingDriver {
                what: "only macOS has it".to_string(),
                advice: "use another API",
                has_gpu: false,
            }),
        }
    }

    fn vulkan(&self) -> Result<String, MissingDriver> {
        let nodes = self.render_nodes();
        let missing = |what: String, advice| MissingDriver {
            what,
            advice,
            has_gpu: !nodes.is_empty() || self.has_gpu_of(&[AMD, NVIDIA, INTEL]),
        };
        if first_named(self.libraries.clone(), "libvulkan.so").is_none() {
            let advice =
                "install the Vulkan loader and a driver (Debian: libvulkan1, mesa-vulkan-drivers)";
            return Err(missing("libvulkan.so.1 is not there".to_string(), advice));
        }
        let drivers = self.vulkan_drivers();
        if drivers.is_empty() {
            let advice = "install the GPU's Vulkan driver (Debian: mesa-vulkan-drivers; NVIDIA's has its own)";
            return Err(missing("no Vulkan driver is installed".to_string(), advice));
        }
        let drivers = format!("drivers: {}", drivers.join(", "));
        // NVIDIA's has nodes of its own.
        let nvidia = self.root.join("dev/nvidiactl");
        let Some(node) = nodes.first().or(nvidia.exists().then_some(&nvidia)) else {
            let advice =
                "load the GPU's driver, or in a container start it with `--device /dev/dri`";
            let what = format!("no GPU is in /dev/dri ({drivers})");
            return Err(missing(what, advice));
        };
        may_be_used(node).map_err(|error| missing(format!("{error} ({drivers})"), IN_GROUPS))?;
        let count = nodes.len().max(1);
        let nodes = if count == 1 { "node" } else { "nodes" };
        Ok(format!("{drivers}; {count} {nodes} of GPUs in /dev"))
    }

    /// The nodes by which processes compute on GPUs.
    fn render_nodes(&self) -> Vec<PathBuf> {
        let mut nodes = files_of(&self.root.join("dev/dri"));
        nodes.retain(|node| name_of(node).starts_with("renderD"));
        nodes
    }

    fn vulkan_drivers(&self) -> Vec<String> {
        let usual = || MANIFESTS.map(|folder| self.root.join(folder)).to_vec();
        let places = self.manifests.clone().unwrap_or_else(usual);
        let files = places.into_iter().flat_map(|place| match place.is_dir() {
            true => files_of(&place),
            false => vec![place],
        });
        let manifests = files.filter(|file| {
            file.extension()
                .is_some_and(|extension| extension == "json")
                && file.is_file()
        });
        let mut names: Vec<String> = manifests
            .map(|file| {
                let name = name_of(&file);
                let name = name.split('.').next().unwrap_or_default();
                name.strip_suffix("_icd").unwrap_or(name).to_owned()
            })
            .collect();
        names.sort();
        names.dedup();
        names
    }

    /// Whether the PCI bus has a GPU of one of these vendors: a display controller, or an accelerator.
    fn has_gpu_of(&self, vendors: &[&str]) -> bool {
        let devices = files_of(&self.root.join("sys/bus/pci/devices"));
        devices.iter().any(|device| {
            let read = |file| fs::read_to_string(device.join(file)).unwrap_or_default();
            let class = read("class");
            let is_gpu = ["0x03", "0x12"]
                .iter()
                .any(|begin| class.starts_with(begin));
            is_gpu && vendors.contains(&read("vendor").trim())
        })
    }
}

/// What a node that cannot be opened asks for.
const IN_GROUPS: &str = "add this user to the groups `render` and `video`, and log in anew";

/// Whether this process may use a device, by opening it.
fn may_be_used(node: &Path) -> Result<(), String> {
    let opened = OpenOptions::new().read(true).write(true).open(node);
    let refused = |error| format!("{} cannot be opened: {error}", node.display());
    opened.map(drop).map_err(refused)
}

/// What is in a folder, in order; nothing where there is no such folder.
fn files_of(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.path()).collect();
    files.sort();
    files
}

fn name_of(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine that has these files, with what they contain.
    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Machine) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_path_buf();
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let machine = Machine {
            libraries: usual_folders(&root).collect(),
            root,
            manifests: None,
            is_mac: false,
        };
        (folder, machine)
    }

    const LOADER: (&str, &str) = ("usr/lib/x86_64-linux-gnu/libvulkan.so.1", "");
    const LAVAPIPE: (&str, &str) = ("usr/share/vulkan/icd.d/lvp_icd.x86_64.json", "{}");
    const RADEON: (&str, &str) = ("etc/vulkan/icd.d/radeon_icd.json", "{}");
    const AMD_ON_THE_BUS: [(&str, &str); 2] = [
        ("sys/bus/pci/devices/0000:03:00.0/vendor", "0x1002\n"),
        ("sys/bus/pci/devices/0000:03:00.0/class", "0x030000\n"),
    ];

    #[test]
    fn what_rocm_lacks_is_named_one_thing_after_the_other() {
        let missing = |files: &[(&str, &str)]| machine(files).1.rocm();
        let first = missing(&AMD_ON_THE_BUS).unwrap_err();
        assert_eq!(first.what, "/dev/kfd is not there");
        assert!(first.has_gpu);
        let second = missing(&[("dev/kfd", "")]).unwrap_err();
        assert_eq!(second.what, "/dev/kfd is there, and libamdhip64.so is not");
        assert_eq!((second.advice, second.has_gpu), ("install ROCm", false));
        let (_folder, with_hip) =
            machine(&[("dev/kfd", ""), ("opt/rocm/lib/libamdhip64.so.6", "")]);
        let found = with_hip.rocm().unwrap();
        assert!(found.ends_with("opt/rocm/lib/libamdhip64.so.6"), "{found}");
    }

    #[test]
    fn what_vulkan_lacks_is_named_one_thing_after_the_other() {
        let missing = |files: &[(&str, &str)]| {
            let (_folder, machine) = machine(files);
            machine.vulkan().unwrap_err()
        };
        let what = missing(&[LAVAPIPE]).what;
        assert_eq!(what, "libvulkan.so.1 is not there");
        assert_eq!(missing(&[LOADER]).what, "no Vulkan driver is installed");
        let no_gpu = missing(&[LOADER, LAVAPIPE, RADEON]);
        assert_eq!(no_gpu.what, "no GPU is in /dev/dri (drivers: lvp, radeon)");
        assert!(!no_gpu.has_gpu);
        let (_folder, complete) = machine(&[LOADER, RADEON, ("dev/dri/renderD128", "")]);
        let found = complete.vulkan().unwrap();
        assert_eq!(found, "drivers: radeon; 1 node of GPUs in /dev");
    }

    #[test]
    fn a_device_that_may_not_be_opened_says_so() {
        // A folder cannot be opened for writing, whoever this is.
        let (_folder, machine) = machine(&[LOADER, RADEON, ("dev/dri/renderD128/x", "")]);
        let missing = machine.vulkan().unwrap_err();
        assert!(
            missing.what.contains("renderD128 cannot be opened"),
            "{missing:?}"
        );
        assert!(missing.has_gpu && missing.advice.contains("`render`"));
    }

    #[test]
    fn a_variable_names_vulkans_drivers_in_place_of_the_usual_ones() {
        let (_folder, machine) = machine(&[LAVAPIPE, ("mine/nvidia_icd.json", "{}")]);
        assert_eq!(machine.vulkan_drivers(), ["lvp"]);
        let manifests = Some(vec![
            machine.root.join("mine"),
            machine.root.join("none.json"),
        ]);
        let named = Machine {
            manifests,
            ..machine
        };
        assert_eq!(named.vulkan_drivers(), ["nvidia"]);
    }

    #[test]
    fn metal_is_where_macos_is() {
        let (_folder, other) = machine(&[]);
        assert_eq!(other.metal().unwrap_err().what, "only macOS has it");
        let mac = Machine {
            is_mac: true,
            ..other
        };
        assert_eq!(mac.metal().unwrap(), "part of macOS");
    }
}
