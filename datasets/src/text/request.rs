//! A request for a text.

use std::path::PathBuf;

use super::{ChatTemplate, TextDataset, Tokenizer, TokenizerKind};
use crate::error::wrong_count;
use crate::{DataChoice, DatasetError, TokenFormat};

/// Which text is wanted, and how it is cut.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{TextRequest, TokenizerKind};
///
/// let request = TextRequest { context: 32, ..TextRequest::default() };
/// assert_eq!(request.tokenizer, TokenizerKind::Char);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextRequest {
    /// Which text: `auto`, `tinyshakespeare` or `embedded`.
    pub choice: DataChoice,
    /// A folder that holds `input.txt`, or the sub-folder `tinyshakespeare`. No other one
    /// is looked in.
    pub data_dir: Option<PathBuf>,
    /// A text file, a file of tokens, or a folder of these, in place of the choice and the folder.
    pub file: Option<PathBuf>,
    /// How files of tokens are laid out.
    pub format: TokenFormat,
    /// Which tokenizer.
    pub tokenizer: TokenizerKind,
    /// The characters of an earlier tokenizer, for a model that was trained with it; those of the
    /// text if absent.
    pub alphabet: Option<String>,
    /// How many different tokens there are, for files of tokens that neither say so nor come with a tokenizer.
    pub vocabulary: Option<usize>,
    /// How many tokens are predicted in a window.
    pub context: usize,
    /// How messages of instructions become text, for a model that was trained with it; that of [`ChatTemplate::of`] if
    /// absent.
    pub template: Option<ChatTemplate>,
    /// Whether instructions that are longer than a window are cut; else they are refused.
    pub truncate: bool,
    /// Whether only a test set is wanted: what would be divided is one whole, and the training windows are the same.
    pub only_test: bool,
    /// The most training windows.
    pub train_limit: Option<usize>,
    /// The most test windows.
    pub test_limit: Option<usize>,
}

impl Default for TextRequest {
    fn default() -> Self {
        Self {
            choice: DataChoice::Auto,
            data_dir: None,
            file: None,
            format: TokenFormat::Detect,
            tokenizer: TokenizerKind::Char,
            alphabet: None,
            vocabulary: None,
            context: 64,
            template: None,
            truncate: false,
            only_test: false,
            train_limit: None,
            test_limit: None,
        }
    }
}

impl TextRequest {
    /// The tokenizer, unless it is that of the characters of the text.
    pub(super) fn known_tokenizer(&self) -> Result<Option<Tokenizer>, DatasetError> {
        Ok(match (&self.tokenizer, &self.alphabet) {
            (TokenizerKind::File(path), _) => Some(Tokenizer::from_file(path)?),
            (TokenizerKind::Byte, _) => Some(Tokenizer::of_bytes()),
            (TokenizerKind::Char, Some(alphabet)) => Some(Tokenizer::of_alphabet(alphabet)?),
            (TokenizerKind::Char, None) => None,
        })
    }

    /// The training and the test part of what has no test set of its own.
    pub(super) fn split(&self, whole: TextDataset, at: usize) -> [TextDataset; 2] {
        match self.only_test {
            true => [whole.clone(), whole],
            false => whole.split(at),
        }
    }

    /// How many training windows a description names: none, where they are those of the test.
    pub(super) fn described(&self, train: &TextDataset) -> usize {
        match self.only_test {
            true => 0,
            false => train.len(),
        }
    }

    /// The first windows of the training and the test part, as many as are wanted.
    pub(super) fn limited(
        &self,
        parts: [TextDataset; 2],
    ) -> Result<[TextDataset; 2], DatasetError> {
        let limited = |text: TextDataset, limit: Option<usize>, split| match limit {
            None => Ok(text),
            Some(0) => Err(wrong_count(split, 0, text.len())),
            Some(count) => Ok(text.first(count)),
        };
        let [train, test] = parts;
        Ok([
            limited(train, self.train_limit, "training")?,
            limited(test, self.test_limit, "test")?,
        ])
    }
}
