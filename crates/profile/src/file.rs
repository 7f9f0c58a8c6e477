//! The files of a profile: whole or not there, and never through a link that somebody else has put there.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::error::ProfileError;

/// The longest recording that is read: a rank's recorder holds far less.
const LONGEST: u64 = 1 << 30;

/// Writes the whole file, or none. A link at `path` is replaced, and the temporary name cannot be foreseen.
pub(crate) fn write(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<&mut File>) -> io::Result<()>,
) -> Result<(), ProfileError> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let whole = || -> io::Result<()> {
        let mut file = tempfile::Builder::new()
            .prefix(".everburn-")
            // As every file of a run: the process's umask applies.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder.unwrap_or(Path::new(".")))?;
        let mut buffered = BufWriter::new(file.as_file_mut());
        write(&mut buffered)?;
        buffered.flush()?;
        drop(buffered);
        file.persist(path)?;
        Ok(())
    };
    whole().map_err(|error| ProfileError::File {
        action: "writing",
        path: path.to_owned(),
        reason: error.to_string(),
    })
}

/// The content of a plain file; a link is not followed, and a pipe not waited for.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, String> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path);
    let file = opened.map_err(|error| match path.is_symlink() {
        true => "it is a link, which is not followed".to_owned(),
        false => error.to_string(),
    })?;
    if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        return Err("it is no plain file".to_owned());
    }
    let mut content = Vec::new();
    let read = file.take(LONGEST + 1).read_to_end(&mut content);
    match read.map_err(|error| error.to_string())? as u64 > LONGEST {
        true => Err(format!("it has more than {LONGEST} bytes")),
        false => Ok(content),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::Recording;

    #[test]
    fn a_planted_link_is_neither_written_through_nor_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("theirs"), "precious").unwrap();
        std::os::unix::fs::symlink(path("theirs"), path("rank-0.json")).unwrap();
        let error = Recording::read_all(folder.path()).unwrap_err().to_string();
        assert!(error.contains("link"), "{error}");
        let written = Recording::default().write(folder.path()).unwrap();
        assert_eq!(written, path("rank-0.json"));
        assert_eq!(std::fs::read(path("theirs")).unwrap(), b"precious");
        assert_eq!(Recording::read_all(folder.path()).unwrap().len(), 1);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_recording_may_be_read_by_all_whom_the_umask_lets() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("plain"), "").unwrap();
        write(&path("ours"), |file| file.write_all(b"x")).unwrap();
        let mode = |name: &str| path(name).metadata().unwrap().permissions();
        assert_eq!(mode("ours"), mode("plain"));
    }
}
