//! ZIP archives of files that are stored as they are, the shell of a `.pt` file (PKWARE's APPNOTE 6.3).
//!
//! `torch.save` never compresses, so nothing here does: what is read is never longer than the file. Of the
//! archive only the directory is held, and it is checked before anything of it is believed: it is in the file,
//! each name is there once, no two files share a byte.

mod write;

use std::io::{Read, Seek, SeekFrom};

use crc32fast::Hasher;

use crate::error::{Shown, WeightsError, archive as refuse};

pub(crate) use write::write;

/// Signatures of the records, little endian.
const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
const END_64: u32 = 0x0606_4b50;
const END_64_LOCATOR: u32 = 0x0706_4b50;

/// The lengths of records, without names, extra fields and comments.
const LOCAL_LENGTH: u64 = 30;
const CENTRAL_LENGTH: u64 = 46;
const END_LENGTH: u64 = 22;
const END_64_LENGTH: u64 = 56;
const LOCATOR_LENGTH: u64 = 20;

/// The extra field that holds what does not fit into 32 bits.
const EXTRA_64: u16 = 1;

/// Where numbers that do not fit are found in [`EXTRA_64`].
const ELSEWHERE: u32 = u32::MAX;

/// The flag of a file that is encrypted.
const ENCRYPTED: u16 = 1;

/// The longest directory, that of millions of tensors.
const LONGEST_DIRECTORY: u64 = 256 << 20;

/// How many bytes are read at a time where only their checksum counts.
const HASHED: u64 = 1 << 20;

const TOO_EARLY: &str = "it ends too early; was it copied whole?";
const DAMAGED: &str = "its directory is damaged; was it copied whole?";

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

/// Where the central directory is.
struct Directory {
    entries: u64,
    offset: u64,
    size: u64,
}

impl Directory {
    fn find<R: Read + Seek>(source: &mut R, length: u64) -> Result<Self, WeightsError> {
        let tail_length = length.min(END_LENGTH + u64::from(u16::MAX) + LOCATOR_LENGTH);
        let tail = read(source, length - tail_length, tail_length)?;
        let Some(at) = find_end(&tail) else {
            return Err(no_archive(source, length));
        };
        let end_at = length - tail_length + at as u64;
        let (directory, limit) = match short_end(&tail[at..]).ok_or_else(|| refuse(DAMAGED))? {
            (_, true) => Self::find_64(source, &tail[..at], end_at)?,
            (directory, false) => (directory, end_at),
        };
        let end = directory.offset.checked_add(directory.size);
        let fits = directory
            .entries
            .checked_mul(CENTRAL_LENGTH)
            .is_some_and(|least| least <= directory.size);
        if !fits || end.is_none_or(|end| end > limit) || directory.size > LONGEST_DIRECTORY {
            return Err(refuse(DAMAGED));
        }
        Ok(directory)
    }

    /// The directory of a large archive, and where it must have ended. `before` is before the end's record.
    fn find_64<R: Read + Seek>(
        source: &mut R,
        before: &[u8],
        end_at: u64,
    ) -> Result<(Self, u64), WeightsError> {
        let locator = before.len().checked_sub(LOCATOR_LENGTH as usize);
        let place = locator.and_then(|at| {
            let mut locator = Bytes(&before[at..]);
            let known = locator.u32()? == END_64_LOCATOR;
            let _disk = locator.u32()?;
            let place = locator.u64()?;
            let limit = end_at.checked_sub(LOCATOR_LENGTH + END_64_LENGTH)?;
            (known && place <= limit).then_some(place)
        });
        let place = place.ok_or_else(|| refuse(DAMAGED))?;
        let record = read(source, place, END_64_LENGTH)?;
        let mut record = Bytes(&record);
        let directory = (|| {
            let known = record.u32()? == END_64;
            record.take(28)?;
            let (entries, size, offset) = (record.u64()?, record.u64()?, record.u64()?);
            known.then_some(Self {
                entries,
                offset,
                size,
            })
        })();
        Ok((directory.ok_or_else(|| refuse(DAMAGED))?, place))
    }
}

/// Where the last record begins: its comment ends with the file.
fn find_end(tail: &[u8]) -> Option<usize> {
    let last = tail.len().checked_sub(END_LENGTH as usize)?;
    (0..=last).rev().find(|at| {
        let record = &tail[*at..];
        let comment = record.len() - END_LENGTH as usize;
        record.starts_with(&END.to_le_bytes())
            && u16::from_le_bytes([record[20], record[21]]) as usize == comment
    })
}

/// What the last record says, and whether it says that a larger one has the numbers.
fn short_end(record: &[u8]) -> Option<(Directory, bool)> {
    let mut record = Bytes(record.get(10..)?);
    let (entries, size, offset) = (record.u16()?, record.u32()?, record.u32()?);
    let elsewhere = entries == u16::MAX || size == ELSEWHERE || offset == ELSEWHERE;
    let directory = Directory {
        entries: entries.into(),
        offset: offset.into(),
        size: size.into(),
    };
    Some((directory, elsewhere))
}

/// What to do about a file that is no archive.
fn no_archive<R: Read + Seek>(source: &mut R, length: u64) -> WeightsError {
    /// The number with which PyTorch's files before 1.6 begin, 0x1950a86a20f9469cfc6c.
    const OLD: &[u8] = b"\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
    let head = match read(source, 0, length.min(512)) {
        Ok(head) => head,
        Err(error) => return error,
    };
    let is_old = head.windows(OLD.len()).take(64).any(|bytes| bytes == OLD)
        || head.get(257..262) == Some(b"ustar");
    refuse(match () {
        () if is_old => {
            "it is in the format from before PyTorch 1.6 (or of _use_new_zipfile_serialization=False); load it with \
             torch.load and save it again with torch.save"
        }
        () if head.starts_with(&LOCAL.to_le_bytes()) => {
            "it is cut off: an archive of torch.save that lacks its end; copy or download it again"
        }
        () => "it is no archive; was it written by torch.save?",
    })
}

/// All entries of the directory.
fn entries(directory: &[u8], found: &Directory) -> Result<Vec<Entry>, WeightsError> {
    let mut rest = Bytes(directory);
    let mut entries = Vec::with_capacity(found.entries as usize);
    for _ in 0..found.entries {
        let entry = central_entry(directory, &mut rest).ok_or_else(|| refuse(DAMAGED))?;
        let name = name_of(directory, &entry);
        if !is_plain(name) {
            let name = Shown(name);
            return Err(refuse(format!(
                "{name} in it has a name that leads out of it; it is no file of torch.save"
            )));
        }
        entries.push(entry);
    }
    match rest.0.is_empty() {
        true => Ok(entries),
        false => Err(refuse(DAMAGED)),
    }
}

/// Whether a name stays where the archive is, wherever it is unpacked.
fn is_plain(name: &[u8]) -> bool {
    let mut parts = name.split(|byte| *byte == b'/');
    let odd = |byte: &u8| matches!(byte, 0 | b'\\');
    !name.is_empty()
        && !name.starts_with(b"/")
        && !name.iter().any(odd)
        && parts.all(|part| part != b"..")
}

/// The next entry of the directory. An encrypted one is none.
fn central_entry(directory: &[u8], rest: &mut Bytes<'_>) -> Option<Entry> {
    if rest.u32()? != CENTRAL {
        return None;
    }
    rest.take(4)?;
    let (flags, method) = (rest.u16()?, rest.u16()?);
    rest.take(4)?;
    let checksum = Some(rest.u32()?).filter(|checksum| *checksum != 0);
    let (stored, size) = (rest.u32()?, rest.u32()?);
    let [name, extra, comment] = [rest.u16()?, rest.u16()?, rest.u16()?].map(usize::from);
    rest.take(8)?;
    let offset = rest.u32()?;
    let begin = directory.len() - rest.0.len();
    rest.take(name)?;
    let mut extra = Bytes(rest.take(extra)?);
    rest.take(comment)?;
    let mut entry = Entry {
        name: (begin, name),
        offset: offset.into(),
        limit: 0,
        stored: stored.into(),
        size: size.into(),
        compressed: method != 0,
        checksum,
    };
    while extra.0.len() >= 4 {
        let (kind, length) = (extra.u16()?, extra.u16()?);
        let mut field = Bytes(extra.take(length.into())?);
        if kind == EXTRA_64 {
            for number in [&mut entry.size, &mut entry.stored, &mut entry.offset] {
                if *number == u64::from(ELSEWHERE) {
                    *number = field.u64()?;
                }
            }
        }
    }
    // What is stored as it is has one size.
    let fits = flags & ENCRYPTED == 0 && (entry.compressed || entry.stored == entry.size);
    fits.then_some(entry)
}
