//! IDX files, the format of MNIST: two zero bytes, the type of an element (8: unsigned byte), the
//! number of dimensions, each dimension as a big-endian `u32`, then the elements; all of it gzip
//! compressed or plain.
//!
//! No size in a file is believed: what is decompressed and what is allocated is bounded first.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::{IMAGE_HEIGHT, IMAGE_WIDTH};

/// Most bytes that a decompressed file may have. MNIST's largest has 47,040,016.
pub(crate) const MAX_CONTENT: u64 = 64 << 20;

/// Most bytes that a compressed file may have. Fashion-MNIST's largest has 26,421,880.
pub(crate) const MAX_COMPRESSED: u64 = 48 << 20;

const IMAGES_MAGIC: u32 = 0x0000_0803;
const LABELS_MAGIC: u32 = 0x0000_0801;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A file that is not the IDX file that it should be.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{IdxError, IdxProblem};
///
/// let error = IdxError {
///     path: "labels.gz".into(),
///     problem: IdxProblem::Length { expected: 10_008, found: 9_000 },
/// };
/// let text = error.to_string();
/// assert!(text.starts_with("labels.gz is truncated: expected 10008 bytes, found 9000"));
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{} {problem}", path.display())]
pub struct IdxError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: IdxProblem,
}

/// What is wrong with an IDX file: see [`IdxError`].
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::IdxProblem;
///
/// let problem = IdxProblem::Label { index: 2, found: 10 };
/// assert_eq!(problem.to_string(), "has label 10 at index 2: expected 0 to 9");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdxProblem {
    /// The system cannot read the file.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// The gzip stream is cut short, fails its checksum, or is followed by something else.
    #[error("is damaged: its gzip stream does not decompress ({0})")]
    Gzip(String),
    /// The file is larger than any that belongs to these sets.
    #[error("is too large: more than {0} bytes")]
    TooLarge(u64),
    /// The first four bytes are not those of such a file.
    #[error("is not an IDX file of {what}: expected magic {expected:#010x}, found {found:#010x}")]
    Magic {
        /// "images" or "labels".
        what: &'static str,
        /// The magic number of such a file.
        expected: u32,
        /// The file's first four bytes.
        found: u32,
    },
    /// The header promises more than any such file holds.
    #[error("has a header that promises {promised} bytes: at most {MAX_CONTENT} are believed")]
    Promise {
        /// The header's length and the product of its dimensions.
        promised: u128,
    },
    /// The images are not 28x28.
    #[error("holds images of {rows}x{columns}: expected 28x28")]
    ImageSize {
        /// Rows in the header.
        rows: u32,
        /// Columns in the header.
        columns: u32,
    },
    /// The content is shorter or longer than the header says.
    #[error("{}: expected {expected} bytes, found {found} (decompressed)",
        if found < expected { "is truncated" } else { "has trailing bytes" })]
    Length {
        /// The length by the header.
        expected: u64,
        /// The length.
        found: u64,
    },
    /// A label that is no class.
    #[error("has label {found} at index {index}: expected 0 to 9")]
    Label {
        /// Which label.
        index: usize,
        /// Its value.
        found: u8,
    },
    /// Images and labels are not equally many.
    #[error("holds {found} labels, but {} holds {expected} images", images.display())]
    Pairs {
        /// The file of the images.
        images: PathBuf,
        /// The number of images.
        expected: usize,
        /// The number of labels.
        found: usize,
    },
    /// A well-formed file with another number of items than the published one.
    #[error("holds {found} items: expected {expected}")]
    Items {
        /// The published number.
        expected: usize,
        /// The file's number.
        found: usize,
    },
}

/// The content of the file at `path`, decompressed if it is gzip (which its first bytes say, not
/// its name).
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, IdxError> {
    let in_file = |problem| IdxError {
        path: path.to_owned(),
        problem,
    };
    let unreadable = |error| in_file(IdxProblem::Unreadable(error));
    let mut bytes = Vec::new();
    // A plain file may be as long as the content of a compressed one.
    let file = File::open(path).map_err(unreadable)?;
    file.take(MAX_CONTENT + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if bytes.len() as u64 > MAX_CONTENT {
        return Err(in_file(IdxProblem::TooLarge(MAX_CONTENT)));
    }
    Ok(bytes)
}

/// `bytes`, decompressed if they are gzip.
pub(crate) fn decompress(bytes: Vec<u8>) -> Result<Vec<u8>, IdxProblem> {
    if !is_gzip(&bytes) {
        return Ok(bytes);
    }
    let mut decoder = flate2::bufread::GzDecoder::new(bytes.as_slice());
    let mut content = Vec::new();
    (&mut decoder)
        .take(MAX_CONTENT + 1)
        .read_to_end(&mut content)
        .map_err(|error| IdxProblem::Gzip(error.to_string()))?;
    if content.len() as u64 > MAX_CONTENT {
        return Err(IdxProblem::TooLarge(MAX_CONTENT));
    }
    match decoder.into_inner().len() {
        0 => Ok(content),
        rest => Err(IdxProblem::Gzip(format!("{rest} bytes follow its end"))),
    }
}

pub(crate) fn is_gzip(bytes: &[u8]) -> bool {
    bytes.starts_with(&GZIP_MAGIC)
}

/// The pixels, `[n, 28, 28]`, of an IDX file of images. Reuses the memory of `content`.
pub(crate) fn images(mut content: Vec<u8>) -> Result<Vec<u8>, IdxProblem> {
    let [count, rows, columns] = header(&content, "images", IMAGES_MAGIC)?;
    if (rows as usize, columns as usize) != (IMAGE_HEIGHT, IMAGE_WIDTH) {
        return Err(IdxProblem::ImageSize { rows, columns });
    }
    let start = exact_length(&content, [count, rows, columns])?;
    content.drain(..start);
    Ok(content)
}

/// The labels, `[n]`, of an IDX file of labels. Reuses the memory of `content`.
pub(crate) fn labels(mut content: Vec<u8>) -> Result<Vec<u8>, IdxProblem> {
    let dimensions: [u32; 1] = header(&content, "labels", LABELS_MAGIC)?;
    let start = exact_length(&content, dimensions)?;
    content.drain(..start);
    match content.iter().position(|&label| label > 9) {
        Some(index) => Err(IdxProblem::Label {
            index,
            found: content[index],
        }),
        None => Ok(content),
    }
}

/// Checks the magic number and reads the `N` dimensions.
fn header<const N: usize>(
    content: &[u8],
    what: &'static str,
    expected: u32,
) -> Result<[u32; N], IdxProblem> {
    let (words, _) = content.as_chunks::<4>();
    let too_short = IdxProblem::Length {
        expected: 4 + 4 * N as u64,
        found: content.len() as u64,
    };
    let Some((magic, rest)) = words.split_first() else {
        return Err(too_short);
    };
    let found = u32::from_be_bytes(*magic);
    if found != expected {
        return Err(IdxProblem::Magic {
            what,
            expected,
            found,
        });
    }
    match rest.first_chunk::<N>() {
        Some(dimensions) => Ok(dimensions.map(u32::from_be_bytes)),
        None => Err(too_short),
    }
}

/// Checks that `content` is as long as its dimensions say, and returns where the elements start.
fn exact_length<const N: usize>(content: &[u8], dimensions: [u32; N]) -> Result<usize, IdxProblem> {
    let start = 4 + 4 * N;
    // At most three factors below 2^32: no overflow in 128 bits.
    let elements: u128 = dimensions.into_iter().map(u128::from).product();
    let promised = elements + start as u128;
    let found = content.len() as u64;
    match u64::try_from(promised) {
        Ok(expected) if expected <= MAX_CONTENT && expected == found => Ok(start),
        Ok(expected) if expected <= MAX_CONTENT => Err(IdxProblem::Length { expected, found }),
        _ => Err(IdxProblem::Promise { promised }),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use everburn_tests::AssertContains;
    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn idx(magic: u32, dimensions: &[u32], elements: &[u8]) -> Vec<u8> {
        let words = std::iter::once(&magic).chain(dimensions);
        let mut bytes: Vec<u8> = words.flat_map(|word| word.to_be_bytes()).collect();
        bytes.extend_from_slice(elements);
        bytes
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn message<T: std::fmt::Debug>(result: Result<T, IdxProblem>) -> String {
        IdxError {
            path: "f.gz".into(),
            problem: result.unwrap_err(),
        }
        .to_string()
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
    fn a_wrong_magic_names_both() {
        assert_eq!(
            message(images(idx(0x801, &[3], &[0, 5, 9]))),
            "f.gz is not an IDX file of images: expected magic 0x00000803, found 0x00000801"
        );
        let html = message(labels(b"<!DOCTYPE html>".to_vec()));
        assert!(html.contains("not an IDX file of labels"), "{html}");
    }

    #[test]
    fn a_truncated_file_names_both_lengths() {
        let message_of = |bytes: &[u8]| message(images(bytes.to_vec()));
        let cut = idx(0x803, &[2, 28, 28], &[0; 1000]);
        assert_eq!(
            message_of(&cut),
            "f.gz is truncated: expected 1584 bytes, found 1016 (decompressed)"
        );
        for length in 0..16 {
            let text = message_of(&cut[..length]);
            assert!(
                text.starts_with("f.gz is truncated: expected 16 bytes, found"),
                "{text}"
            );
        }
    }

    #[test]
    fn trailing_bytes_are_refused() {
        let text = message(labels(idx(0x801, &[2], &[0, 5, 9])));
        assert_eq!(
            text,
            "f.gz has trailing bytes: expected 10 bytes, found 11 (decompressed)"
        );
    }

    #[test]
    fn a_label_above_nine_is_refused() {
        let text = message(labels(idx(0x801, &[3], &[0, 5, 10])));
        assert_eq!(text, "f.gz has label 10 at index 2: expected 0 to 9");
    }

    #[test]
    fn another_image_size_is_refused() {
        let text = message(images(idx(0x803, &[1, 32, 28], &[0; 896])));
        assert_eq!(text, "f.gz holds images of 32x28: expected 28x28");
    }

    #[test]
    fn a_header_that_promises_too_much_is_refused_without_an_allocation() {
        let text = message(images(idx(0x803, &[u32::MAX, 28, 28], &[])));
        text.assert_contains(["promises 3367254359296 bytes: at most 67108864"]);
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
            let text = message(decompress(bytes));
            assert!(
                text.starts_with("f.gz is damaged: its gzip stream does not"),
                "{text}"
            );
        }
        assert!(message(decompress(longer)).contains("1 bytes follow its end"));
    }

    #[test]
    fn a_gzip_bomb_is_stopped_at_the_limit() {
        let bomb = gzip(&vec![0; MAX_CONTENT as usize + 1]);
        assert_eq!(
            message(decompress(bomb)),
            "f.gz is too large: more than 67108864 bytes"
        );
    }

    #[test]
    fn a_missing_file_is_named() {
        let text = read(Path::new("/nowhere/x.gz")).unwrap_err().to_string();
        assert!(
            text.starts_with("/nowhere/x.gz cannot be read: No such file"),
            "{text}"
        );
    }
}
