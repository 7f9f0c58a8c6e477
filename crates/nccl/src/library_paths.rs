//! The paths where GPU libraries are searched.

use std::env;
use std::path::{Path, PathBuf};

/// Names the file to use for NCCL, or for RCCL on AMD's GPUs, instead of searching.
pub const NCCL_VARIABLE: &str = "EVERBURN_NCCL_LIBRARY";

/// Folders in which drivers and toolkits put their libraries, whether or not the system's loader
/// knows of them.
const USUAL: [&str; 10] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
    "/usr/local/cuda/lib64",
    "/opt/cuda/lib64",
    "/run/opengl-driver/lib",
    "/opt/rocm/lib",
];

/// Where NVIDIA's packages for Python put NCCL, in a folder of packages.
const IN_PACKAGES: &str = "nvidia/nccl/lib";

/// The paths where NCCL is searched.
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// use everburn::nccl::{Library, LibraryPaths, Vendor};
///
/// // A named file is used or refused; nothing else is searched.
/// let named = Some("/no/such/libnccl.so.2".into());
/// let paths = LibraryPaths { named, ..LibraryPaths::default() };
/// let error = Library::load_from(Vendor::Nvidia, &paths).unwrap_err();
/// assert!(error.to_string().contains("EVERBURN_NCCL_LIBRARY names /no/such/libnccl.so.2"));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LibraryPaths {
    /// The file of [`NCCL_VARIABLE`].
    pub named: Option<PathBuf>,
    /// Folders to look in, after the system's loader has been asked.
    pub folders: Vec<PathBuf>,
}

impl LibraryPaths {
    /// The file named by this process's environment, the usual folders, and those of Python's packages.
    #[must_use]
    pub fn of_this_process() -> Self {
        let named = env::var_os(NCCL_VARIABLE).filter(|path| !path.is_empty());
        let roots = ["VIRTUAL_ENV", "CONDA_PREFIX"].map(env::var_os);
        let roots = roots.into_iter().flatten().map(PathBuf::from);
        let path = env::var_os("PATH").unwrap_or_default();
        let roots = roots.chain(pythons_of(&path));
        let mut roots: Vec<PathBuf> = roots.chain(["/usr/local".into(), "/usr".into()]).collect();
        let mut seen = std::collections::HashSet::new();
        roots.retain(|root| seen.insert(root.clone()));
        let packages = roots.iter().flat_map(|root| python_packages(root));
        Self {
            named: named.map(PathBuf::from),
            folders: usual_folders(Path::new("/")).chain(packages).collect(),
        }
    }
}

/// Where the Pythons of a search path are installed: a `python3` that is called by its name alone need not have
/// been activated.
fn pythons_of(path: &std::ffi::OsStr) -> Vec<PathBuf> {
    let bins = env::split_paths(path).filter(|bin| bin.join("python3").exists());
    bins.filter_map(|bin| bin.parent().map(Path::to_path_buf))
        .collect()
}

/// The folders below `root` where packages for Python have NCCL.
fn python_packages(root: &Path) -> Vec<PathBuf> {
    let lib = root.join("lib");
    let Ok(entries) = std::fs::read_dir(&lib) else {
        return Vec::new();
    };
    let mut pythons: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
        .map(|entry| entry.path())
        .collect();
    // The order of a folder is arbitrary; which NCCL is found must not be.
    pythons.sort();
    pythons
        .iter()
        .flat_map(|python| ["site-packages", "dist-packages"].map(|name| python.join(name)))
        .map(|packages| packages.join(IN_PACKAGES))
        .filter(|folder| folder.is_dir())
        .collect()
}

/// The first file whose name starts with `name` in the folders where libraries usually are, those of
/// `LD_LIBRARY_PATH` first. Opens nothing.
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// assert_eq!(everburn::nccl::find_library("libno-such-thing.so"), None);
/// ```
#[must_use]
pub fn find_library(name: &str) -> Option<PathBuf> {
    first_named(asked_folders().chain(usual_folders(Path::new("/"))), name)
}

/// The folders of `LD_LIBRARY_PATH`.
pub(crate) fn asked_folders() -> impl Iterator<Item = PathBuf> {
    let asked = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders: Vec<_> = env::split_paths(&asked).collect();
    folders.into_iter()
}

/// [`USUAL`] below `root`.
pub(crate) fn usual_folders(root: &Path) -> impl Iterator<Item = PathBuf> {
    USUAL.into_iter().map(|folder| root.join(&folder[1..]))
}

/// The first file in `folders` whose name starts with `name`.
pub(crate) fn first_named(
    folders: impl IntoIterator<Item = PathBuf>,
    name: &str,
) -> Option<PathBuf> {
    folders
        .into_iter()
        .filter_map(|folder| std::fs::read_dir(folder).ok())
        .find_map(|files| {
            let mut paths = files.flatten().map(|file| file.path());
            paths.find(|path| {
                path.file_name()
                    .is_some_and(|file| file.to_string_lossy().starts_with(name))
            })
        })
}

/// Where an NVIDIA driver shows on this machine, if it does: quick, and nothing is opened.
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// if let Some(path) = everburn::nccl::nvidia_driver() {
///     assert!(path.exists());
/// }
/// ```
#[must_use]
pub fn nvidia_driver() -> Option<PathBuf> {
    let kernel_side = Path::new("/proc/driver/nvidia/version");
    if kernel_side.exists() {
        return Some(kernel_side.to_path_buf());
    }
    find_library("libcuda.so")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_for_python_are_looked_through_in_order() {
        let root = tempfile::tempdir().unwrap();
        let made = [
            "python3.12/site-packages",
            "python3.10/dist-packages",
            "perl5/site-packages",
        ];
        for packages in made {
            let folder = root.path().join("lib").join(packages).join(IN_PACKAGES);
            std::fs::create_dir_all(folder).unwrap();
        }
        let bin = root.path().join("bin");
        assert!(pythons_of(bin.as_os_str()).is_empty());
        std::fs::create_dir(&bin).unwrap();
        std::fs::write(bin.join("python3"), "").unwrap();
        assert_eq!(pythons_of(bin.as_os_str()), [root.path()]);
        let found = python_packages(root.path());
        let expected = ["python3.10/dist-packages", "python3.12/site-packages"]
            .map(|packages| root.path().join("lib").join(packages).join(IN_PACKAGES));
        assert_eq!(found, expected);
        assert!(python_packages(&root.path().join("nothing")).is_empty());
    }
}
