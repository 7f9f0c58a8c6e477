//! The directory of an archive, at its end.

use std::io::{Read, Seek};

use super::{Bytes, CENTRAL, END, Entry, LOCAL, name_of, read};
use crate::error::{Shown, WeightsError, archive as refuse};

/// Signatures of the records of a large archive.
const END_64: u32 = 0x0606_4b50;
const END_64_LOCATOR: u32 = 0x0706_4b50;

/// The lengths of records, without names, extra fields and comments.
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

const DAMAGED: &str = "its directory is damaged; was it copied whole?";

/// Where the central directory is.
pub(super) struct Directory {
    entries: u64,
    pub(super) offset: u64,
    pub(super) size: u64,
}

impl Directory {
    pub(super) fn find<R: Read + Seek>(source: &mut R, length: u64) -> Result<Self, WeightsError> {
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

pub(super) fn entries(directory: &[u8], found: &Directory) -> Result<Vec<Entry>, WeightsError> {
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
