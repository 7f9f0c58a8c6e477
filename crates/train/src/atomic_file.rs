//! Files that are there whole or not at all, and never reached through a link that somebody else has put there.
//! All follow the process's umask: a run may be read by those who may read its folder.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::error::TrainError;

/// Writes `bytes` to a temporary name beside `path`, syncs, renames, and syncs the folder.
///
/// # Errors
/// [`TrainError::File`] if any of that fails; what was at `path` before is then still there.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), TrainError> {
    let attempt = || -> io::Result<()> {
        replace(path, |file| {
            file.write_all(bytes)?;
            file.flush()?;
            file.get_ref().sync_all()
        })?;
        sync_folder(folder_of(path))
    };
    attempt().map_err(|error| TrainError::file("writing", path, &error))
}

/// Writes to a temporary name beside `path`, and renames. Nothing is synced. A link at `path` is replaced, and not
/// followed; the temporary name cannot be foreseen.
pub(crate) fn replace(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<&mut File>) -> io::Result<()>,
) -> io::Result<()> {
    let mut file = tempfile::Builder::new()
        .prefix(".partial-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder_of(path))?;
    let mut buffered = BufWriter::new(file.as_file_mut());
    write(&mut buffered)?;
    buffered.flush()?;
    drop(buffered);
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Opens a file that grows, at its end; a link is refused.
pub(crate) fn append_to(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)
}

/// Opens a file that is only locked; a link is refused.
pub(crate) fn lock_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)
}

fn folder_of(path: &Path) -> &Path {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// Makes renames inside a folder survive a power cut.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_link_is_replaced_or_refused_and_its_target_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("theirs"), "precious").unwrap();
        for name in ["report.json", "events.jsonl"] {
            std::os::unix::fs::symlink(path("theirs"), path(name)).unwrap();
        }
        append_to(&path("events.jsonl")).unwrap_err();
        lock_file(&path("events.jsonl")).unwrap_err();
        write(&path("report.json"), b"ours").unwrap();
        assert_eq!(std::fs::read(path("theirs")).unwrap(), b"precious");
        assert_eq!(std::fs::read(path("report.json")).unwrap(), b"ours");
        let mode = |name: &str| path(name).metadata().unwrap().permissions();
        assert_eq!(mode("report.json"), mode("theirs"));
    }
}
