//! Whose the file of a store is. Who can write to it can take part in the job, and who can read it
//! has the job's addresses and its session key.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::process::geteuid;

/// What a new file is made with.
const MODE: u32 = 0o600;

/// What group and others may do.
const OTHERS: u32 = 0o077;

/// Anyone may add and remove files.
const WRITABLE_BY_ALL: u32 = 0o002;

/// Only the owner of a file may remove it.
const STICKY: u32 = 0o1000;

/// Opens the file, for a writer making it if need be; a symbolic link is not followed.
pub(super) fn open(path: &Path, write: bool) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    OpenOptions::new()
        .read(true)
        .write(write)
        .create(write)
        .mode(MODE)
        // Opening a pipe would wait for its other end.
        .custom_flags(flags.bits().cast_signed())
        .open(path)
}

/// What is wrong with the file that has been opened, and what to do.
pub(super) fn check_file(file: &Metadata) -> Result<(), String> {
    if !file.is_file() {
        return Err("it is no file; choose another path".into());
    }
    let (owner, us) = (file.uid(), geteuid().as_raw());
    if owner != us {
        return Err(format!(
            "the file belongs to user {owner} and this process is user {us}, and who owns the file \
             could take part in the job; choose another path"
        ));
    }
    let mode = file.mode() & 0o7777;
    if mode & OTHERS != 0 {
        return Err(format!(
            "other users may read or write the file (mode {mode:04o}), and so could take part in the \
             job; `chmod 600` it, or choose another path. PyTorch makes such files: start its ranks \
             with `umask 077`, or make the empty file with mode 600 beforehand"
        ));
    }
    Ok(())
}

/// A warning of a folder in which others could take the file away. They cannot put another in its
/// place, since that would be theirs.
pub(super) fn warning_of_folder(file: &Path) -> Option<String> {
    let folder = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new("."));
    let mode = folder.metadata().ok()?.mode();
    (mode & WRITABLE_BY_ALL != 0 && mode & STICKY == 0).then(|| {
        format!(
            "every user can remove files from {} and so end the job; `chmod +t` it, or choose \
             another folder",
            folder.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_folder_that_all_may_change_is_warned_of() {
        let folder = tempfile::tempdir().unwrap();
        for (mode, warns) in [
            (0o700, false),
            (0o755, false),
            (0o777, true),
            (0o1777, false),
        ] {
            fs::set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
            let warning = warning_of_folder(&folder.path().join("store"));
            assert_eq!(warning.is_some(), warns, "{mode:o}");
        }
    }
}
