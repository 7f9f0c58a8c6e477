//! NVIDIA's compiler at run time, which CUDA C++ goes through: whether it is there, and its headers.

use std::path::{Path, PathBuf};

use super::dynamic::Opened;
use crate::error::LibraryError;
use crate::library_paths::find_library;

/// As cudarc looks for it below CubeCL, the newest first.
const NAMES: [&str; 4] = [
    "libnvrtc.so",
    "libnvrtc.so.13",
    "libnvrtc.so.12",
    "libnvrtc.so.11.2",
];

/// Where CubeCL looks for the toolkit if `CUDA_PATH` does not name it.
const TOOLKITS: [&str; 2] = ["/usr/local/cuda", "/opt/cuda"];

/// A header that every generated kernel includes.
const HEADER: &str = "include/cuda_runtime.h";

/// Where NVRTC is, with which kernels are compiled by the feature `cuda-cpp` of Everburn; the default, LLVM,
/// does without.
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// match everburn::nccl::nvrtc() {
///     Ok(path) => println!("{}", path.display()),
///     Err(error) => assert!(error.to_string().starts_with("no NVRTC: ")),
/// }
/// ```
///
/// # Errors
/// [`LibraryError::NoNvrtc`] if the library cannot be opened, or CUDA's headers are not where CubeCL looks.
pub fn nvrtc() -> Result<PathBuf, LibraryError> {
    let names = NAMES.map(PathBuf::from).into_iter();
    let opened = Opened::first(names.chain(find_library(NAMES[0])));
    let opened = opened.map_err(|tried| LibraryError::NoNvrtc {
        reason: tried.join("; "),
    })?;
    let named = std::env::var_os("CUDA_PATH").map(PathBuf::from);
    let toolkit = toolkit(named, &TOOLKITS.map(PathBuf::from));
    toolkit.map(|_| opened.path)
}

/// The folder of the toolkit: what is named counts, as it does for CubeCL.
fn toolkit(named: Option<PathBuf>, usual: &[PathBuf]) -> Result<PathBuf, LibraryError> {
    let has_header = |folder: &Path| folder.join(HEADER).is_file();
    let (found, looked_in) = match named {
        Some(named) => (
            has_header(&named).then(|| named.clone()),
            format!("CUDA_PATH={}", named.display()),
        ),
        None => {
            let folders = usual.iter().map(|folder| folder.display().to_string());
            (
                usual.iter().find(|folder| has_header(folder)).cloned(),
                folders.collect::<Vec<_>>().join(", "),
            )
        }
    };
    found.ok_or_else(|| LibraryError::NoNvrtc {
        reason: format!("the library is there, but no {HEADER} in {looked_in}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_toolkit_that_is_named_counts_and_must_have_headers() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_path_buf();
        let usual = [root.clone()];
        let refused = toolkit(Some(root.clone()), &usual).unwrap_err().to_string();
        assert!(
            refused.contains("no include/cuda_runtime.h in CUDA_PATH="),
            "{refused}"
        );
        std::fs::create_dir(root.join("include")).unwrap();
        std::fs::write(root.join(HEADER), "").unwrap();
        assert_eq!(toolkit(None, &usual).unwrap(), root);
        assert!(toolkit(Some("/no/such/folder".into()), &usual).is_err());
    }
}
