//! ZIP archives of files that are stored as they are, the shell of a `.pt` file (PKWARE's APPNOTE 6.3).
//!
//! `torch.save` never compresses, so nothing here does.

use std::collections::BTreeMap;

/// Signatures of the records, little endian.
const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
const END_64: u32 = 0x0606_4b50;
const END_64_LOCATOR: u32 = 0x0706_4b50;

/// The length of the record at the end, without its comment, which is a u16 long at most.
const END_LENGTH: usize = 22;

/// The extra field that holds what does not fit into 32 bits.
const EXTRA_64: u16 = 1;

/// Where numbers that do not fit are found in [`EXTRA_64`].
const ELSEWHERE: u32 = u32::MAX;

/// Bytes that are read from front to back; what is not there is an error, never a panic.
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl<'a> Bytes<'a> {
    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self
            .0
            .split_at_checked(count)
            .ok_or_else(|| "it ends too early; was it copied whole?".to_string())?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let taken = self.take(N)?;
        Ok(taken.try_into().expect("as many bytes as were asked for"))
    }

    pub(super) fn u16(&mut self) -> Result<u16, String> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.array()?))
    }
}

fn from(bytes: &[u8], offset: u64) -> Result<Bytes<'_>, String> {
    let rest = usize::try_from(offset).ok().and_then(|at| bytes.get(at..));
    let rest = rest.ok_or_else(|| format!("it ends before byte {offset}; was it copied whole?"))?;
    Ok(Bytes(rest))
}

/// The files of an archive by name, without a copy.
pub(super) fn read(bytes: &[u8]) -> Result<BTreeMap<String, &[u8]>, String> {
    let (entries, directory) = find_directory(bytes)?;
    let mut rest = from(bytes, directory)?;
    let mut files = BTreeMap::new();
    for _ in 0..entries {
        let (name, offset, size) = central_entry(&mut rest)?;
        files.insert(name, content(bytes, offset, size)?);
    }
    Ok(files)
}

/// How many entries the central directory has, and where it begins.
fn find_directory(bytes: &[u8]) -> Result<(u64, u64), String> {
    let last = bytes.len().checked_sub(END_LENGTH);
    let last = last.ok_or("it is no archive; was it written by torch.save?")?;
    let first = last.saturating_sub(usize::from(u16::MAX));
    let at = (first..=last)
        .rev()
        .find(|at| bytes[*at..].starts_with(&END.to_le_bytes()));
    let at = at.ok_or(
        "it is no archive; if an old PyTorch wrote it, load it and save it again with torch.save",
    )?;
    let mut end = Bytes(&bytes[at + 10..]);
    let (entries, _size, offset) = (end.u16()?, end.u32()?, end.u32()?);
    if entries != u16::MAX && offset != ELSEWHERE {
        return Ok((entries.into(), offset.into()));
    }
    let locator = at.checked_sub(20).ok_or("its directory is damaged")?;
    let mut locator = Bytes(&bytes[locator..]);
    if locator.u32()? != END_64_LOCATOR {
        return Err("its directory is damaged".to_string());
    }
    let _disk = locator.u32()?;
    let mut end = from(bytes, locator.u64()?)?;
    if end.u32()? != END_64 {
        return Err("its directory is damaged".to_string());
    }
    end.take(28)?;
    let (entries, _size, offset) = (end.u64()?, end.u64()?, end.u64()?);
    Ok((entries, offset))
}

/// Name, offset of the local header, and size of the next entry of the central directory.
fn central_entry(rest: &mut Bytes<'_>) -> Result<(String, u64, u64), String> {
    if rest.u32()? != CENTRAL {
        return Err("its directory is damaged".to_string());
    }
    rest.take(6)?;
    let method = rest.u16()?;
    rest.take(8)?;
    let (stored, size) = (rest.u32()?, rest.u32()?);
    let [name, extra, comment] = [rest.u16()?, rest.u16()?, rest.u16()?].map(usize::from);
    rest.take(8)?;
    let offset = rest.u32()?;
    let name = String::from_utf8_lossy(rest.take(name)?).into_owned();
    let mut extra = Bytes(rest.take(extra)?);
    rest.take(comment)?;
    if method != 0 {
        return Err(format!(
            "{name} in it is compressed, which torch.save does not do"
        ));
    }
    let (mut offset, mut size, stored) = (u64::from(offset), u64::from(size), stored);
    while extra.0.len() >= 4 {
        let (kind, length) = (extra.u16()?, extra.u16()?);
        let mut field = Bytes(extra.take(length.into())?);
        if kind == EXTRA_64 {
            if size == u64::from(ELSEWHERE) {
                size = field.u64()?;
            }
            if stored == ELSEWHERE {
                field.u64()?;
            }
            if offset == u64::from(ELSEWHERE) {
                offset = field.u64()?;
            }
        }
    }
    Ok((name, offset, size))
}

/// The bytes behind a local header.
fn content(bytes: &[u8], offset: u64, size: u64) -> Result<&[u8], String> {
    let mut rest = from(bytes, offset)?;
    if rest.u32()? != LOCAL {
        return Err("its directory points to something else; it is damaged".to_string());
    }
    rest.take(22)?;
    let (name, extra) = (rest.u16()?, rest.u16()?);
    rest.take(usize::from(name) + usize::from(extra))?;
    rest.take(usize::try_from(size).unwrap_or(usize::MAX))
}

/// An archive of these files. The time in it is the format's first, 1980, so that the same files make
/// the same bytes.
///
/// # Errors
/// More than 4 GiB, or 65,534 files: the older format, which all read, has no room for them.
pub(super) fn write(files: &[(String, Vec<u8>)]) -> Result<Vec<u8>, String> {
    let too_large = |_| "it would be larger than 4 GiB; use safetensors".to_string();
    let count = u16::try_from(files.len())
        .ok()
        .filter(|count| *count < u16::MAX);
    let count = count.ok_or("it has too many tensors; use safetensors")?;
    let mut archive = Vec::new();
    let mut directory = Vec::new();
    for (name, content) in files {
        let offset = u32::try_from(archive.len()).map_err(too_large)?;
        let size = u32::try_from(content.len()).map_err(too_large)?;
        let length = u16::try_from(name.len()).map_err(|_| "a name is too long".to_string())?;
        // Version, flags, method, time, date; checksum; sizes; lengths of name and extra field.
        let mut head = Vec::new();
        for number in [20, 0, 0, 0, 0x21_u16] {
            head.extend(number.to_le_bytes());
        }
        for number in [checksum(content), size, size] {
            head.extend(number.to_le_bytes());
        }
        head.extend(length.to_le_bytes());
        // PyTorch maps tensors into memory where they begin at multiples of 64 bytes.
        let begin = archive.len() + 30 + name.len();
        let padding = (64 - (begin + 4) % 64) % 64;
        archive.extend(LOCAL.to_le_bytes());
        archive.extend(&head);
        archive.extend((padding as u16 + 4).to_le_bytes());
        archive.extend(name.as_bytes());
        archive.extend(*b"FB"); // the extra field that PyTorch pads with
        archive.extend((padding as u16).to_le_bytes());
        archive.resize(archive.len() + padding, 0);
        archive.extend(content);

        directory.extend(CENTRAL.to_le_bytes());
        directory.extend(20_u16.to_le_bytes());
        directory.extend(&head);
        // No extra field, no comment, first disk, no attributes.
        directory.extend([0; 12]);
        directory.extend(offset.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let offset = u32::try_from(archive.len()).map_err(too_large)?;
    let size = u32::try_from(directory.len()).map_err(too_large)?;
    archive.extend(directory);
    archive.extend(END.to_le_bytes());
    archive.extend([0; 4]);
    archive.extend(count.to_le_bytes());
    archive.extend(count.to_le_bytes());
    archive.extend(size.to_le_bytes());
    archive.extend(offset.to_le_bytes());
    archive.extend([0; 2]);
    Ok(archive)
}

/// CRC-32 of ISO 3309, as ZIP has it.
fn checksum(bytes: &[u8]) -> u32 {
    let table: [u32; 256] = std::array::from_fn(|byte| {
        (0..8).fold(byte as u32, |crc, _| match crc & 1 {
            0 => crc >> 1,
            _ => (crc >> 1) ^ 0xEDB8_8320,
        })
    });
    let step = |crc: u32, byte: &u8| table[usize::from(crc as u8 ^ byte)] ^ (crc >> 8);
    !bytes.iter().fold(!0, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_is_cut_off_is_refused() {
        assert_eq!(
            checksum(b"123456789"),
            0xCBF4_3926,
            "the standard's example"
        );
        let files = [
            ("a/b".to_string(), vec![1, 2, 3]),
            ("c".to_string(), Vec::new()),
        ];
        let archive = write(&files).unwrap();
        let read_back = read(&archive).unwrap();
        assert_eq!(read_back.len(), 2);
        assert_eq!(read_back["a/b"], [1, 2, 3]);
        for length in 0..archive.len() {
            assert!(read(&archive[..length]).is_err(), "{length} bytes");
        }
    }
}
