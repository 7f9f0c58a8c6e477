//! Between text and numbers.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use super::tokenizer_file::{self, TokenizerFile};
use crate::DatasetError;
use crate::token_shards::MadeBy;

/// How many bytes on each side of a place decide whether a text may be cut there: some hundred words.
const SURROUNDINGS: usize = 1024;

/// How many places are tried. If a tokenizer cannot be cut at this many, it can nowhere.
const MOST_TRIES: usize = 64;

/// Which tokenizer: `char`, `byte`, or a file.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::TokenizerKind;
///
/// assert_eq!(serde_json::to_string(&TokenizerKind::Byte).unwrap(), "\"byte\"");
/// let file: TokenizerKind = "gpt2/tokenizer.json".parse()?;
/// assert_eq!(file, TokenizerKind::File("gpt2/tokenizer.json".into()));
/// assert!("chars".parse::<TokenizerKind>().is_err());
/// # Ok::<(), everburn_datasets::UnknownTokenizer>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum TokenizerKind {
    /// The characters of the text.
    #[default]
    Char,
    /// The 256 bytes, for any UTF-8.
    Byte,
    /// A `tokenizer.json` of Hugging Face, or a folder with one, or with GPT-2's `vocab.json` and `merges.txt`.
    File(PathBuf),
}

/// A name that is no tokenizer.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::{TokenizerKind, UnknownTokenizer};
///
/// let error: UnknownTokenizer = "chars".parse::<TokenizerKind>().unwrap_err();
/// assert!(error.to_string().starts_with("`chars` is no tokenizer: use char, byte"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no tokenizer: use char, byte, or the path of a tokenizer.json or of a folder with vocab.json and merges.txt"
)]
pub struct UnknownTokenizer(String);

impl TokenizerKind {
    /// The tokenizer in the folder of a pretrained model: its `tokenizer.json`, or else GPT-2's two files; `None` where
    /// it has neither.
    pub fn of_pretrained(folder: &Path) -> Option<Self> {
        tokenizer_file::in_folder(folder).map(Self::File)
    }
}

impl FromStr for TokenizerKind {
    type Err = UnknownTokenizer;

    fn from_str(name: &str) -> Result<Self, UnknownTokenizer> {
        match name {
            "char" => Ok(Self::Char),
            "byte" => Ok(Self::Byte),
            // A word alone is a slip of the keyboard, unless it is there.
            path if path.contains(['/', '.']) || Path::new(path).exists() => {
                Ok(Self::File(path.into()))
            }
            other => Err(UnknownTokenizer(other.to_owned())),
        }
    }
}

everburn_record::serde_as_text!(TokenizerKind);

impl fmt::Display for TokenizerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Char => f.write_str("char"),
            Self::Byte => f.write_str("byte"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// Turns text into tokens, and tokens into text.
///
/// A model belongs to the tokenizer that it was trained with: keep its [`alphabet`](Self::alphabet), or its file and
/// the file's [hash](Self::file_hash).
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::Tokenizer;
///
/// let tokenizer = Tokenizer::of_characters_in("hello")?;
/// assert_eq!(tokenizer.alphabet(), Some("ehlo".to_string()));
/// assert_eq!(tokenizer.encode("hole")?, [1, 3, 2, 0]);
/// assert_eq!(tokenizer.decode(&[1, 0]), "he");
/// assert!(tokenizer.encode("hall").unwrap_err().to_string().contains("'a'"));
/// # Ok::<(), everburn_datasets::DatasetError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokenizer(Tokens);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Tokens {
    /// A token is the place of its character in this list, which ascends.
    Characters(Vec<char>),
    Bytes,
    File(Arc<TokenizerFile>),
}

impl Tokenizer {
    /// The name of the file with a tokenizer's settings, in a folder of Hugging Face's transformers.
    pub const SETTINGS_FILE: &str = tokenizer_file::SETTINGS;

    /// The tokenizer in a file or folder: see [`TokenizerKind::File`].
    ///
    /// # Errors
    /// [`DatasetError::Read`] and [`DatasetError::Data`], with the file.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, DatasetError> {
        let file = TokenizerFile::open(path.as_ref())?;
        Ok(Self(Tokens::File(Arc::new(file))))
    }

    /// The characters of `text`, in ascending order.
    ///
    /// # Errors
    /// [`DatasetError::Request`] if there are none.
    pub fn of_characters_in(text: &str) -> Result<Self, DatasetError> {
        let mut seen = std::collections::BTreeSet::new();
        seen.extend(text.chars());
        Self::of_alphabet(&seen.into_iter().collect::<String>())
    }

    /// The characters that another tokenizer's [`alphabet`](Self::alphabet) had.
    ///
    /// # Errors
    /// [`DatasetError::Request`] if they are none, or not in ascending order.
    pub fn of_alphabet(alphabet: &str) -> Result<Self, DatasetError> {
        let characters = alphabet.chars().collect::<Vec<_>>();
        let problem = match characters.is_sorted_by(|a, b| a < b) {
            true if !characters.is_empty() => return Ok(Self(Tokens::Characters(characters))),
            true => "it is empty",
            false => "its characters must ascend, each once",
        };
        let problem = format!("the alphabet of the tokenizer cannot be used: {problem}");
        Err(DatasetError::Request(problem))
    }

    /// The 256 bytes.
    pub fn of_bytes() -> Self {
        Self(Tokens::Bytes)
    }

    /// What its tokens are called.
    pub fn unit(&self) -> &'static str {
        match self.0 {
            Tokens::Characters(_) => "characters",
            Tokens::Bytes => "bytes",
            Tokens::File(_) => "tokens",
        }
    }

    /// SHA-256 of the tokenizer's file, in hexadecimal, if it is from one.
    pub fn file_hash(&self) -> Option<&str> {
        match &self.0 {
            Tokens::File(file) => Some(file.hash()),
            Tokens::Characters(_) | Tokens::Bytes => None,
        }
    }

    /// How many different tokens there are; each is below it.
    pub fn vocabulary(&self) -> usize {
        match &self.0 {
            Tokens::Characters(characters) => characters.len(),
            Tokens::Bytes => 256,
            Tokens::File(file) => file.vocabulary(),
        }
    }

    /// The characters, where tokens are characters.
    pub fn alphabet(&self) -> Option<String> {
        match &self.0 {
            Tokens::Characters(characters) => Some(characters.iter().collect()),
            Tokens::Bytes | Tokens::File(_) => None,
        }
    }

    /// The tokens of `text`.
    ///
    /// # Errors
    /// [`DatasetError::Request`] with the first character that is not in the alphabet, and [`DatasetError::Data`] if a tokenizer of a file fails.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DatasetError> {
        let characters = match &self.0 {
            Tokens::Bytes => return Ok(text.bytes().map(u32::from).collect()),
            Tokens::File(file) => return file.encode(text),
            Tokens::Characters(characters) => characters,
        };
        let mut tokens = Vec::with_capacity(text.len());
        for (offset, character) in text.char_indices() {
            let Ok(token) = characters.binary_search(&character) else {
                return Err(DatasetError::Request(format!(
                    "byte {offset} of the text begins {character:?}, which is none of the tokenizer's {} characters: a model \
                     reads only the characters of its training text, unless its tokenizer is byte",
                    characters.len()
                )));
            };
            tokens.push(token as u32); // there are fewer characters than 2^32
        }
        Ok(tokens)
    }

    /// The number of the token of this name, such as `<|endoftext|>`. Only tokenizers of files have names of tokens.
    pub fn token(&self, name: &str) -> Option<u32> {
        match &self.0 {
            Tokens::File(file) => file.token(name),
            Tokens::Characters(_) | Tokens::Bytes => None,
        }
    }

    /// The number of the token that the `tokenizer_config.json` beside a tokenizer of a file names by this key, such as
    /// `eos_token`, where a text ends.
    pub fn special_token(&self, key: &str) -> Option<u32> {
        match &self.0 {
            Tokens::File(file) => file.special_token(key),
            Tokens::Characters(_) | Tokens::Bytes => None,
        }
    }

    /// The files by which Hugging Face's transformers load the same tokenizer: `tokenizer.json`, and those of its settings
    /// that are beside the file. None where tokens are characters or bytes.
    ///
    /// # Errors
    /// [`DatasetError::Read`] and [`DatasetError::Data`], with the file.
    pub fn pretrained_files(&self) -> Result<Vec<(String, Vec<u8>)>, DatasetError> {
        match &self.0 {
            Tokens::File(file) => file.pretrained_files(),
            Tokens::Characters(_) | Tokens::Bytes => Ok(Vec::new()),
        }
    }

    /// The tokens of several texts, each by itself.
    pub(super) fn encode_all(&self, texts: &[&str]) -> Result<Vec<Vec<u32>>, DatasetError> {
        match &self.0 {
            Tokens::File(file) => file.encode_all(texts),
            Tokens::Characters(_) | Tokens::Bytes => {
                texts.iter().map(|text| self.encode(text)).collect()
            }
        }
    }

    /// What made its tokens, in the header of a file of them.
    pub(super) fn made_by(&self) -> MadeBy {
        match &self.0 {
            Tokens::Characters(_) => MadeBy::Unknown,
            Tokens::Bytes => MadeBy::Bytes,
            Tokens::File(file) => MadeBy::File(file.hash().to_owned()),
        }
    }

    /// The files that it was read from.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        match &self.0 {
            Tokens::File(file) => file.files(),
            Tokens::Characters(_) | Tokens::Bytes => Vec::new(),
        }
    }

    /// A place at which `text` can be cut so that the tokens of its parts are those of the whole: the last that is found.
    ///
    /// Where a tokenizer of a file may be cut depends on its rules for words, which differ. So it is tried out: a place is
    /// taken if it makes no difference to the tokens of its surroundings, [`SURROUNDINGS`] bytes before and after it.
    pub(super) fn cut(&self, text: &str) -> Result<Option<usize>, DatasetError> {
        let Tokens::File(file) = &self.0 else {
            return Ok(Some(text.len()).filter(|length| *length > 0));
        };
        let mut tries = 0;
        let mut next: Option<(usize, char)> = None;
        for (at, character) in text.char_indices().rev() {
            // Words end here, in scripts with spaces and in others.
            let behind = next.replace((at, character));
            let Some((place, _)) = behind.filter(|(_, next)| !next.is_alphanumeric()) else {
                continue;
            };
            if !character.is_alphanumeric() || text.len() - place < SURROUNDINGS {
                continue;
            }
            let from = text.floor_char_boundary(place.saturating_sub(SURROUNDINGS));
            let to = text.floor_char_boundary(place + SURROUNDINGS);
            let [before, behind] = [&text[from..place], &text[place..to]];
            let mut parts = file.encode(before)?;
            parts.extend(file.encode(behind)?);
            if parts == file.encode(&text[from..to])? {
                return Ok(Some(place));
            }
            tries += 1;
            if tries == MOST_TRIES {
                break;
            }
        }
        Ok(None)
    }

    /// The text of `tokens`. Unknown tokens and invalid UTF-8 become `U+FFFD`, or are left out by a tokenizer of a file.
    pub fn decode(&self, tokens: &[u32]) -> String {
        match &self.0 {
            Tokens::Bytes => {
                // No byte of UTF-8 is 0xff.
                let byte = |&token: &u32| u8::try_from(token).unwrap_or(u8::MAX);
                let bytes = tokens.iter().map(byte).collect::<Vec<_>>();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Tokens::File(file) => file.decode(tokens),
            Tokens::Characters(characters) => {
                let character = |&token: &u32| characters.get(token as usize).copied();
                let shown = |token| character(token).unwrap_or(char::REPLACEMENT_CHARACTER);
                tokens.iter().map(shown).collect()
            }
        }
    }
}
