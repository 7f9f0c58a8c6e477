//! Archives for PyTorch.

use super::{CENTRAL, END, LOCAL};
use crate::error::{WeightsError, archive as refuse};

/// Tensors begin at multiples of this many bytes, as PyTorch has it to map them into memory.
const ALIGNMENT: usize = 64;

/// An archive of these files. The time in it is the format's first, 1980, so that the same files make
/// the same bytes.
///
/// # Errors
/// More than 4 GiB, or 65,534 files: the older format, which all read, has no room for them.
pub(crate) fn write(files: &[(String, &[u8])]) -> Result<Vec<u8>, WeightsError> {
    let too_large = |_| refuse("it would be larger than 4 GiB; use safetensors");
    let count = u16::try_from(files.len())
        .ok()
        .filter(|count| *count < u16::MAX);
    let count = count.ok_or_else(|| refuse("it has too many tensors; use safetensors"))?;
    let mut archive = Vec::new();
    let mut directory = Vec::new();
    for (name, content) in files {
        let offset = u32::try_from(archive.len()).map_err(too_large)?;
        let size = u32::try_from(content.len()).map_err(too_large)?;
        let length = u16::try_from(name.len()).map_err(|_| refuse("a name is too long"))?;
        // Version, flags, method, time, date; checksum; sizes; lengths of name and extra field.
        let mut head = Vec::new();
        for number in [20, 0, 0, 0, 0x21_u16] {
            head.extend(number.to_le_bytes());
        }
        for number in [crc32fast::hash(content), size, size] {
            head.extend(number.to_le_bytes());
        }
        head.extend(length.to_le_bytes());
        let begin = archive.len() + 30 + name.len();
        let padding = (ALIGNMENT - (begin + 4) % ALIGNMENT) % ALIGNMENT;
        archive.extend(LOCAL.to_le_bytes());
        archive.extend(&head);
        archive.extend((padding as u16 + 4).to_le_bytes());
        archive.extend(name.as_bytes());
        archive.extend(*b"FB"); // the extra field that PyTorch pads with
        archive.extend((padding as u16).to_le_bytes());
        archive.resize(archive.len() + padding, 0);
        archive.extend(*content);

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
