//! Files at names that others can foresee: a link that somebody may have put there is refused.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a file that grows, at its end.
pub(crate) fn append_to(path: &Path) -> io::Result<File> {
    own(OpenOptions::new().append(true), path)
}

/// Opens a file that is written anew.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    own(OpenOptions::new().write(true).truncate(true), path)
}

fn own(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options
        .create(true)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planted_link_is_refused_and_its_target_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("theirs"), "precious").unwrap();
        std::os::unix::fs::symlink(path("theirs"), path("ours")).unwrap();
        append_to(&path("ours")).unwrap_err();
        create(&path("ours")).unwrap_err();
        assert_eq!(std::fs::read(path("theirs")).unwrap(), b"precious");
        create(&path("new")).unwrap();
        append_to(&path("new")).unwrap();
    }
}
