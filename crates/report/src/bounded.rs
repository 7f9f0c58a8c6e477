//! Files of a run directory, read with bounds: whatever lies there, no more than so much of it is held in
//! memory, and nothing is waited for.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a plain file. A link is refused, for a run directory that somebody else has made could show a report's
/// reader any file of his own; so is what is no file, for a pipe would be waited for.
///
/// # Errors
/// What is wrong with it, in words; `None` where there is nothing of that name.
pub(crate) fn open(path: &Path) -> Result<File, Option<String>> {
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits() as i32)
        .open(path);
    let file = opened.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => None,
        _ if path.is_symlink() => Some("it is a link, which is not followed".to_owned()),
        _ => Some(error.to_string()),
    })?;
    let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
    match is_file {
        true => Ok(file),
        false => Err(Some("it is no plain file".to_owned())),
    }
}

/// The text of a file of at most `most` bytes.
///
/// # Errors
/// As [`open`].
pub(crate) fn text(path: &Path, most: u64) -> Result<String, Option<String>> {
    let mut bytes = Vec::new();
    let file = open(path)?;
    file.take(most + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Some(error.to_string()))?;
    if bytes.len() as u64 > most {
        return Err(Some(format!("it has more than {most} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| Some("it is not UTF-8".to_owned()))
}

/// A line of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line<'a> {
    /// Its bytes, without the end of the line.
    Whole(&'a [u8]),
    /// The last one, of which the end is missing: a run may be writing it.
    Unfinished(&'a [u8]),
    /// One that is longer than it may be; its beginning.
    TooLong(&'a [u8]),
}

/// Hands the lines of `from` to `take`, with their numbers from 1, and no more than `longest` bytes of each.
pub(crate) fn lines(
    from: impl Read,
    longest: usize,
    mut take: impl FnMut(u64, Line<'_>),
) -> io::Result<()> {
    let mut from = BufReader::with_capacity(1 << 16, from);
    let mut line = Vec::new();
    let mut number = 0;
    loop {
        line.clear();
        // One byte for the end of the line.
        let most = longest as u64 + 1;
        if from.by_ref().take(most).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        number += 1;
        if line.last() == Some(&b'\n') {
            line.pop();
            take(number, Line::Whole(&line));
        } else if line.len() <= longest {
            take(number, Line::Unfinished(&line));
        } else {
            take(number, Line::TooLong(&line[..longest]));
            skip_line(&mut from)?;
        }
    }
}

fn skip_line(from: &mut impl BufRead) -> io::Result<()> {
    loop {
        let buffer = from.fill_buf()?;
        let (length, end) = match buffer.iter().position(|byte| *byte == b'\n') {
            Some(at) => (at + 1, true),
            None => (buffer.len(), buffer.is_empty()),
        };
        from.consume(length);
        if end {
            return Ok(());
        }
    }
}

/// The beginning and the end of a file, `part` bytes of each; all of it where it is no longer. Also tells whether
/// something between was left out.
pub(crate) fn both_ends(file: File, part: u64) -> io::Result<(impl Read, bool)> {
    let length = file.metadata()?.len();
    let left_out = length > 2 * part;
    let mut end = file.try_clone()?;
    let beginning = if left_out { part } else { length.min(2 * part) };
    // The two share their place in the file, so that the end begins where the beginning stopped, or further on.
    let mut beginning_bytes = Vec::new();
    file.take(beginning).read_to_end(&mut beginning_bytes)?;
    if left_out {
        end.seek(SeekFrom::Start(length - part))?;
        // The rest of a line that is torn has a line to itself.
        beginning_bytes.push(b'\n');
    }
    let rest = if left_out { part } else { 0 };
    Ok((
        io::Cursor::new(beginning_bytes).chain(end.take(rest)),
        left_out,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8], longest: usize) -> Vec<(u64, String)> {
        let mut read = Vec::new();
        let note = |number, line: Line<'_>| read.push((number, format!("{line:?}")));
        lines(text, longest, note).unwrap();
        read
    }

    #[test]
    fn lines_are_whole_unfinished_or_too_long() {
        let shown = |line: Line<'_>| format!("{line:?}");
        assert_eq!(
            read(b"abc\n\nabcd\nabcdef\nab", 4),
            [
                (1, shown(Line::Whole(b"abc"))),
                (2, shown(Line::Whole(b""))),
                (3, shown(Line::Whole(b"abcd"))),
                (4, shown(Line::TooLong(b"abcd"))),
                (5, shown(Line::Unfinished(b"ab"))),
            ]
        );
        assert_eq!(read(b"", 4), []);
        assert_eq!(read(b"abcdefgh", 4), [(1, shown(Line::TooLong(b"abcd")))]);
    }

    #[test]
    fn what_is_no_file_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("a"), "secret").unwrap();
        std::os::unix::fs::symlink(path("a"), path("link")).unwrap();
        let wrong = |name: &str| text(&path(name), 5).unwrap_err();
        assert_eq!(wrong("nothing"), None);
        assert!(wrong("link").unwrap().contains("link"));
        assert!(wrong("").unwrap().contains("no plain file"));
        assert!(wrong("a").unwrap().contains("more than 5 bytes"));
        assert_eq!(text(&path("a"), 6).unwrap(), "secret");
        std::fs::write(path("a"), b"\xff").unwrap();
        assert!(wrong("a").unwrap().contains("UTF-8"));
    }

    #[test]
    fn a_pipe_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(
            text(&path, 5)
                .unwrap_err()
                .unwrap()
                .contains("no plain file")
        );
    }

    #[test]
    fn a_long_file_is_read_from_both_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let both = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let mut read = String::new();
            let (mut ends, left_out) = both_ends(open(&path).unwrap(), 4).unwrap();
            ends.read_to_string(&mut read).unwrap();
            (read, left_out)
        };
        assert_eq!(both("12345678"), ("12345678".to_owned(), false));
        assert_eq!(both("123456789"), ("1234\n6789".to_owned(), true));
        assert_eq!(both(""), (String::new(), false));
    }
}
