//! Files that are there whole or not at all.

use std::io::Write;
use std::path::Path;

use crate::error::TrainError;

/// Writes `bytes` to a temporary name beside `path`, syncs, renames, and syncs the folder.
///
/// # Errors
/// [`TrainError::File`] if any of that fails; what was at `path` before is then still there.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), TrainError> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let attempt = || -> std::io::Result<()> {
        let mut file = tempfile::Builder::new()
            .prefix(".partial-")
            .tempfile_in(folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        sync_folder(folder)
    };
    attempt().map_err(|error| TrainError::file("writing", path, &error))
}

/// Makes renames inside a folder survive a power cut.
pub(crate) fn sync_folder(folder: &Path) -> std::io::Result<()> {
    std::fs::File::open(folder)?.sync_all()
}
