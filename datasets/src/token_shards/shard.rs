//! One file of tokens.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::TokenFormat;
use super::header::{Header, LONGEST, has_magic};
use crate::DatasetError;
use crate::error::{damaged, unreadable};

/// How many bytes are read at a time where a whole file is read.
const BLOCK: u64 = 1 << 20;

/// How many places of a file are read for its fingerprint, and how many bytes of each: all of a file of up to 4 MiB.
const SAMPLES: u64 = 64;
const SAMPLE_BYTES: u64 = 1 << 16;

/// A file of tokens, of which nothing is in memory but its header.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) path: PathBuf,
    pub(super) header: Header,
    /// Held open, unless there are too many files for that.
    file: Option<File>,
}

/// The first bytes of a file: as many as a header may have, or all.
fn beginning(file: &File, length: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length.min(LONGEST as u64) as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// A plain file, open, and how many bytes it has.
fn open(path: &Path) -> Result<(File, u64), DatasetError> {
    let failed = |source| unreadable(path, source);
    // Asked before it is opened: to open a pipe would wait for its other end.
    if !path.metadata().map_err(failed)?.is_file() {
        return Err(failed(io::Error::other("it is no plain file")));
    }
    let file = File::open(path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    Ok((file, length))
}

/// Whether the file begins as one with a header.
pub(crate) fn has_header(path: &Path) -> Result<bool, DatasetError> {
    let (file, length) = open(path)?;
    let beginning = beginning(&file, length).map_err(|source| unreadable(path, source))?;
    Ok(has_magic(&beginning))
}

impl Shard {
    /// Reads the header of a file, and checks it against the file's length.
    pub(super) fn open(path: &Path, asked: TokenFormat, keep: bool) -> Result<Self, DatasetError> {
        let (file, length) = open(path)?;
        let beginning = beginning(&file, length).map_err(|source| unreadable(path, source))?;
        let header = Header::of(&beginning, length, asked);
        let header = header.map_err(|(field, problem)| damaged(path, field, problem))?;
        Ok(Self {
            path: path.to_owned(),
            header,
            file: keep.then_some(file),
        })
    }

    /// Does `work` with the open file.
    fn with_file<T>(&self, work: impl FnOnce(&File) -> io::Result<T>) -> Result<T, DatasetError> {
        let done = match &self.file {
            Some(file) => work(file),
            None => work(&open(&self.path)?.0),
        };
        done.map_err(|source| unreadable(&self.path, source))
    }

    /// Appends `count` tokens from token `from` to `tokens`; all must be below `vocabulary`.
    pub(super) fn read(
        &self,
        from: u64,
        count: usize,
        vocabulary: u64,
        tokens: &mut Vec<u32>,
    ) -> Result<(), DatasetError> {
        let width = self.header.width.bytes();
        let mut bytes = vec![0; count * width];
        let at = self.header.bytes() + from * width as u64;
        self.with_file(|file| file.read_exact_at(&mut bytes, at))?;
        let first = tokens.len();
        tokens.extend(self.header.width.decode(&bytes));
        let beyond = |token: &u32| u64::from(*token) >= vocabulary;
        match tokens[first..].iter().position(beyond) {
            None => Ok(()),
            Some(place) => {
                let token = tokens[first + place];
                let problem = format!("it is {token}, beyond the vocabulary of {vocabulary}");
                let field = format!("token {}", from + place as u64);
                Err(damaged(&self.path, &field, problem))
            }
        }
    }

    /// Reads the whole file: all tokens must be below `vocabulary`, and have the SHA-256 that the header says, if it does.
    pub(super) fn verify(&self, vocabulary: u64) -> Result<(), DatasetError> {
        let (mut hash, mut from) = (Sha256::new(), 0);
        let mut tokens = Vec::new();
        while from < self.header.tokens {
            let count = (self.header.tokens - from).min(BLOCK) as usize;
            tokens.clear();
            self.read(from, count, vocabulary, &mut tokens)?;
            hash.update(self.header.width.encode(&tokens));
            from += count as u64;
        }
        match self.header.checksum {
            Some(expected) if hash.finalize()[..] != expected => {
                let problem = "they are damaged: they have another SHA-256 than the header says";
                Err(damaged(&self.path, "tokens", problem))
            }
            _ => Ok(()),
        }
    }

    /// Adds the file to a hash: its name, its length, its header and what is at [`SAMPLES`] places of it.
    ///
    /// A hash of terabytes would keep each rank from its work for an hour. The header of our file has one of all
    /// its tokens.
    pub(super) fn add_to(&self, hash: &mut Sha256) -> Result<(), DatasetError> {
        let name = self.path.file_name().unwrap_or_default();
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name.as_encoded_bytes());
        hash.update(self.header.tokens.to_le_bytes());
        let length = self.header.bytes() + self.header.tokens * self.header.width.bytes() as u64;
        self.with_file(|file| {
            hash.update(beginning(file, length)?);
            let mut sample = Vec::new();
            for number in 0..SAMPLES {
                // Of a short file all, piece by piece; of a long one places at equal distances.
                let at = match length <= SAMPLES * SAMPLE_BYTES {
                    true => length.min(number * SAMPLE_BYTES),
                    false => (length - SAMPLE_BYTES) / (SAMPLES - 1) * number,
                };
                sample.resize((length - at).min(SAMPLE_BYTES) as usize, 0);
                file.read_exact_at(&mut sample, at)?;
                hash.update(&sample);
            }
            Ok(())
        })
    }
}
