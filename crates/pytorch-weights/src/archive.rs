//! ZIP archives of files that are stored as they are, the shell of a `.pt` file (PKWARE's APPNOTE 6.3).
//!
//! `torch.save` never compresses, so nothing here does: what is read is never longer than the file. Of the
//! archive only the directory is held, and it is checked before anything of it is believed: it is in the file,
//! each name is there once, no two files share a byte.

mod directory;
mod write;

use std::io::{Read, Seek, SeekFrom};

use crc32fast::Hasher;

use self::directory::{Directory, entries};
use crate::error::{Shown, WeightsError, archive as refuse};

pub(crate) use write::write;

/// Signatures of the records, little endian.
const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;

/// The length of a local header, without name and extra field.
const LOCAL_LENGTH: u64 = 30;

/// How many bytes are read at a time where only their checksum counts.
const HASHED: u64 = 1 << 20;

const TOO_EARLY: &str = "it ends too early; was it copied whole?";

/// Bytes that are read from front to back; what is not there is an error, never a panic.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

/// A file in the archive.
struct Entry {
    /// Where its name is in the directory.
    name: (usize, usize),
    /// Where its local header begins.
    offset: u64,
    /// Where the next file or the directory begins.
    limit: u64,
    /// How many bytes it takes in the archive.
    stored: u64,
    size: u64,
    compressed: bool,
    /// The CRC-32 that its content must have; `None` once it was compared, or if the archive has none (0).
    checksum: Option<u32>,
}

/// An archive whose directory was read and checked.
pub(crate) struct Archive<R> {
    source: R,
    directory: Vec<u8>,
    /// In the order of their names.
    entries: Vec<Entry>,
}

impl<R: Read + Seek> Archive<R> {
    pub(crate) fn open(mut source: R) -> Result<Self, WeightsError> {
        let length = source.seek(SeekFrom::End(0))?;
        let found = Directory::find(&mut source, length)?;
        let directory = read(&mut source, found.offset, found.size)?;
        let mut entries = entries(&directory, &found)?;
        entries.sort_by_key(|entry| entry.offset);
        let mut limit = found.offset;
        for entry in entries.iter_mut().rev() {
            entry.limit = limit;
            // Without what the local header adds, which is checked where the file is read.
            let end = (entry.offset.checked_add(LOCAL_LENGTH + entry.name.1 as u64))
                .and_then(|end| end.checked_add(entry.stored));
            if end.is_none_or(|end| end > limit) {
                let name = Shown(name_of(&directory, entry));
                return Err(refuse(format!(
                    "{name} in it overlaps with something else; it is damaged"
                )));
            }
            limit = entry.offset;
        }
        entries.sort_by(|a, b| name_of(&directory, a).cmp(name_of(&directory, b)));
        let names = entries
            .windows(2)
            .map(|pair| [&pair[0], &pair[1]].map(|entry| name_of(&directory, entry)));
        if let Some([name, _]) = names.into_iter().find(|[a, b]| a == b) {
            return Err(refuse(format!(
                "{} is in it twice; it is damaged",
                Shown(name)
            )));
        }
        Ok(Self {
            source,
            directory,
            entries,
        })
    }

    /// The names of all files, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.entries
            .iter()
            .map(|entry| name_of(&self.directory, entry))
    }

    /// The place of a file among [`Self::names`].
    pub(crate) fn find(&self, name: &[u8]) -> Option<usize> {
        let found = self
            .entries
            .binary_search_by(|entry| name_of(&self.directory, entry).cmp(name));
        found.ok()
    }

    /// How many bytes per file has.
    ///
    /// # Errors
    /// A compressed one: `torch.jit.save` compresses its code, `torch.save` nothing.
    pub(crate) fn size(&self, file: usize) -> Result<u64, WeightsError> {
        let entry = &self.entries[file];
        if entry.compressed {
            let name = Shown(name_of(&self.directory, entry));
            return Err(refuse(format!(
                "{name} in it is compressed, which torch.save does not do; load it and save it again with torch.save"
            )));
        }
        Ok(entry.size)
    }

    /// A part of a file. With the first, what is before and after it is read too, for the checksum of the whole.
    ///
    /// # Errors
    /// [`WeightsError::Checksum`] with the file's name.
    pub(crate) fn part(
        &mut self,
        file: usize,
        begin: u64,
        size: u64,
    ) -> Result<Vec<u8>, WeightsError> {
        let content = self.content(file)?;
        let whole = self.size(file)?;
        let end = begin.checked_add(size).filter(|end| *end <= whole);
        let end = end.ok_or_else(|| refuse(TOO_EARLY))?;
        let expected = self.entries[file].checksum.filter(|_| size > 0);
        let Some(expected) = expected else {
            return read(&mut self.source, content + begin, size);
        };
        let mut hasher = Hasher::new();
        hash(&mut self.source, content, begin, &mut hasher)?;
        let bytes = read(&mut self.source, content + begin, size)?;
        hasher.update(&bytes);
        hash(&mut self.source, content + end, whole - end, &mut hasher)?;
        let found = hasher.finalize();
        let entry = &mut self.entries[file];
        if found != expected {
            let name = Shown(name_of(&self.directory, entry)).to_string();
            return Err(WeightsError::Checksum {
                name,
                found,
                expected,
            });
        }
        entry.checksum = None;
        Ok(bytes)
    }

    /// Where the content of a file begins, after its local header.
    fn content(&mut self, file: usize) -> Result<u64, WeightsError> {
        let entry = &self.entries[file];
        let name = name_of(&self.directory, entry);
        let head = read(
            &mut self.source,
            entry.offset,
            LOCAL_LENGTH + name.len() as u64,
        )?;
        let lengths = local_lengths(&head).filter(|_| head.ends_with(name));
        let content = lengths
            .filter(|(own, _)| usize::from(*own) == name.len())
            .map(|(name, extra)| entry.offset + LOCAL_LENGTH + u64::from(name) + u64::from(extra));
        let content = content.filter(|content| {
            content
                .checked_add(entry.stored)
                .is_some_and(|end| end <= entry.limit)
        });
        content.ok_or_else(|| refuse("its directory points to something else; it is damaged"))
    }
}

fn name_of<'a>(directory: &'a [u8], entry: &Entry) -> &'a [u8] {
    &directory[entry.name.0..][..entry.name.1]
}

/// The lengths of name and extra field in a local header.
fn local_lengths(head: &[u8]) -> Option<(u16, u16)> {
    let mut head = Bytes(head);
    if head.u32()? != LOCAL {
        return None;
    }
    head.take(22)?;
    Some((head.u16()?, head.u16()?))
}

/// A part of the file: it is known to be there, so what is allocated is never more than the file has.
fn read<R: Read + Seek>(source: &mut R, begin: u64, size: u64) -> Result<Vec<u8>, WeightsError> {
    let size = usize::try_from(size).map_err(|_| refuse("it is too large for this machine"))?;
    let mut bytes = vec![0; size];
    source.seek(SeekFrom::Start(begin))?;
    source
        .read_exact(&mut bytes)
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => refuse(TOO_EARLY),
            _ => WeightsError::Io(error),
        })?;
    Ok(bytes)
}

/// Adds a part of the file to a checksum, a little at a time.
fn hash<R: Read + Seek>(
    source: &mut R,
    begin: u64,
    size: u64,
    hasher: &mut Hasher,
) -> Result<(), WeightsError> {
    let end = begin + size;
    for at in (begin..end).step_by(HASHED as usize) {
        hasher.update(&read(source, at, HASHED.min(end - at))?);
    }
    Ok(())
}
