//! Whether a process has a run, without touching its lock.

use std::fs;

use super::folder::Folder;

/// Whether somebody holds the lock `name`. Found out from `/proc/locks`: trying to take it, if only for a moment,
/// could keep a training out that begins just then.
pub(super) fn is_held(folder: &Folder, name: &str) -> bool {
    let Some(inode) = folder.inode(name) else {
        return false;
    };
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    locks.lines().any(|line| is_of(line, inode))
}

/// Whether a line of `/proc/locks` is a lock of the file `inode` that is held (and not waited for, "->"). The device
/// is not compared: file systems like btrfs show another one there.
fn is_of(line: &str, inode: u64) -> bool {
    let mut words = line.split_whitespace().skip(1);
    if words.next() != Some("FLOCK") {
        return false;
    }
    let place = words.nth(3);
    let of_place = place.and_then(|place| place.rsplit(':').next());
    of_place.and_then(|text| text.parse().ok()) == Some(inode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_found_by_its_inode() {
        let line = "1: FLOCK  ADVISORY  WRITE 4321 fe:01:8912898 0 EOF";
        assert!(is_of(line, 8_912_898));
        assert!(!is_of(line, 8_912_899));
        assert!(!is_of("1: -> FLOCK ADVISORY WRITE 4 fe:01:5 0 EOF", 5));
        assert!(!is_of("2: POSIX ADVISORY WRITE 4 fe:01:5 0 EOF", 5));
        assert!(!is_of("", 0));
    }

    #[test]
    fn a_lock_that_is_taken_and_given_back_is_seen() {
        let path = tempfile::tempdir().unwrap();
        let file = fs::File::create(path.path().join(".lock")).unwrap();
        let folder = Folder::open(path.path()).unwrap();
        assert!(!is_held(&folder, ".lock"));
        let operation = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        rustix::fs::flock(&file, operation).unwrap();
        assert!(is_held(&folder, ".lock"));
        rustix::fs::flock(&file, rustix::fs::FlockOperation::Unlock).unwrap();
        assert!(!is_held(&folder, ".lock"));
        assert!(!is_held(&folder, "none"));
    }
}
