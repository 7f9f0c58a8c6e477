//! NCCL, found at run time.

#![expect(unsafe_code, reason = "NCCL is a library of C")]

use std::ffi::c_int;
use std::fmt;
use std::path::{Path, PathBuf};

#[cfg(feature = "backend")]
use super::communicator::Functions;
use super::dynamic::{Opened, functions};
use crate::error::LibraryError;
use crate::library_paths::LibraryPaths;
use crate::vendor::Vendor;
use crate::version::NcclVersion;

/// The oldest NCCL that will do: `ncclConfig_t` has had its first nine fields, and communicators that
/// do not block have behaved, since 2.18.
pub(crate) const OLDEST: NcclVersion = NcclVersion {
    major: 2,
    minor: 18,
    patch: 0,
};

functions! {
    VersionFunction {
        get_version: fn(*mut c_int) -> c_int = "ncclGetVersion";
    }
}

/// NCCL, or RCCL, opened for as long as the process runs.
///
/// ```
/// # mod everburn { pub use everburn_nccl as nccl; }
/// use everburn::nccl::Library;
///
/// match Library::load() {
///     Ok(nccl) => println!("NCCL {} at {}", nccl.version(), nccl.path().display()),
///     Err(error) => println!("{error}"),
/// }
/// ```
pub struct Library {
    vendor: Vendor,
    path: PathBuf,
    version: NcclVersion,
    #[cfg(feature = "backend")]
    pub(super) functions: Functions,
}

impl Library {
    /// Opens the file that `EVERBURN_NCCL_LIBRARY` names, or else looks where
    /// [`LibraryPaths::of_this_process`] says.
    ///
    /// # Errors
    /// [`LibraryError::NoNccl`], [`LibraryError::Named`] or [`LibraryError::TooOld`], with what to
    /// install; [`LibraryError::Symbol`] for what is no NCCL.
    pub fn load() -> Result<Self, LibraryError> {
        Self::load_of(Vendor::Nvidia)
    }

    /// The same for the GPUs of `vendor`: RCCL for AMD's.
    ///
    /// # Errors
    /// As [`Library::load`].
    pub fn load_of(vendor: Vendor) -> Result<Self, LibraryError> {
        Self::load_from(vendor, &LibraryPaths::of_this_process())
    }

    /// [`Library::load_of`] with other paths.
    ///
    /// # Errors
    /// As [`Library::load`].
    pub fn load_from(vendor: Vendor, library_paths: &LibraryPaths) -> Result<Self, LibraryError> {
        let opened = match &library_paths.named {
            Some(path) => Opened::first([path.clone()]).map_err(|tried| LibraryError::Named {
                vendor,
                path: path.clone(),
                reason: tried.join("; "),
            })?,
            None => {
                let names = vendor.collectives_files();
                let by_name = names.map(PathBuf::from).into_iter();
                let files = library_paths
                    .folders
                    .iter()
                    .map(|folder| folder.join(names[0]));
                // What is not there need not be named in an error.
                let files = files.filter(|file| file.exists());
                Opened::first(by_name.chain(files))
                    .map_err(|tried| LibraryError::NoNccl { vendor, tried })?
            }
        };
        Self::of(vendor, &opened)
    }

    fn of(vendor: Vendor, opened: &Opened) -> Result<Self, LibraryError> {
        let missing = |symbol| LibraryError::Symbol {
            path: opened.path.clone(),
            symbol,
        };
        let asked = VersionFunction::load(opened).map_err(missing)?;
        let mut code = 0;
        // SAFETY: the pointer is to an `int` of this frame, which the call fills.
        let status = unsafe { (asked.get_version)(&mut code) };
        let code = u32::try_from(code).unwrap_or(0);
        let found = NcclVersion::from_code(if status == 0 { code } else { 0 });
        if found < OLDEST {
            return Err(LibraryError::TooOld {
                vendor,
                found,
                needed: OLDEST,
                path: opened.path.clone(),
            });
        }
        Ok(Self {
            vendor,
            path: opened.path.clone(),
            version: found,
            #[cfg(feature = "backend")]
            functions: Functions::load(opened).map_err(missing)?,
        })
    }

    /// For whose GPUs it is.
    #[must_use]
    pub fn vendor(&self) -> Vendor {
        self.vendor
    }

    /// Which version it is.
    #[must_use]
    pub fn version(&self) -> NcclVersion {
        self.version
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library")
            .field("vendor", &self.vendor)
            .field("path", &self.path)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VENDORS: [Vendor; 2] = [Vendor::Nvidia, Vendor::Amd];

    fn named(file: &Path) -> LibraryPaths {
        LibraryPaths {
            named: Some(file.into()),
            ..LibraryPaths::default()
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_library_that_is_no_nccl_is_refused_by_what_it_lacks() {
        for vendor in VENDORS {
            let error = Library::load_from(vendor, &named("libc.so.6".as_ref())).unwrap_err();
            assert!(
                matches!(
                    &error,
                    LibraryError::Symbol {
                        symbol: "ncclGetVersion",
                        ..
                    }
                ),
                "{error}"
            );
        }
    }

    #[test]
    fn a_damaged_file_is_told_from_a_missing_one() {
        for vendor in VENDORS {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join(vendor.collectives_files()[0]);
            let missing = Library::load_from(vendor, &named(&file)).unwrap_err();
            let missing = missing.to_string();
            assert!(missing.contains("No such file"), "{missing}");
            std::fs::write(&file, b"no library").unwrap();
            let error = Library::load_from(vendor, &named(&file)).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(&file.display().to_string()), "{error}");
            let advice = format!("name the file {}", vendor.collectives_files()[0]);
            assert!(error.contains(&advice), "{error}");
            assert!(!error.contains("No such file"), "{error}");
        }
    }

    /// A folder's file is tried after the names that the system's loader has, and only RCCL's is for AMD's GPUs.
    #[test]
    fn a_library_in_a_folder_is_looked_for_by_its_vendors_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("librccl.so.1");
        std::fs::write(&file, b"no library").unwrap();
        let library_paths = LibraryPaths {
            folders: vec![folder.path().into()],
            ..LibraryPaths::default()
        };
        for vendor in VENDORS {
            match Library::load_from(vendor, &library_paths) {
                // This machine has one.
                Ok(library) => assert_eq!(library.vendor(), vendor),
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.starts_with(&format!("no {}: ", vendor.collectives())));
                    let tried = text.contains(&file.display().to_string());
                    assert_eq!(tried, vendor == Vendor::Amd, "{text}");
                }
            }
        }
    }
}
