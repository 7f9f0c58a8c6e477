//! The lines of a file of any length, in bounded memory.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};

/// A line of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line<'a> {
    /// Its bytes, without the end of the line.
    Whole(&'a [u8]),
    /// The last one, of which the end is missing: a run may be writing it.
    Unfinished(&'a [u8]),
    /// One that is longer than it may be; its beginning.
    TooLong(&'a [u8]),
}

/// Hands the lines of `from` to `take`, with their numbers from 1, and no more than `longest` bytes of each.
///
/// # Errors
/// The system's error; the lines before it have been handed out.
pub fn each(
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
///
/// # Errors
/// The system's error.
pub fn both_ends(file: File, part: u64) -> io::Result<(impl Read, bool)> {
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
        each(text, longest, note).unwrap();
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
    fn a_long_file_is_read_from_both_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let both = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let mut read = String::new();
            let (mut ends, left_out) = both_ends(File::open(&path).unwrap(), 4).unwrap();
            ends.read_to_string(&mut read).unwrap();
            (read, left_out)
        };
        assert_eq!(both("12345678"), ("12345678".to_owned(), false));
        assert_eq!(both("123456789"), ("1234\n6789".to_owned(), true));
        assert_eq!(both(""), (String::new(), false));
    }
}
