//! From text that is larger than memory to files of tokens.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::documents::{DocumentReader, Documents, Part, inputs};
use super::tokens_folder::TokensFolder;
use super::{Tokenizer, TokenizerKind};
use crate::DatasetError;
use crate::error::{unreadable, unwritable};
use crate::token_shards::{ShardOptions, ShardWriter};

/// How many bytes of text are tokenized at a time.
const BATCH: usize = 1 << 20;

/// What published tokenizers call the token that ends a document.
const END_NAMES: [&str; 5] = [
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|eos|>",
];

/// What is to be tokenized, and how.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::TokenizeRequest;
///
/// let request = TokenizeRequest { validation: 0.01, ..TokenizeRequest::default() };
/// assert_eq!(request.shard_tokens, 100_000_000);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct TokenizeRequest {
    /// Files of text, or folders of these; those that end in `.gz` are unpacked.
    pub inputs: Vec<PathBuf>,
    /// Where documents end.
    pub documents: Documents,
    /// The tokenizer: a file, or bytes.
    pub tokenizer: TokenizerKind,
    /// The token after each document.
    pub end_of_document: EndOfDocument,
    /// The folder of the files of tokens, which is made.
    pub output: PathBuf,
    /// Whether a folder of files of tokens that is there is replaced.
    pub replace: bool,
    /// How many tokens per file has at most.
    pub shard_tokens: u64,
    /// The share of tokens, in whole documents, that go into files to validate by.
    pub validation: f64,
}

impl Default for TokenizeRequest {
    fn default() -> Self {
        Self {
            inputs: Vec::new(),
            documents: Documents::Files,
            tokenizer: TokenizerKind::Char,
            end_of_document: EndOfDocument::Found,
            output: PathBuf::new(),
            replace: false,
            // As llm.c's and modded-nanogpt's: 200 MB.
            shard_tokens: 100_000_000,
            validation: 0.0,
        }
    }
}

/// Which token is after each document.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::EndOfDocument;
///
/// assert_eq!("none".parse(), Ok(EndOfDocument::None));
/// assert_eq!("</s>".parse(), Ok(EndOfDocument::Token("</s>".into())));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum EndOfDocument {
    /// The tokenizer's own: `<|endoftext|>`, `<|end_of_text|>`, `</s>`, `<eos>` or `<|eos|>`.
    #[default]
    Found,
    /// The token of this name.
    Token(String),
    /// None: documents follow each other as if they were one.
    None,
}

impl std::str::FromStr for EndOfDocument {
    type Err = std::convert::Infallible;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Ok(match name {
            "none" => Self::None,
            name => Self::Token(name.to_owned()),
        })
    }
}

/// What has been tokenized: the answer of [`tokenize`].
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::Tokenized;
///
/// let done = Tokenized { bytes: 400, tokens: [90, 10], ..Tokenized::default() };
/// assert_eq!(done.bytes_per_token(), 4.0);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tokenized {
    /// How many bytes of text were read.
    pub bytes: u64,
    /// How many tokens there are to train on, and to validate by; those after documents included.
    pub tokens: [u64; 2],
    /// How many documents there are to train on, and to validate by.
    pub documents: [u64; 2],
    /// How many files there are to train on, and to validate by.
    pub files: [usize; 2],
    /// Each token is below it.
    pub vocabulary: usize,
    /// The name and the number of the token after each document.
    pub end_of_document: Option<(String, u32)>,
}

impl Tokenized {
    /// Bytes of text per token, on average.
    pub fn bytes_per_token(&self) -> f64 {
        self.bytes as f64 / self.tokens.iter().sum::<u64>() as f64
    }
}

/// Tokenizes files of text into a folder: `train_000000.bin`, `val_000000.bin` and so on, and the tokenizer's own files.
///
/// Memory is bounded, whatever the length of files and documents. The folder is written beside its place and renamed, so
/// that it is there whole or not at all. `told` is called with the number of bytes read, again and again, and may end it.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use std::ops::ControlFlow;
///
/// use everburn::datasets::{EndOfDocument, TokenFiles, TokenFormat, TokenizeRequest, TokenizerKind, tokenize};
///
/// let folder = tempfile::tempdir()?;
/// std::fs::write(folder.path().join("a.txt"), "abc")?;
/// let request = TokenizeRequest {
///     inputs: vec![folder.path().join("a.txt")],
///     tokenizer: TokenizerKind::Byte,
///     end_of_document: EndOfDocument::None,
///     output: folder.path().join("tokens"),
///     ..TokenizeRequest::default()
/// };
/// let done = tokenize(&request, &mut |_bytes| ControlFlow::Continue(()))?;
/// assert_eq!(done.tokens, [3, 0]);
/// let files = TokenFiles::open(&request.output, TokenFormat::Detect)?;
/// assert_eq!(files.train.read(0..3)?, [97, 98, 99]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// - [`DatasetError::Request`] if the request cannot be met: a folder that is there, a tokenizer that no file can
///   name, a tokenizer without a token that ends a document where there are several, nothing to train on or to
///   validate by; and if `told` has ended it;
/// - [`DatasetError::Read`] and [`DatasetError::Data`] for a text and for the tokenizer, with the file;
/// - [`DatasetError::Write`] for what is written.
pub fn tokenize(
    request: &TokenizeRequest,
    told: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Tokenized, DatasetError> {
    let refused = |problem: String| Err(DatasetError::Request(problem));
    if !(0.0..=0.5).contains(&request.validation) {
        let share = request.validation;
        return refused(format!(
            "a share of {share} to validate by is not one of 0 to 0.5"
        ));
    }
    if request.shard_tokens == 0 {
        return refused("a file must have room for a token".to_owned());
    }
    let tokenizer = match &request.tokenizer {
        TokenizerKind::File(path) => Tokenizer::from_file(path)?,
        TokenizerKind::Byte => Tokenizer::of_bytes(),
        TokenizerKind::Char => {
            return refused(
                "the characters of a text are a tokenizer of that text only: name a tokenizer.json, or byte"
                    .to_owned(),
            );
        }
    };
    let end = end_of_document(&tokenizer, request)?;
    let files = inputs(&request.inputs)?;
    let folder = TokensFolder::of(&request.output, request.replace)?;
    let options = ShardOptions {
        vocabulary: tokenizer.vocabulary(),
        made_by: tokenizer.made_by(),
        end_of_document: end.as_ref().map(|(_, token)| *token),
        most: request.shard_tokens,
    };
    let mut work = Work {
        tokenizer: &tokenizer,
        splits: ["train", "val"].map(|name| ShardWriter::new(folder.path(), name, options.clone())),
        validation: request.validation,
        end_of_document: end.as_ref().map(|(_, token)| *token),
        may_join: request.end_of_document == EndOfDocument::None,
        held_out: false,
        bytes: 0,
    };
    let mut reader = DocumentReader::new(&request.documents, files, None);
    let mut batch = Vec::new();
    let mut length = 0;
    while let Some(part) = reader.next(&|text| tokenizer.cut(text))? {
        length += part.text.len();
        batch.push(part);
        if length >= BATCH {
            work.write(&batch)?;
            if told(work.bytes).is_break() {
                return refused("it was interrupted; nothing is written".to_owned());
            }
            batch.clear();
            length = 0;
        }
    }
    work.write(&batch)?;
    let done = work.finish(end)?;
    match tokenizer.files().as_slice() {
        [file] => copy(file, &folder.path().join("tokenizer.json"))?,
        // GPT-2's vocab.json and merges.txt.
        files => {
            for file in files {
                copy(
                    file,
                    &folder.path().join(file.file_name().unwrap_or_default()),
                )?;
            }
        }
    }
    folder.rename()?;
    Ok(done)
}

/// The token after each document, by name and number.
fn end_of_document(
    tokenizer: &Tokenizer,
    request: &TokenizeRequest,
) -> Result<Option<(String, u32)>, DatasetError> {
    let named = |name: &str| Some((name.to_owned(), tokenizer.token(name)?));
    match &request.end_of_document {
        EndOfDocument::None => Ok(None),
        EndOfDocument::Found => Ok(END_NAMES.into_iter().find_map(named)),
        EndOfDocument::Token(name) => named(name).map(Some).ok_or_else(|| {
            DatasetError::Request(format!(
                "the tokenizer {} has no token {name:?}",
                request.tokenizer
            ))
        }),
    }
}

/// Tokenizes documents and shares them out.
struct Work<'a> {
    tokenizer: &'a Tokenizer,
    /// To train on, and to validate by.
    splits: [ShardWriter; 2],
    validation: f64,
    end_of_document: Option<u32>,
    /// Whether documents may follow each other without a token between them.
    may_join: bool,
    /// Whether the document that has begun is one to validate by.
    held_out: bool,
    bytes: u64,
}

impl Work<'_> {
    fn write(&mut self, parts: &[Part]) -> Result<(), DatasetError> {
        let texts = parts.iter().map(|part| part.text.as_str());
        let encoded = self.tokenizer.encode_all(&texts.collect::<Vec<_>>())?;
        for (part, mut tokens) in parts.iter().zip(encoded) {
            let [train, held_out] = self.splits.each_ref().map(|split| split.tokens as f64);
            if part.begins {
                if train > 0.0 && self.end_of_document.is_none() && !self.may_join {
                    return Err(DatasetError::Request(
                        "there are several documents, and the tokenizer has no token that is known to end one: name \
                         one by --end-of-document, or join documents by --end-of-document none"
                            .to_owned(),
                    ));
                }
                // Spread over the whole text, and the same whenever it is done again.
                self.held_out = held_out < self.validation * (train + held_out);
            }
            if part.ends {
                tokens.extend(self.end_of_document);
            }
            let split = &mut self.splits[usize::from(self.held_out)];
            split.push(&tokens, part.begins)?;
            self.bytes += part.text.len() as u64;
        }
        Ok(())
    }

    fn finish(mut self, end: Option<(String, u32)>) -> Result<Tokenized, DatasetError> {
        for split in &mut self.splits {
            split.finish()?;
        }
        let [train, held_out] = &self.splits;
        if train.tokens == 0 {
            return Err(DatasetError::Request(
                "there is no text in the input".to_owned(),
            ));
        }
        if held_out.tokens == 0 && self.validation > 0.0 {
            return Err(DatasetError::Request(
                "there is only one document, and documents are not divided: name their ends with --document-separator or --jsonl, or leave out --validation, then a training takes the last tenth"
                    .to_owned(),
            ));
        }
        Ok(Tokenized {
            bytes: self.bytes,
            tokens: [train.tokens, held_out.tokens],
            documents: [train.documents, held_out.documents],
            files: [train.files, held_out.files],
            vocabulary: self.tokenizer.vocabulary(),
            end_of_document: end,
        })
    }
}

/// Copies a tokenizer's file.
fn copy(file: &Path, to: &Path) -> Result<(), DatasetError> {
    let bytes = fs::read(file).map_err(|source| unreadable(file, source))?;
    everburn_record::file::write(to, &bytes).map_err(|source| unwritable(to, source))
}
