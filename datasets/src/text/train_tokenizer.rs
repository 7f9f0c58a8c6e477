//! A custom tokenizer.

use std::path::PathBuf;

use tokenizers::AddedToken;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::documents::{DocumentReader, Documents, inputs};
use super::tokenizer_file::like_gpt2;
use crate::DatasetError;

/// The token that ends a document, as GPT-2 calls it. It is token 0.
const END_OF_DOCUMENT: &str = "<|endoftext|>";

/// The bytes and the token that ends a document.
const SMALLEST: usize = 256 + 1;

/// The largest vocabulary: four times as large as any that is published.
const LARGEST: usize = 1 << 20;

/// How many bytes of text are read at most. The trainer keeps each different word; more text hardly changes which pairs
/// are the most frequent.
const MOST_BYTES: usize = 1 << 30;

/// What a tokenizer is to learn from.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{Documents, TokenizerRequest};
///
/// let request = TokenizerRequest {
///     inputs: vec!["a.txt".into()],
///     documents: Documents::Files,
///     vocabulary: 8192,
/// };
/// assert_eq!(request.vocabulary, 8192);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizerRequest {
    /// Files of text, or folders of these; those that end in `.gz` are unpacked.
    pub inputs: Vec<PathBuf>,
    /// Where documents end.
    pub documents: Documents,
    /// How many tokens there are to be: the 256 bytes, `<|endoftext|>`, and pairs of them.
    pub vocabulary: usize,
}

/// Trains a tokenizer like GPT-2's, a byte pair encoding that can write any text, and returns it as a `tokenizer.json` and
/// the number of its tokens. There may be fewer than were asked for, where the text is short.
///
/// Of a large text 1 GiB is read, the same number of bytes of each file. The same text gives the same tokenizer.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{Documents, Tokenizer, TokenizerRequest, train_tokenizer};
///
/// let folder = tempfile::tempdir()?;
/// std::fs::write(folder.path().join("a.txt"), "the keeper of the fires ".repeat(9))?;
/// let request = TokenizerRequest {
///     inputs: vec![folder.path().join("a.txt")],
///     documents: Documents::Files,
///     vocabulary: 260,
/// };
/// let (json, vocabulary) = train_tokenizer(&request)?;
/// let file = folder.path().join("tokenizer.json");
/// std::fs::write(&file, json)?;
/// let tokenizer = Tokenizer::from_file(&file)?;
/// assert_eq!((tokenizer.vocabulary(), vocabulary), (260, 260));
/// assert_eq!(tokenizer.decode(&tokenizer.encode("keepers")?), "keepers");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// - [`DatasetError::Request`] if the vocabulary is smaller than 257 or larger than 2^20, or there is no text;
/// - [`DatasetError::Read`] and [`DatasetError::Data`] for a text, with the file.
pub fn train_tokenizer(request: &TokenizerRequest) -> Result<(String, usize), DatasetError> {
    let vocabulary = request.vocabulary;
    if !(SMALLEST..=LARGEST).contains(&vocabulary) {
        return Err(DatasetError::Request(format!(
            "a vocabulary of {vocabulary} tokens is not one of {SMALLEST} to {LARGEST}"
        )));
    }
    let files = inputs(&request.inputs)?;
    let most = MOST_BYTES / files.len();
    let mut texts = Texts {
        reader: DocumentReader::new(&request.documents, files, Some(most.max(1))),
        read: false,
        failed: None,
    };
    let failed = |error: tokenizers::Error| {
        DatasetError::Request(format!("no tokenizer can be trained: {error}"))
    };
    let mut tokenizer = like_gpt2(BPE::default());
    let trainer = BpeTrainerBuilder::new()
        .show_progress(false)
        .vocab_size(vocabulary)
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .special_tokens(vec![AddedToken::from(END_OF_DOCUMENT, true)])
        .build();
    let mut trainer = TrainerWrapper::from(trainer);
    let trained = tokenizer.train(&mut trainer, &mut texts).map(|_| ());
    // The text's error is the cause.
    if let Some(error) = texts.failed {
        return Err(error);
    }
    trained.map_err(failed)?;
    if !texts.read {
        return Err(DatasetError::Request(
            "there is no text in the input".to_owned(),
        ));
    }
    let json = tokenizer.to_string(true).map_err(failed)?;
    Ok((json, tokenizer.get_vocab_size(true)))
}

/// The texts of a reader, up to the first that cannot be read.
struct Texts<'a> {
    reader: DocumentReader<'a>,
    /// Whether there was any.
    read: bool,
    failed: Option<DatasetError>,
}

impl Iterator for Texts<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        // Between words: two words more or less do not change which pair of letters is frequent.
        let between_words = |text: &str| {
            let space = text.char_indices().rev().find(|(_, c)| c.is_whitespace());
            let space = space.map(|(at, _)| at).filter(|at| *at > 0);
            Ok(Some(space.unwrap_or(text.len())))
        };
        match self.reader.next(&between_words) {
            Ok(part) => {
                self.read |= part.is_some();
                part.map(|part| part.text)
            }
            Err(error) => {
                self.failed = Some(error);
                None
            }
        }
    }
}
