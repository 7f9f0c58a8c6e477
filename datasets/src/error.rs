//! What can go wrong with data.

use std::io;
use std::path::{Path, PathBuf};

use crate::DataChoice;

/// Why a data set could not be had. Each message names the file or the setting, what was found
/// and what to do.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{DatasetError, ImageDataset};
///
/// let error = ImageDataset::new(vec![0; 7], vec![1], 10).unwrap_err();
/// assert!(matches!(error, DatasetError::Request(_)));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// A file or folder could not be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// A file or folder could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// The files of a set are nowhere, and could not be downloaded.
    #[error("{problem}")]
    NotFound {
        /// Where it was looked for, and what to do.
        problem: String,
        /// The same in a line, as the reason for another set in its place.
        reason: String,
    },

    /// A file is not the IDX file that it should be.
    #[error("{} {problem}", path.display())]
    Idx {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, after its name.
        problem: String,
    },

    /// A file is well formed, but its content is not that of the published file, or cannot be compared with it.
    #[error("{} {problem}", path.display())]
    Altered {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, after its name.
        problem: String,
    },

    /// An image file that cannot be decoded.
    #[error("{} {problem}", path.display())]
    Image {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, after its name.
        problem: String,
    },

    /// Another file, folder or address that is damaged, or something else than it should be.
    #[error("{}{problem}", path.display())]
    Data {
        /// The file, folder or address.
        path: PathBuf,
        /// The place in it and what is wrong there, right after the name.
        problem: String,
    },

    /// What was asked for cannot be had.
    #[error("{0}")]
    Request(String),
}

pub(crate) fn unreadable(path: &Path, source: io::Error) -> DatasetError {
    DatasetError::Read {
        path: path.to_owned(),
        source,
    }
}

pub(crate) fn unwritable(path: &Path, source: io::Error) -> DatasetError {
    DatasetError::Write {
        path: path.to_owned(),
        source,
    }
}

/// An error of which the message is the path and `problem`, without anything between them.
pub(crate) fn unusable(path: &Path, problem: String) -> DatasetError {
    DatasetError::Data {
        path: path.to_owned(),
        problem,
    }
}

/// `problem` is wrong with a file or a folder as a whole.
pub(crate) fn refused(path: &Path, problem: impl AsRef<str>) -> DatasetError {
    unusable(path, format!(": {}", problem.as_ref()))
}

/// `problem` is wrong with a part of a file: a field of a header, or a file in it.
pub(crate) fn damaged(path: &Path, part: &str, problem: impl AsRef<str>) -> DatasetError {
    unusable(path, format!(": {part}: {}", problem.as_ref()))
}

/// `problem` is wrong at a place of a file: a line and a column.
pub(crate) fn wrong_at(path: &Path, place: &str, problem: impl AsRef<str>) -> DatasetError {
    unusable(path, format!(", {place}: {}", problem.as_ref()))
}

pub(crate) fn too_large(path: &Path, most: u64) -> DatasetError {
    let problem = format!(" has more than {most} bytes, which is the most that is read");
    unusable(path, problem)
}

/// A file that should be text has `start` as its first bytes, and one that does not belong at `offset`.
pub(crate) fn not_text(path: &Path, offset: usize, start: &[u8]) -> DatasetError {
    let hint = encoding_hint(start);
    let problem = format!(" is damaged, or no text: byte {offset} is not UTF-8; {hint}");
    unusable(path, problem)
}

pub(crate) fn wrong_count(split: &str, count: usize, most: usize) -> DatasetError {
    let problem = format!("{count} {split} samples were asked for: expected 1 to {most}");
    DatasetError::Request(problem)
}

/// Images where text is wanted, or the reverse.
pub(crate) fn other_kind(choice: DataChoice, found: &str, expected: &str) -> DatasetError {
    let problem = format!("--data {choice} is {found}, and this model takes {expected}");
    DatasetError::Request(problem)
}

/// What a file that is no UTF-8 may be, by its first bytes, and what to do.
fn encoding_hint(start: &[u8]) -> &'static str {
    match start {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => {
            "it is UTF-16: `iconv -f UTF-16 -t UTF-8` converts it"
        }
        [0x1f, 0x8b, ..] => {
            "it is compressed by gzip: unpack it with gunzip, or use `everburn tokenize`, which reads it"
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            "it is compressed by zstd: unpack it, or use `everburn tokenize`, which reads it"
        }
        _ => {
            "if it is in another encoding, such as Latin-1, `iconv -f LATIN1 -t UTF-8` converts it"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_none_is_said_to_be_what_its_first_bytes_are() {
        assert!(encoding_hint(&[0xff, 0xfe, b'a', 0]).contains("iconv -f UTF-16"));
        assert!(encoding_hint(&[0x1f, 0x8b, 8, 0]).contains("gunzip"));
        assert!(encoding_hint(&[0xe9, 0x20, 0x61, 0x20]).contains("LATIN1"));
    }
}
