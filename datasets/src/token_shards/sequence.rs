//! Several files as one sequence of tokens.

use std::ops::Range;
use std::path::PathBuf;

use sha2::{Digest, Sha256};

use super::shard::Shard;
use super::{MadeBy, TokenFormat};
use crate::DatasetError;
use crate::error::{damaged, unusable};

/// How many files are held open at most: a process may often have 1024. Of more, each is opened when it is read.
const HELD_OPEN: usize = 256;

/// The tokens of several files, one file after the other, read where they are asked for.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{TokenFormat, TokenShards};
///
/// let folder = tempfile::tempdir()?;
/// let file = folder.path().join("train.bin");
/// let tokens = [5_u16, 6, 7, 8].map(u16::to_le_bytes).concat();
/// std::fs::write(&file, tokens)?;
/// let shards = TokenShards::open(&[file], TokenFormat::NanoGpt)?;
/// assert_eq!((shards.tokens(), shards.vocabulary()), (4, None));
/// assert_eq!(shards.read(1..3)?, [6, 7]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TokenShards {
    shards: Vec<Shard>,
    /// How many tokens are before each file; last, how many there are.
    starts: Vec<usize>,
    /// Each token is below it: of the files, or else as it was given.
    vocabulary: Option<u64>,
    fingerprint: String,
}

impl TokenShards {
    /// Opens files, which follow each other in this order. Only headers are read, and a few places of each file for the
    /// [fingerprint](Self::fingerprint).
    ///
    /// # Errors
    /// - [`DatasetError::Read`] if a file cannot be read;
    /// - [`DatasetError::Data`] if a file is damaged, or none of tokens, with the field; or if two files differ in
    ///   tokenizer, vocabulary or width, with both.
    pub fn open(files: &[PathBuf], format: TokenFormat) -> Result<Self, DatasetError> {
        let keep = files.len() <= HELD_OPEN;
        let open = |path: &PathBuf| Shard::open(path, format, keep);
        let shards = files.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        if let Some((first, others)) = shards.split_first() {
            for other in others {
                belongs(first, other)?;
            }
        }
        let mut starts = vec![0];
        let mut hash = Sha256::new();
        for shard in &shards {
            let tokens = starts.last().copied().unwrap_or(0_usize);
            let tokens = usize::try_from(shard.header.tokens)
                .ok()
                .and_then(|more| tokens.checked_add(more));
            let problem = "with the files before it there are more tokens than can be counted";
            starts.push(tokens.ok_or_else(|| damaged(&shard.path, "count", problem))?);
            shard.add_to(&mut hash)?;
        }
        Ok(Self {
            vocabulary: shards.first().and_then(|first| first.header.vocabulary),
            starts,
            fingerprint: format!("{:x}", hash.finalize()),
            shards,
        })
    }

    /// The same, whose tokens must be below `vocabulary` if the files do not say.
    #[must_use]
    pub fn with_vocabulary(self, vocabulary: usize) -> Self {
        Self {
            vocabulary: self.vocabulary.or(Some(vocabulary as u64)),
            ..self
        }
    }

    /// How many tokens there are.
    pub fn tokens(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// How many files there are.
    pub fn files(&self) -> usize {
        self.shards.len()
    }

    /// How many documents there are, if the files say so.
    pub fn documents(&self) -> Option<u64> {
        self.shards.iter().map(|shard| shard.header.documents).sum()
    }

    /// Each token is below it, if the files say so, or it was given.
    pub fn vocabulary(&self) -> Option<usize> {
        self.vocabulary
            .and_then(|vocabulary| usize::try_from(vocabulary).ok())
    }

    /// The token after each document, if the files name one.
    pub fn end_of_document(&self) -> Option<u32> {
        self.shards.first()?.header.end_of_document
    }

    /// How the files are laid out.
    pub fn format(&self) -> TokenFormat {
        let first = self.shards.first();
        first.map_or(TokenFormat::Detect, |first| first.header.format)
    }

    /// SHA-256, in hexadecimal, of the files' names, lengths, headers, and 64 places of each: all of a file of up to
    /// 4 MiB.
    /// Our headers hold the SHA-256 of all tokens.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    pub(crate) fn first_file(&self) -> PathBuf {
        let first = self.shards.first();
        first.map(|shard| shard.path.clone()).unwrap_or_default()
    }

    pub(crate) fn made_by(&self) -> &MadeBy {
        let first = self.shards.first();
        first.map_or(&MadeBy::Unknown, |first| &first.header.made_by)
    }

    /// Refuses files that do not go with these.
    pub(super) fn belongs(&self, other: &Self) -> Result<(), DatasetError> {
        match (self.shards.first(), other.shards.first()) {
            (Some(first), Some(other)) => belongs(first, other),
            _ => Ok(()),
        }
    }

    /// The tokens in `range`, from one file or several.
    ///
    /// # Errors
    /// [`DatasetError::Read`] if a file cannot be read or has become shorter; [`DatasetError::Data`] if a token is
    /// beyond the vocabulary, with its place.
    ///
    /// # Panics
    /// If the range is not within the tokens, as a slice would.
    pub fn read(&self, range: Range<usize>) -> Result<Vec<u32>, DatasetError> {
        let Range { start, end } = range;
        assert!(start <= end && end <= self.tokens(), "tokens {range:?}");
        let vocabulary = self.vocabulary.unwrap_or(u64::MAX);
        let mut tokens = Vec::with_capacity(end - start);
        // The last file that begins at or before the first token.
        let mut number = self.starts.partition_point(|first| *first <= start) - 1;
        while tokens.len() < end - start {
            let next = start + tokens.len();
            let count = end.min(self.starts[number + 1]) - next;
            let from = (next - self.starts[number]) as u64;
            self.shards[number].read(from, count, vocabulary, &mut tokens)?;
            number += 1;
        }
        Ok(tokens)
    }

    /// Reads all files, in bounded memory: every token must be within the vocabulary, and those of our file have the
    /// SHA-256 that its header says.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`DatasetError::Data`] if a file is damaged.
    pub fn verify(&self) -> Result<(), DatasetError> {
        let vocabulary = self.vocabulary.unwrap_or(u64::MAX);
        let mut shards = self.shards.iter();
        shards.try_for_each(|shard| shard.verify(vocabulary))
    }
}

/// Refuses two files of different tokens.
fn belongs(first: &Shard, other: &Shard) -> Result<(), DatasetError> {
    let end = |shard: &Shard| match shard.header.end_of_document {
        Some(token) => format!("the token {token} after each document"),
        None => "no token after a document".to_owned(),
    };
    let vocabulary = |shard: &Shard| match shard.header.vocabulary {
        Some(tokens) => format!("a vocabulary of {tokens}"),
        None => "no vocabulary in its header".to_owned(),
    };
    let features: [&dyn Fn(&Shard) -> String; 4] = [
        &|shard| format!("tokens of {}", shard.header.width),
        &|shard| format!("tokens of {}", shard.header.made_by),
        &vocabulary,
        &end,
    ];
    for feature in features {
        let (expected, found) = (feature(first), feature(other));
        if expected != found {
            let first = first.path.display();
            let problem = format!(
                " has {found}, and {first} has {expected}: the files of one text are made by one tokenizer"
            );
            return Err(unusable(&other.path, problem));
        }
    }
    Ok(())
}
