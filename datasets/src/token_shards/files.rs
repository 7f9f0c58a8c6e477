//! Which files a path names, and for what they are.

use std::ffi::OsStr;
use std::path::Path;

use everburn_record::units;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::shard::has_header;
use super::{TokenFormat, TokenShards};
use crate::DatasetError;
use crate::error::damaged;
use crate::files::entries;

/// Words of a file's name that say that it is not to train on: `val.bin`, `fineweb_val_000000.bin`.
const HELD_OUT: [&str; 4] = ["val", "valid", "validation", "test"];

/// The files of a folder or one file, as sequences of tokens to train on and to measure by.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{TokenFiles, TokenFormat};
///
/// let folder = tempfile::tempdir()?;
/// for (name, tokens) in [("train.bin", [5_u16, 6, 7]), ("val.bin", [7, 8, 9])] {
///     std::fs::write(folder.path().join(name), tokens.map(u16::to_le_bytes).concat())?;
/// }
/// let files = TokenFiles::open(folder.path(), TokenFormat::Detect)?;
/// assert_eq!(files.train.read(0..3)?, [5, 6, 7]);
/// assert_eq!(files.held_out.unwrap().read(0..3)?, [7, 8, 9]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TokenFiles {
    /// The tokens to train on.
    pub train: TokenShards,
    /// Those of files with `val`, `valid`, `validation` or `test` as a word of their name, if there are any.
    pub held_out: Option<TokenShards>,
}

/// What a run remembers of its files, so that it continues with no others.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::ShardsRecord;
///
/// let record = ShardsRecord { files: 3, tokens: 1000, sha256: "0f..".into() };
/// assert_eq!(record.to_string(), "3 files of 1000 tokens");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardsRecord {
    /// How many files there are.
    pub files: usize,
    /// How many tokens they have.
    pub tokens: usize,
    /// SHA-256 of their names, counts and contents: see [`TokenShards::fingerprint`].
    pub sha256: String,
}

impl std::fmt::Display for ShardsRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let files = units::counted(self.files, "file");
        write!(f, "{files} of {}", units::counted(self.tokens, "token"))
    }
}

impl TokenFiles {
    /// Whether a path is one of tokens, and not a text: a folder, a file with a header, or what is said to be nanoGPT's.
    ///
    /// # Errors
    /// [`DatasetError::Read`] if there is nothing, or it cannot be read; [`DatasetError::Data`] for a `.bin` without a
    /// header, which is no text either.
    pub fn are_at(path: &Path, format: TokenFormat) -> Result<bool, DatasetError> {
        if format != TokenFormat::Detect || path.is_dir() || has_header(path)? {
            return Ok(true);
        }
        match is_bin(path) {
            // Says what is missing.
            true => TokenShards::open(&[path.to_owned()], format).map(|_| true),
            false => Ok(false),
        }
    }

    /// Opens a file, or the files `*.bin` of a folder in the order of their names.
    ///
    /// # Errors
    /// As [`TokenShards::open`]; [`DatasetError::Data`] with the folder if it has no files, or none to train on.
    pub fn open(path: &Path, format: TokenFormat) -> Result<Self, DatasetError> {
        if !path.is_dir() {
            let train = TokenShards::open(&[path.to_owned()], format)?;
            let held_out = None;
            return Ok(Self { train, held_out });
        }
        let files = entries(path)?.into_iter().filter(|file| is_bin(file));
        let (held_out, train): (Vec<_>, Vec<_>) = files.partition(|file| is_held_out(file));
        let Some(first) = train.first() else {
            let problem = match held_out.is_empty() {
                true => "it has no files *.bin of tokens; `everburn tokenize` makes some of text",
                false => "all its files *.bin are to validate by, and none is to train on",
            };
            return Err(damaged(path, "folder", problem));
        };
        // Nobody says of nanoGPT's files what they are, but their names.
        let is_nanogpts = format == TokenFormat::Detect
            && first.file_name() == Some(OsStr::new("train.bin"))
            && !has_header(first)?;
        let format = match is_nanogpts {
            true => TokenFormat::NanoGpt,
            false => format,
        };
        let train = TokenShards::open(&train, format)?;
        let held_out = match held_out.is_empty() {
            true => None,
            false => Some(TokenShards::open(&held_out, format)?),
        };
        if let Some(held_out) = &held_out {
            train.belongs(held_out)?;
        }
        Ok(Self { train, held_out })
    }

    /// What a run remembers of them.
    pub fn record(&self) -> ShardsRecord {
        let all = || {
            [Some(&self.train), self.held_out.as_ref()]
                .into_iter()
                .flatten()
        };
        let mut hash = Sha256::new();
        for shards in all() {
            hash.update((shards.files() as u64).to_le_bytes());
            hash.update(shards.fingerprint());
        }
        ShardsRecord {
            files: all().map(TokenShards::files).sum(),
            tokens: all().map(TokenShards::tokens).sum(),
            sha256: format!("{:x}", hash.finalize()),
        }
    }
}

fn is_bin(path: &Path) -> bool {
    let ending = path.extension();
    ending.is_some_and(|ending| ending.eq_ignore_ascii_case("bin"))
}

/// Whether a word of a file's name says that it is not to train on.
pub(crate) fn is_held_out(file: &Path) -> bool {
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    let mut words = name.split(|c: char| !c.is_alphanumeric());
    words.any(|word| HELD_OUT.contains(&word.to_ascii_lowercase().as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_a_name_says_that_a_file_is_held_out() {
        for name in "val.bin fineweb_val_000000.bin tiny-test.bin a/VALID.1.bin".split(' ') {
            assert!(is_held_out(Path::new(name)), "{name}");
        }
        let train = "train.bin fineweb_train_000001.bin retrieval_1.bin val/train.bin";
        for name in train.split(' ') {
            assert!(!is_held_out(Path::new(name)), "{name}");
        }
    }
}
