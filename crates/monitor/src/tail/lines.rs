//! Following the lines of a file that grows.

use std::io::{Read, Seek, SeekFrom};

use super::folder::Folder;

/// How much is read at a time: a run of days comes in pieces, between which a key is heard.
const PIECE: usize = 1 << 20;

/// A line that is longer, for a large number of ranks, is left out.
const LONGEST_LINE: usize = 2 << 20;

/// A file of lines, which may not be there yet, may grow, and may be replaced by another.
#[derive(Debug)]
pub(super) struct Lines {
    name: &'static str,
    /// Which file is followed, and how far it has been read.
    inode: u64,
    offset: u64,
    /// What has come of a line whose end has not.
    begun: Vec<u8>,
    /// That line is too long, and is passed over.
    too_long: bool,
    more: bool,
}

impl Lines {
    pub(super) fn of(name: &'static str) -> Self {
        Self {
            name,
            inode: 0,
            offset: 0,
            begun: Vec::new(),
            too_long: false,
            more: false,
        }
    }

    /// Reads from the beginning again.
    pub(super) fn restart(&mut self) {
        (self.inode, self.offset, self.more) = (0, 0, false);
        self.begun.clear();
        self.too_long = false;
    }

    /// Whether the last piece was not the end.
    pub(super) fn has_more(&self) -> bool {
        self.more
    }

    /// Hands out the whole lines of the next piece. A file that was replaced, as a training does that continues from an
    /// earlier step, is read from its beginning: who is told a step again knows it.
    pub(super) fn read(&mut self, folder: &Folder, mut each: impl FnMut(&[u8])) {
        self.more = false;
        let Some((mut file, stat)) = folder.file(self.name) else {
            return;
        };
        let length = u64::try_from(stat.st_size).unwrap_or(0);
        if stat.st_ino != self.inode || length < self.offset {
            self.restart();
            self.inode = stat.st_ino;
        }
        if length == self.offset {
            return;
        }
        if file.seek(SeekFrom::Start(self.offset)).is_err() {
            return;
        }
        let mut piece = Vec::new();
        if file.take(PIECE as u64).read_to_end(&mut piece).is_err() {
            return;
        }
        self.offset += piece.len() as u64;
        self.more = piece.len() == PIECE;
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            self.take(part, &mut each);
        }
    }

    fn take(&mut self, part: &[u8], each: &mut impl FnMut(&[u8])) {
        let (text, ends) = match part {
            [text @ .., b'\n'] => (text, true),
            text => (text, false),
        };
        self.too_long |= self.begun.len() + text.len() > LONGEST_LINE;
        if !self.too_long {
            self.begun.extend_from_slice(text);
        }
        if !ends {
            return;
        }
        if !self.too_long && !self.begun.is_empty() {
            each(&self.begun);
        }
        self.begun.clear();
        self.too_long = false;
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write;
    use std::path::Path;

    use super::*;

    fn read(folder: &Path, lines: &mut Lines) -> Vec<String> {
        let folder = Folder::open(folder).unwrap();
        let mut found = Vec::new();
        lines.read(&folder, |line| {
            found.push(String::from_utf8_lossy(line).into_owned());
        });
        found
    }

    #[test]
    fn a_line_comes_when_it_is_whole_and_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let mut lines = Lines::of("a.jsonl");
        assert!(read(folder.path(), &mut lines).is_empty());
        let mut file = File::create(&path).unwrap();
        write!(file, "one\n\ntw").unwrap();
        assert_eq!(read(folder.path(), &mut lines), ["one"]);
        assert!(read(folder.path(), &mut lines).is_empty());
        writeln!(file, "o").unwrap();
        assert_eq!(read(folder.path(), &mut lines), ["two"]);
    }

    #[test]
    fn a_file_that_is_replaced_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        fs::write(&path, "one\ntwo\n").unwrap();
        let mut lines = Lines::of("a.jsonl");
        assert_eq!(read(folder.path(), &mut lines).len(), 2);
        fs::write(folder.path().join("b"), "one\nthree, which is longer\n").unwrap();
        fs::rename(folder.path().join("b"), &path).unwrap();
        assert_eq!(
            read(folder.path(), &mut lines),
            ["one", "three, which is longer"]
        );
        fs::write(&path, "four\n").unwrap();
        assert_eq!(read(folder.path(), &mut lines), ["four"]);
    }

    #[test]
    fn what_is_long_comes_in_pieces_and_what_is_too_long_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let long = "x".repeat(LONGEST_LINE + 1);
        let wide = "y".repeat(PIECE + PIECE / 2);
        fs::write(&path, format!("one\n{long}\n{wide}\ntwo\n")).unwrap();
        let mut lines = Lines::of("a.jsonl");
        let mut found = Vec::new();
        for _ in 0..9 {
            found.extend(read(folder.path(), &mut lines));
        }
        assert!(!lines.has_more());
        assert_eq!(found, ["one".to_string(), wide, "two".to_string()]);
    }
}
