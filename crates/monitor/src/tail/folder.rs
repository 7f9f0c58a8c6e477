//! The folder of a run, through a descriptor: nothing can be exchanged between a check and an opening.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};

/// A folder that is open.
#[derive(Debug)]
pub(super) struct Folder(OwnedFd);

impl Folder {
    /// Opens `path`, which the user has named: it may be a link.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::openat(CWD, path, flags, Mode::empty())?))
    }

    /// The plain file `name` in it, open for reading. A link is not followed, for it may lead to anybody's file,
    /// and a pipe is not waited for. What is checked is the open file.
    pub(super) fn file(&self, name: &str) -> Option<(File, Stat)> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.0, name, flags, Mode::empty()).ok()?;
        let stat = rustix::fs::fstat(&file).ok()?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        is_file.then(|| (File::from(file), stat))
    }

    /// Whether somebody holds the lock `name`, which is neither opened nor taken.
    pub(super) fn is_locked(&self, name: &str) -> bool {
        let stat = rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| everburn_record::proc::is_locked(stat.st_ino))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_plain_files_are_opened() {
        let path = tempfile::tempdir().unwrap();
        let at = |name: &str| path.path().join(name);
        std::fs::write(at("plain"), "seen").unwrap();
        symlink(at("plain"), at("link")).unwrap();
        symlink("/etc/passwd", at("far")).unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(CWD, at("pipe"), FileType::Fifo, mode, 0).unwrap();
        let folder = Folder::open(path.path()).unwrap();
        for other in ["link", "far", "folder", "pipe", "nothing"] {
            assert!(folder.file(other).is_none(), "{other}");
        }
        let mut text = String::new();
        let (mut file, _) = folder.file("plain").unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "seen");
        // A folder that is exchanged meanwhile is not the one that is open.
        let elsewhere = tempfile::tempdir().unwrap();
        std::fs::write(elsewhere.path().join("other"), "").unwrap();
        std::fs::rename(path.path(), path.path().with_extension("gone")).unwrap();
        symlink(elsewhere.path(), path.path()).unwrap();
        assert!(folder.file("plain").is_some() && folder.file("other").is_none());
        std::fs::remove_file(path.path()).unwrap();
        std::fs::rename(path.path().with_extension("gone"), path.path()).unwrap();
    }

    #[test]
    fn a_lock_that_is_taken_and_given_back_is_seen() {
        let path = tempfile::tempdir().unwrap();
        let file = File::create(path.path().join(".lock")).unwrap();
        let folder = Folder::open(path.path()).unwrap();
        assert!(!folder.is_locked(".lock"));
        let operation = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        rustix::fs::flock(&file, operation).unwrap();
        assert!(folder.is_locked(".lock"));
        rustix::fs::flock(&file, rustix::fs::FlockOperation::Unlock).unwrap();
        assert!(!folder.is_locked(".lock"));
        assert!(!folder.is_locked("none"));
    }
}
