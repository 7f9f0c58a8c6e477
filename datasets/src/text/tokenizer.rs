//! Between text and numbers.

use serde::{Deserialize, Serialize};

use crate::DatasetError;

/// What a token is.
///
/// ```
/// use everburn_datasets::TokenizerKind;
///
/// assert_eq!(serde_json::to_string(&TokenizerKind::Byte).unwrap(), "\"byte\"");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TokenizerKind {
    /// A character: one of those that the text has.
    #[default]
    Char,
    /// A byte of the text's UTF-8: one of 256, whatever the text.
    Byte,
}

/// Turns text into tokens, and tokens into text.
///
/// A model belongs to the tokenizer that it was trained with: keep its [`alphabet`](Self::alphabet).
///
/// ```
/// use everburn_datasets::Tokenizer;
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
}

impl Tokenizer {
    /// The characters of `text`, in ascending order.
    ///
    /// # Errors
    /// [`DatasetError::Alphabet`] if there are none.
    pub fn of_characters_in(text: &str) -> Result<Self, DatasetError> {
        let mut seen = std::collections::BTreeSet::new();
        seen.extend(text.chars());
        Self::of_alphabet(&seen.into_iter().collect::<String>())
    }

    /// The characters that another tokenizer's [`alphabet`](Self::alphabet) had.
    ///
    /// # Errors
    /// [`DatasetError::Alphabet`] if they are none, or not in ascending order.
    pub fn of_alphabet(alphabet: &str) -> Result<Self, DatasetError> {
        let characters = alphabet.chars().collect::<Vec<_>>();
        if characters.is_empty() {
            return Err(DatasetError::Alphabet("it is empty"));
        }
        if !characters.is_sorted_by(|a, b| a < b) {
            return Err(DatasetError::Alphabet(
                "its characters must ascend, each once",
            ));
        }
        Ok(Self(Tokens::Characters(characters)))
    }

    /// The 256 bytes.
    pub fn of_bytes() -> Self {
        Self(Tokens::Bytes)
    }

    /// What its tokens are.
    pub fn kind(&self) -> TokenizerKind {
        match self.0 {
            Tokens::Characters(_) => TokenizerKind::Char,
            Tokens::Bytes => TokenizerKind::Byte,
        }
    }

    /// How many different tokens there are; each is below it.
    pub fn vocabulary(&self) -> usize {
        match &self.0 {
            Tokens::Characters(characters) => characters.len(),
            Tokens::Bytes => 256,
        }
    }

    /// The characters, where tokens are characters.
    pub fn alphabet(&self) -> Option<String> {
        match &self.0 {
            Tokens::Characters(characters) => Some(characters.iter().collect()),
            Tokens::Bytes => None,
        }
    }

    /// The tokens of `text`.
    ///
    /// # Errors
    /// [`DatasetError::UnknownCharacter`] naming the first character that is not in the alphabet.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, DatasetError> {
        let characters = match &self.0 {
            Tokens::Bytes => return Ok(text.bytes().map(u32::from).collect()),
            Tokens::Characters(characters) => characters,
        };
        let mut tokens = Vec::with_capacity(text.len());
        for (offset, character) in text.char_indices() {
            let Ok(token) = characters.binary_search(&character) else {
                return Err(DatasetError::UnknownCharacter {
                    character,
                    offset,
                    known: characters.len(),
                });
            };
            tokens.push(token as u32); // there are fewer characters than 2^32
        }
        Ok(tokens)
    }

    /// The text of `tokens`. What is no token and what is no UTF-8 becomes `U+FFFD`, so that
    /// everything that a model dreams of can be shown.
    pub fn decode(&self, tokens: &[u32]) -> String {
        match &self.0 {
            Tokens::Bytes => {
                // No byte of UTF-8 is 0xff.
                let byte = |&token: &u32| u8::try_from(token).unwrap_or(u8::MAX);
                let bytes = tokens.iter().map(byte).collect::<Vec<_>>();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Tokens::Characters(characters) => {
                let character = |&token: &u32| characters.get(token as usize).copied();
                let shown = |token| character(token).unwrap_or(char::REPLACEMENT_CHARACTER);
                tokens.iter().map(shown).collect()
            }
        }
    }
}
