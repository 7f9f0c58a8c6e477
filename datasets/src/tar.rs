//! Reads tar files: headers one after the other, contents only where they are asked for.
//!
//! Read are the classic format, ustar, and long names of GNU tar and of pax. Headers are checked by their sums. A reader
//! holds one header and one name at a time; contents are bounded by the caller.

use std::io::{self, BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use crate::DatasetError;
use crate::error::{damaged, unreadable};

/// Headers and contents are whole blocks of this size.
const BLOCK: usize = 512;

/// The longest name of a member, and the longest list of pax attributes, in bytes.
const LONGEST_NAME: u64 = 64 << 10;

/// A file in a tar file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: String,
    /// Where its content begins.
    pub(crate) offset: u64,
    /// The bytes of its content.
    pub(crate) size: u64,
}

/// Passes over bytes: by reading where there is no other way.
pub(crate) trait Skip: Read {
    /// Passes over `count` bytes.
    ///
    /// # Errors
    /// Those of the source; its end is found later, where it is a file.
    fn skip(&mut self, count: u64) -> io::Result<()>;
}

impl<R: Read + Seek> Skip for BufReader<R> {
    fn skip(&mut self, count: u64) -> io::Result<()> {
        let count = i64::try_from(count).map_err(io::Error::other)?;
        self.seek_relative(count)
    }
}

/// A source that can only be read.
pub(crate) struct Unseekable<R>(pub(crate) R);

impl<R: Read> Read for Unseekable<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl<R: Read> Skip for Unseekable<R> {
    fn skip(&mut self, count: u64) -> io::Result<()> {
        let passed = io::copy(&mut self.0.by_ref().take(count), &mut io::sink())?;
        match passed == count {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// The members of a tar file, in order.
pub(crate) struct Members<R> {
    source: R,
    path: PathBuf,
    /// The bytes of the file, where they are known.
    length: Option<u64>,
    /// Where the next header begins.
    position: u64,
    /// What of the last member's content has not been passed.
    unread: u64,
}

impl Members<BufReader<std::fs::File>> {
    /// The members of a file.
    pub(crate) fn open(path: &Path) -> Result<Self, DatasetError> {
        let file = std::fs::File::open(path).map_err(|source| unreadable(path, source))?;
        let length = file.metadata().map_err(|source| unreadable(path, source))?;
        Ok(Self::of_length(BufReader::new(file), path, length.len()))
    }
}

impl<R: Skip> Members<R> {
    /// The members of a source; `path` is for errors.
    pub(crate) fn of(source: R, path: &Path) -> Self {
        Self {
            source,
            path: path.to_owned(),
            length: None,
            position: 0,
            unread: 0,
        }
    }

    /// As [`of`](Self::of), where the source has this many bytes.
    pub(crate) fn of_length(source: R, path: &Path, length: u64) -> Self {
        Self {
            length: Some(length),
            ..Self::of(source, path)
        }
    }

    /// The next file; `None` at the end. Folders and links are passed over.
    pub(crate) fn next(&mut self) -> Result<Option<Member>, DatasetError> {
        let mut long_name = None;
        loop {
            self.pass(self.unread)?;
            self.unread = 0;
            let begin = self.position;
            let Some(header) = self.header(begin)? else {
                return Ok(None);
            };
            let size = self.number(&header[124..136], begin, "size")?;
            let blocks = size.div_ceil(BLOCK as u64).checked_mul(BLOCK as u64);
            let end = blocks.and_then(|blocks| blocks.checked_add(self.position));
            let (Some(blocks), Some(end)) = (blocks, end) else {
                return Err(self.damaged(begin, "size", format!("{size} bytes are absurd")));
            };
            // Some writers leave the last block incomplete.
            let content_end = end - (blocks - size);
            if let Some(length) = self.length.filter(|length| content_end > *length) {
                let problem = format!(
                    "the content ends at byte {content_end}, and the file has {length} bytes: it is cut off"
                );
                return Err(self.damaged(begin, "size", problem));
            }
            self.unread = blocks;
            match header[156] {
                b'L' => long_name = Some(self.text(size, begin)?),
                b'x' => long_name = pax_path(&self.text(size, begin)?).or(long_name),
                b'0' | 0 | b'7' => {
                    let name = match long_name.take() {
                        Some(name) => name,
                        None => self.name(&header, begin)?,
                    };
                    return Ok(Some(Member {
                        name,
                        offset: self.position,
                        size,
                    }));
                }
                _ => long_name = None,
            }
        }
    }

    /// The content of the member that [`next`](Self::next) returned last.
    pub(crate) fn content(&mut self, member: &Member, most: u64) -> Result<Vec<u8>, DatasetError> {
        let path = &self.path;
        let wrong = |problem: String| damaged(path, &format!("member {}", member.name), problem);
        let size = member.size;
        if size > most {
            return Err(wrong(format!(
                "{size} bytes are more than the {most} that are read"
            )));
        }
        let mut content = Vec::new();
        let read = self.source.by_ref().take(size).read_to_end(&mut content);
        let read = read.map_err(|source| match is_damage(&source) {
            true => wrong(source.to_string()),
            false => unreadable(path, source),
        })? as u64;
        self.position += read;
        self.unread -= read;
        match read == size {
            true => Ok(content),
            false => Err(wrong(format!("{read} of {size} bytes: it is cut off"))),
        }
    }

    fn pass(&mut self, count: u64) -> Result<(), DatasetError> {
        let begin = self.position;
        self.source
            .skip(count)
            .map_err(|source| match is_damage(&source) {
                true => self.damaged(begin, "content before", format!("it is cut off: {source}")),
                false => unreadable(&self.path, source),
            })?;
        self.position += count;
        Ok(())
    }

    /// The block at the reader's place; `None` of zeros, which end the file, and at its end.
    fn header(&mut self, begin: u64) -> Result<Option<[u8; BLOCK]>, DatasetError> {
        let mut block = Vec::with_capacity(BLOCK);
        let read = self
            .source
            .by_ref()
            .take(BLOCK as u64)
            .read_to_end(&mut block);
        read.map_err(|source| match is_damage(&source) {
            true => self.damaged(begin, "compression", source.to_string()),
            false => unreadable(&self.path, source),
        })?;
        if block.is_empty() {
            return Ok(None);
        }
        let Ok(block) = <[u8; BLOCK]>::try_from(block) else {
            return Err(self.damaged(begin, "header", "it is cut off"));
        };
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        self.position += BLOCK as u64;
        let expected = self.number(&block[148..156], begin, "checksum")?;
        let bytes = block.iter().enumerate();
        let sum = bytes.map(|(at, byte)| match (148..156).contains(&at) {
            true => u64::from(b' '),
            false => u64::from(*byte),
        });
        let sum = sum.sum::<u64>();
        if sum != expected {
            let problem = format!(
                "it is {expected}, and the header adds up to {sum}: this is no tar file, or damaged"
            );
            return Err(self.damaged(begin, "checksum", problem));
        }
        Ok(Some(block))
    }

    /// A number: octal, or of GNU tar, where it is large, binary.
    fn number(&self, field: &[u8], begin: u64, name: &str) -> Result<u64, DatasetError> {
        if field[0] == 0x80 {
            let (high, low) = field.split_at(field.len() - 8);
            let low = <[u8; 8]>::try_from(low).map(u64::from_be_bytes);
            return match (high[1..].iter().all(|byte| *byte == 0), low) {
                (true, Ok(number)) => Ok(number),
                _ => Err(self.damaged(begin, name, "it is absurdly large")),
            };
        }
        let text = String::from_utf8_lossy(field);
        let text = text.trim_matches([' ', '\0']);
        u64::from_str_radix(if text.is_empty() { "0" } else { text }, 8).map_err(|_| {
            let problem = format!("`{}` is no octal number", text.escape_debug());
            self.damaged(begin, name, problem)
        })
    }

    fn name(&self, header: &[u8; BLOCK], begin: u64) -> Result<String, DatasetError> {
        let text = |field: &[u8]| {
            let end = field.iter().position(|byte| *byte == 0);
            let text = &field[..end.unwrap_or(field.len())];
            let text = std::str::from_utf8(text).map(str::to_owned);
            text.map_err(|_| self.damaged(begin, "name", "it is not UTF-8"))
        };
        let name = text(&header[..100])?;
        let prefix = match &header[257..263] == b"ustar\0" {
            true => text(&header[345..500])?,
            false => String::new(),
        };
        Ok(match prefix.is_empty() {
            true => name,
            false => format!("{prefix}/{name}"),
        })
    }

    /// The content of a header that describes the next one.
    fn text(&mut self, size: u64, begin: u64) -> Result<String, DatasetError> {
        if size > LONGEST_NAME {
            let problem = format!("a name of {size} bytes is longer than {LONGEST_NAME}");
            return Err(self.damaged(begin, "size", problem));
        }
        let member = Member {
            name: "of a long name".to_owned(),
            offset: self.position,
            size,
        };
        let text = String::from_utf8(self.content(&member, LONGEST_NAME)?);
        let text = text.map_err(|_| self.damaged(begin, "name", "it is not UTF-8"))?;
        Ok(text.trim_end_matches('\0').to_owned())
    }

    fn damaged(&self, begin: u64, field: &str, problem: impl AsRef<str>) -> DatasetError {
        let field = format!("{field} of the header at byte {begin}");
        damaged(&self.path, &field, problem)
    }
}

/// The attribute `path` of a pax header: lines of a length, a space, a key, `=` and a value.
fn pax_path(attributes: &str) -> Option<String> {
    let mut lines = attributes.lines();
    lines.find_map(|line| Some(line.split_once(" path=")?.1.to_owned()))
}

/// Whether the bytes are at fault, and not the disk.
fn is_damage(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | InvalidInput | InvalidData)
}

#[cfg(test)]
mod tests;
