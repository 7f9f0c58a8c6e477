//! IDX files, the format of MNIST: two zero bytes, the type of an element (8: unsigned byte), the
//! number of dimensions, each dimension as a big-endian `u32`, then the elements; all of it gzip
//! compressed or plain.
//!
//! No size in a file is believed: what is decompressed and what is allocated is bounded first.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::{DatasetError, IMAGE_HEIGHT, IMAGE_WIDTH};

/// Most bytes that a decompressed file may have. MNIST's largest has 47,040,016.
pub(crate) const MAX_CONTENT: u64 = 64 << 20;

/// Most bytes that a compressed file may have. Fashion-MNIST's largest has 26,421,880.
pub(crate) const MAX_COMPRESSED: u64 = 48 << 20;

const IMAGES_MAGIC: u32 = 0x0000_0803;
const LABELS_MAGIC: u32 = 0x0000_0801;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// An error of the file at `path`.
pub(crate) fn wrong(path: &Path, problem: String) -> DatasetError {
    DatasetError::Idx {
        path: path.to_owned(),
        problem,
    }
}

/// Why a file with more bytes is not read.
pub(crate) fn too_large(most: u64) -> String {
    format!("is too large: more than {most} bytes")
}

/// The content of the file at `path`.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, DatasetError> {
    let mut bytes = Vec::new();
    // A plain file may be as long as the content of a compressed one.
    let read = File::open(path).and_then(|file| file.take(MAX_CONTENT + 1).read_to_end(&mut bytes));
    read.map_err(|error| wrong(path, format!("cannot be read: {error}")))?;
    match bytes.len() as u64 > MAX_CONTENT {
        true => Err(wrong(path, too_large(MAX_CONTENT))),
        false => Ok(bytes),
    }
}

/// `bytes`, decompressed if they are gzip (which the first ones say, not a name).
pub(crate) fn decompress(bytes: Vec<u8>) -> Result<Vec<u8>, String> {
    if !is_gzip(&bytes) {
        return Ok(bytes);
    }
    let damage = |why: String| format!("is damaged: its gzip stream does not decompress ({why})");
    let mut decoder = flate2::bufread::GzDecoder::new(bytes.as_slice());
    let mut content = Vec::new();
    (&mut decoder)
        .take(MAX_CONTENT + 1)
        .read_to_end(&mut content)
        .map_err(|error| damage(error.to_string()))?;
    if content.len() as u64 > MAX_CONTENT {
        return Err(too_large(MAX_CONTENT));
    }
    match decoder.into_inner().len() {
        0 => Ok(content),
        rest => Err(damage(format!("{rest} bytes follow its end"))),
    }
}

pub(crate) fn is_gzip(bytes: &[u8]) -> bool {
    bytes.starts_with(&GZIP_MAGIC)
}

/// The pixels, `[n, 28, 28]`, of an IDX file of images. Reuses the memory of `content`.
pub(crate) fn images(mut content: Vec<u8>) -> Result<Vec<u8>, String> {
    let [count, rows, columns] = header(&content, "images", IMAGES_MAGIC)?;
    if (rows as usize, columns as usize) != (IMAGE_HEIGHT, IMAGE_WIDTH) {
        return Err(format!("holds images of {rows}x{columns}: expected 28x28"));
    }
    let start = exact_length(&content, [count, rows, columns])?;
    content.drain(..start);
    Ok(content)
}

/// The labels, `[n]`, of an IDX file of labels. Reuses the memory of `content`.
pub(crate) fn labels(mut content: Vec<u8>) -> Result<Vec<u8>, String> {
    let dimensions: [u32; 1] = header(&content, "labels", LABELS_MAGIC)?;
    let start = exact_length(&content, dimensions)?;
    content.drain(..start);
    match content.iter().position(|&label| label > 9) {
        Some(index) => {
            let found = content[index];
            Err(format!(
                "has label {found} at index {index}: expected 0 to 9"
            ))
        }
        None => Ok(content),
    }
}

/// Checks the magic number and reads the `N` dimensions.
fn header<const N: usize>(content: &[u8], what: &str, expected: u32) -> Result<[u32; N], String> {
    let (words, _) = content.as_chunks::<4>();
    let too_short = || wrong_length(4 + 4 * N as u64, content.len() as u64);
    let (magic, rest) = words.split_first().ok_or_else(too_short)?;
    let found = u32::from_be_bytes(*magic);
    if found != expected {
        return Err(format!(
            "is not an IDX file of {what}: expected magic {expected:#010x}, found {found:#010x}"
        ));
    }
    let dimensions = rest.first_chunk::<N>().ok_or_else(too_short)?;
    Ok(dimensions.map(u32::from_be_bytes))
}

fn wrong_length(expected: u64, found: u64) -> String {
    let what = if found < expected {
        "is truncated"
    } else {
        "has trailing bytes"
    };
    format!("{what}: expected {expected} bytes, found {found} (decompressed)")
}

/// Checks that `content` is as long as its dimensions say, and returns where the elements start.
fn exact_length<const N: usize>(content: &[u8], dimensions: [u32; N]) -> Result<usize, String> {
    let start = 4 + 4 * N;
    // At most three factors below 2^32: no overflow in 128 bits.
    let elements: u128 = dimensions.into_iter().map(u128::from).product();
    let promised = elements + start as u128;
    let found = content.len() as u64;
    match u64::try_from(promised) {
        Ok(expected) if expected <= MAX_CONTENT && expected == found => Ok(start),
        Ok(expected) if expected <= MAX_CONTENT => Err(wrong_length(expected, found)),
        _ => Err(format!(
            "has a header that promises {promised} bytes: at most {MAX_CONTENT} are believed"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cifar::writing::gzip;

    fn idx(magic: u32, dimensions: &[u32], elements: &[u8]) -> Vec<u8> {
        let words = std::iter::once(&magic).chain(dimensions);
        let mut bytes: Vec<u8> = words.flat_map(|word| word.to_be_bytes()).collect();
        bytes.extend_from_slice(elements);
        bytes
    }

    #[test]
    fn images_and_labels_are_read_compressed_and_plain() {
        let pixels: Vec<u8> = (0..2 * 784).map(|i| (i % 251) as u8).collect();
        let plain = idx(0x803, &[2, 28, 28], &pixels);
        assert_eq!(images(plain.clone()).unwrap(), pixels);
        assert_eq!(decompress(gzip(&plain)).unwrap(), plain);
        assert_eq!(labels(idx(0x801, &[3], &[0, 5, 9])).unwrap(), [0, 5, 9]);
        assert_eq!(labels(idx(0x801, &[0], &[])).unwrap(), Vec::<u8>::new());
    }

    #[test]
    fn a_file_that_is_none_says_what_is_wrong() {
        let cut = idx(0x803, &[2, 28, 28], &[0; 1000]);
        for (parsed, problem) in [
            (
                images(idx(0x801, &[3], &[0, 5, 9])),
                "is not an IDX file of images: expected magic 0x00000803, found 0x00000801",
            ),
            (
                labels(b"<!DO".to_vec()),
                "is not an IDX file of labels: expected magic 0x00000801, found 0x3c21444f",
            ),
            (
                images(cut.clone()),
                "is truncated: expected 1584 bytes, found 1016 (decompressed)",
            ),
            (
                labels(idx(0x801, &[2], &[0, 5, 9])),
                "has trailing bytes: expected 10 bytes, found 11 (decompressed)",
            ),
            (
                labels(idx(0x801, &[3], &[0, 5, 10])),
                "has label 10 at index 2: expected 0 to 9",
            ),
            (
                images(idx(0x803, &[1, 32, 28], &[0; 896])),
                "holds images of 32x28: expected 28x28",
            ),
            // Refused without an allocation.
            (
                images(idx(0x803, &[u32::MAX, 28, 28], &[])),
                "has a header that promises 3367254359296 bytes: at most 67108864 are believed",
            ),
            (
                decompress(gzip(&vec![0; MAX_CONTENT as usize + 1])),
                "is too large: more than 67108864 bytes",
            ),
        ] {
            assert_eq!(parsed.unwrap_err(), problem);
        }
        for length in 0..16 {
            let text = images(cut[..length].to_vec()).unwrap_err();
            let start = "is truncated: expected 16 bytes, found";
            assert!(text.starts_with(start), "{text}");
        }
    }

    #[test]
    fn a_damaged_gzip_stream_is_refused() {
        let whole = gzip(&idx(0x801, &[500], &[7; 500]));
        let mut flipped = whole.clone();
        let checksum = flipped.len() - 6;
        flipped[checksum] ^= 1;
        let mut longer = whole.clone();
        longer.push(0);
        for bytes in [whole[..whole.len() / 2].to_vec(), flipped] {
            let text = decompress(bytes).unwrap_err();
            let start = "is damaged: its gzip stream does not";
            assert!(text.starts_with(start), "{text}");
        }
        let text = decompress(longer).unwrap_err();
        assert!(text.contains("1 bytes follow its end"), "{text}");
    }

    #[test]
    fn a_missing_file_is_named() {
        let text = read(Path::new("/nowhere/x.gz")).unwrap_err().to_string();
        let start = "/nowhere/x.gz cannot be read: No such file";
        assert!(text.starts_with(start), "{text}");
    }
}
