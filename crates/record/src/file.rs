//! Whole files, and files at names that others can foresee.
//!
//! A file is written under a random name in the same folder and renamed, so that readers see the old file or the new
//! one. New files follow the process's umask: who may read a run's folder may read its files. A link at the path is
//! never followed: a writer replaces it, an opener refuses it, because somebody else may have planted it.
//!
//! | function | readers see | synced to disk | a link at the path |
//! |---|---|---|---|
//! | [`write()`] | the old file or the new one | file and folder | replaced |
//! | [`replace`] | the old file or the new one | no | replaced |
//! | [`write_once`] | the first file | no | replaced |
//! | [`append_to`], [`create`], [`lock_file`], [`overwrite`] | what is written so far | no | refused |
//! | [`open`], [`read`], [`read_text`] | | | refused |

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use tempfile::NamedTempFile;

/// Writes `bytes` to `path`, whole or not at all. The file and its name survive a power cut.
///
/// # Errors
/// The system's error. What was at `path` before is then still there.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = aside(path)?;
    // By the file: an error of the other has its random name.
    file.as_file_mut().write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    sync_folder(folder_of(path))
}

/// Writes what `fill` writes to `path`, whole or not at all. Nothing is synced to the disk.
///
/// # Errors
/// The system's error, or that of `fill`. What was at `path` before is then still there.
pub fn replace(
    path: &Path,
    fill: impl FnOnce(&mut BufWriter<&mut File>) -> io::Result<()>,
) -> io::Result<()> {
    let mut file = aside(path)?;
    let mut buffered = BufWriter::new(file.as_file_mut());
    fill(&mut buffered)?;
    buffered.flush()?;
    drop(buffered);
    file.persist(path)?;
    Ok(())
}

/// Writes `bytes` to `path` if there is no file yet, whole or not at all: the first writer wins. Returns whether this
/// call was the first. Nothing is synced to the disk.
///
/// # Errors
/// The system's error, other than that a file is there.
pub fn write_once(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    let mut file = aside(path)?;
    file.as_file_mut().write_all(bytes)?;
    // A link is nobody's file.
    if path.is_symlink() {
        fs::remove_file(path)?;
    }
    match file.persist_noclobber(path) {
        Ok(_) => Ok(true),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error.error),
    }
}

/// Writes `bytes` over a file that is there, in the room that it has on the disk: what [`replace`] cannot do on a full one.
///
/// # Errors
/// The system's error, that `path` is a link, or that the file has less room than this takes. After an error of the system it
/// may be half written.
pub fn overwrite(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = not_linked(OpenOptions::new().write(true), OFlags::NOFOLLOW, path)?;
    // A block of `stat` has 512 bytes, whatever the file system's have.
    if bytes.len() as u64 > file.metadata()?.blocks().saturating_mul(512) {
        return Err(io::ErrorKind::StorageFull.into());
    }
    // Shortened last: on a full disk its room would be gone to somebody else.
    file.write_all(bytes)?;
    file.set_len(bytes.len() as u64)
}

/// Opens a file at its end, and makes it if need be.
///
/// # Errors
/// The system's error, or that `path` is a link.
pub fn append_to(path: &Path) -> io::Result<File> {
    own(OpenOptions::new().append(true), path)
}

/// Opens an empty file: what was in it is removed.
///
/// # Errors
/// The system's error, or that `path` is a link.
pub fn create(path: &Path) -> io::Result<File> {
    own(OpenOptions::new().write(true).truncate(true), path)
}

/// Opens a file to lock it, and makes it if need be. What is in it stays.
///
/// # Errors
/// The system's error, or that `path` is a link.
pub fn lock_file(path: &Path) -> io::Result<File> {
    own(OpenOptions::new().write(true).truncate(false), path)
}

/// Opens a regular file for reading. A link is refused: whoever made it could show the reader any file of his own. A
/// pipe is refused too, because opening it would wait for its other end.
///
/// # Errors
/// The system's error, or that `path` is a link or no regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = not_linked(OpenOptions::new().read(true), flags, path)?;
    // Of the open file: nothing can be exchanged after the check.
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is no plain file")),
    }
}

/// The content of a regular file of at most `most` bytes.
///
/// # Errors
/// As [`open`], or that the file has more bytes.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let mut bounded = open(path)?.take(most.saturating_add(1));
    match bounded.read_to_end(&mut content)? as u64 > most {
        true => Err(io::Error::other(format!("it has more than {most} bytes"))),
        false => Ok(content),
    }
}

/// The text of a regular file of at most `most` bytes.
///
/// # Errors
/// As [`read`], or that it is not UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    let not_text = |_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8");
    String::from_utf8(read(path, most)?).map_err(not_text)
}

/// Makes renames inside `folder` survive a power cut.
///
/// # Errors
/// The system's error.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// What exists at `path` or nearest above it: on its disk is what will be made at `path`.
pub fn nearest_existing(path: &Path) -> &Path {
    // The last ancestor of a relative path is empty, and the present folder.
    let mut above = path.ancestors().map(|at| match at.as_os_str().is_empty() {
        true => Path::new("."),
        false => at,
    });
    above.find(|at| at.exists()).unwrap_or(Path::new("/"))
}

/// An error of the system with what to do; `other` names what another place is given by, such as `--output`.
pub fn with_hint(error: &io::Error, other: &str) -> String {
    use io::ErrorKind;
    let hint = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => "",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free some space or ",
        ErrorKind::AlreadyExists | ErrorKind::NotADirectory => "a file is in the way: ",
        _ => return error.to_string(),
    };
    format!("{error}; {hint}choose another {other}")
}

/// A file of a random name beside `path`, which is removed unless it gets that name. Errors do not have the random name.
fn aside(path: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new()
        .prefix(".everburn-")
        .make_in(folder_of(path), |path| File::create_new(path))
}

fn folder_of(path: &Path) -> &Path {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

fn own(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    not_linked(options.create(true), OFlags::NOFOLLOW, path)
}

fn not_linked(options: &mut OpenOptions, flags: OFlags, path: &Path) -> io::Result<File> {
    let opened = options.custom_flags(flags.bits().cast_signed()).open(path);
    opened.map_err(|error| match path.is_symlink() {
        true => io::Error::new(error.kind(), "it is a link, which is not followed"),
        false => error,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder with a file `theirs`, and links to it at `names`.
    fn planted(names: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("theirs"), "precious").unwrap();
        for name in names {
            symlink(folder.path().join("theirs"), folder.path().join(name)).unwrap();
        }
        folder
    }

    #[test]
    fn a_writer_replaces_a_planted_link_and_its_target_stays() {
        let folder = planted(&["written", "replaced", "once"]);
        let path = |name: &str| folder.path().join(name);
        write(&path("written"), b"ours").unwrap();
        replace(&path("replaced"), |file| file.write_all(b"ours")).unwrap();
        assert!(write_once(&path("once"), b"ours").unwrap());
        for name in ["written", "replaced", "once"] {
            assert!(path(name).symlink_metadata().unwrap().is_file());
            assert_eq!(read(&path(name), 4).unwrap(), b"ours");
        }
        assert_eq!(fs::read(path("theirs")).unwrap(), b"precious");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
    }

    #[test]
    fn an_opener_refuses_a_planted_link_and_its_target_stays() {
        let folder = planted(&["link"]);
        let path = |name: &str| folder.path().join(name);
        for opener in [append_to, create, lock_file, open] {
            let error = opener(&path("link")).unwrap_err().to_string();
            assert!(error.contains("link"), "{error}");
        }
        assert_eq!(fs::read(path("theirs")).unwrap(), b"precious");
        for opener in [append_to, create, lock_file, open] {
            opener(&path("new")).unwrap();
        }
    }

    #[test]
    fn openers_append_empty_or_keep() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        append_to(&path).unwrap().write_all(b"one").unwrap();
        append_to(&path).unwrap().write_all(b"two").unwrap();
        lock_file(&path).unwrap();
        assert_eq!(read_text(&path, 6).unwrap(), "onetwo");
        create(&path).unwrap();
        assert_eq!(read_text(&path, 6).unwrap(), "");
    }

    #[test]
    fn a_file_is_not_written_over_beyond_its_room() {
        let folder = planted(&["link"]);
        let path = folder.path().join("a");
        fs::write(&path, "one").unwrap();
        let room = fs::metadata(&path).unwrap().blocks() * 512;
        let long = vec![b'x'; usize::try_from(room).unwrap() + 1];
        let error = overwrite(&path, &long).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), b"one");
        overwrite(&folder.path().join("link"), b"ours").unwrap_err();
        assert_eq!(fs::read(folder.path().join("theirs")).unwrap(), b"precious");
    }

    #[test]
    fn what_is_not_there_yet_is_made_in_the_nearest_folder() {
        let folder = planted(&[]);
        let at = folder.path();
        assert_eq!(nearest_existing(&at.join("a/b")), at);
        assert_eq!(nearest_existing(&at.join("theirs")), at.join("theirs"));
        assert_eq!(nearest_existing(Path::new("not there/a")), Path::new("."));
    }

    #[test]
    fn new_files_follow_the_umask() {
        let folder = planted(&[]);
        let path = |name: &str| folder.path().join(name);
        write(&path("written"), b"").unwrap();
        replace(&path("replaced"), |_| Ok(())).unwrap();
        write_once(&path("once"), b"").unwrap();
        let mode = |name: &str| path(name).metadata().unwrap().permissions();
        for name in ["written", "replaced", "once"] {
            assert_eq!(mode(name), mode("theirs"), "{name}");
        }
    }

    #[test]
    fn a_file_is_whole_or_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        write(&path("a"), b"one").unwrap();
        write(&path("a"), b"two").unwrap();
        let failed = replace(&path("a"), |file| {
            file.write_all(b"half")?;
            Err(io::Error::other("no more"))
        });
        assert_eq!(failed.unwrap_err().to_string(), "no more");
        assert_eq!(read(&path("a"), 3).unwrap(), b"two");
        fs::create_dir(path("b")).unwrap();
        write(&path("b"), b"three").unwrap_err();
        let failed = write(&path("none/c"), b"three").unwrap_err();
        let told = "No such file or directory (os error 2)";
        assert_eq!(failed.to_string(), told, "no random name");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn an_error_says_what_to_do_by_the_name_of_the_place() {
        let told = |number| with_hint(&io::Error::from_raw_os_error(number), "--output");
        let full =
            "No space left on device (os error 28); free some space or choose another --output";
        assert_eq!(told(28), full);
        let denied = "Permission denied (os error 13); choose another --output";
        assert_eq!(told(13), denied);
        assert_eq!(told(5), "Input/output error (os error 5)");
    }

    #[test]
    fn the_first_of_two_files_stands() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        assert!(write_once(&path, b"one").unwrap());
        assert!(!write_once(&path, b"two").unwrap());
        assert_eq!(read(&path, 3).unwrap(), b"one");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn only_short_plain_text_is_read() {
        let folder = planted(&[]);
        let path = |name: &str| folder.path().join(name);
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, path("pipe"), fifo, mode, 0).unwrap();
        fs::write(path("no text"), b"\xff").unwrap();
        let wrong = |name: &str| read_text(&path(name), 7).unwrap_err();
        assert_eq!(wrong("nothing").kind(), io::ErrorKind::NotFound);
        assert!(wrong("").to_string().contains("no plain file"));
        // Not waited for either.
        assert!(wrong("pipe").to_string().contains("no plain file"));
        assert!(wrong("theirs").to_string().contains("more than 7 bytes"));
        assert!(wrong("no text").to_string().contains("UTF-8"));
        assert_eq!(read_text(&path("theirs"), 8).unwrap(), "precious");
    }
}
