//! Windows of a text, and instructions.

use std::ops::Range;
use std::sync::Arc;

use burn_dataset::Dataset;
use sha2::{Digest, Sha256};

use crate::{DatasetError, TokenShards};

/// A text as windows of `context + 1` tokens. Each begins with the last token of the one before, so
/// that every token but the first is predicted once. What does not fill a window is left out.
/// Cloning shares the text. The tokens are in memory, or in files: see [`of_shards`](Self::of_shards).
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::TextDataset;
///
/// let text = TextDataset::new(vec![0, 1, 2, 3, 4, 5, 6, 7], 3);
/// assert_eq!(text.len(), 2);
/// assert_eq!(text.window(0)?, [0, 1, 2, 3]);
/// assert_eq!(text.window(1)?, [3, 4, 5, 6]);
/// assert_eq!(text.first(1).len(), 1);
/// # Ok::<(), everburn_datasets::DatasetError>(())
/// ```
#[derive(Clone)]
pub struct TextDataset {
    tokens: Arc<Tokens>,
    /// The part of `tokens` that is this text.
    range: Range<usize>,
    context: usize,
}

/// Where the tokens of a text are.
enum Tokens {
    Memory(Vec<u32>),
    Shards(TokenShards),
    /// Each item by itself: there are no windows.
    Items(Vec<TextItem>),
}

/// A window of a text, as [`burn_dataset::Dataset`] hands it to a batcher.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use burn_dataset::Dataset;
/// use everburn::datasets::{TextDataset, TextItem};
///
/// let text = TextDataset::new(vec![5, 6, 7], 2);
/// assert_eq!(text.get(0).unwrap(), TextItem::new(vec![5, 6, 7]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextItem {
    /// One token more than the model sees: the last is what follows.
    pub tokens: Vec<u32>,
    /// Which of the tokens are predicted: those of answers. All, if absent; the first never is.
    pub mask: Option<Vec<bool>>,
}

impl TextItem {
    /// Tokens of which all but the first are predicted.
    pub fn new(tokens: Vec<u32>) -> Self {
        Self { tokens, mask: None }
    }

    /// The same, of which only those tokens are predicted for which `mask` is true.
    ///
    /// ```
    /// # mod everburn { pub use everburn_datasets as datasets; }
    /// use everburn::datasets::TextItem;
    ///
    /// let item = TextItem::new(vec![5, 6, 7]).masked(vec![false, false, true]);
    /// assert_eq!(item.predictions(), 1);
    /// ```
    ///
    /// # Panics
    /// If there are not as many as tokens.
    #[must_use]
    pub fn masked(self, mask: Vec<bool>) -> Self {
        assert_eq!(self.tokens.len(), mask.len(), "a mask has a place a token");
        Self {
            mask: Some(mask),
            ..self
        }
    }

    /// How many of its tokens are predicted.
    pub fn predictions(&self) -> usize {
        let behind = self.tokens.len().saturating_sub(1);
        match &self.mask {
            None => behind,
            Some(mask) => mask.iter().skip(1).filter(|counts| **counts).count(),
        }
    }
}

impl TextDataset {
    /// Cuts `tokens` into windows in which `context` tokens are predicted.
    ///
    /// # Panics
    /// If `context` is 0.
    pub fn new(tokens: Vec<u32>, context: usize) -> Self {
        Self::of(Tokens::Memory(tokens), context)
    }

    /// As [`new`](Self::new), with tokens in files: a window is read when it is asked for, so that a text may be larger
    /// than memory.
    ///
    /// ```
    /// # mod everburn { pub use everburn_datasets as datasets; }
    /// use everburn::datasets::{TextDataset, TokenFormat, TokenShards};
    ///
    /// let folder = tempfile::tempdir()?;
    /// let file = folder.path().join("train.bin");
    /// std::fs::write(&file, [0_u16, 1, 2, 3, 4].map(u16::to_le_bytes).concat())?;
    /// let shards = TokenShards::open(&[file], TokenFormat::NanoGpt)?;
    /// assert_eq!(TextDataset::of_shards(shards, 2).window(1)?, [2, 3, 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// If `context` is 0.
    pub fn of_shards(shards: TokenShards, context: usize) -> Self {
        Self::of(Tokens::Shards(shards), context)
    }

    /// Items of their own in place of windows, each of at most `context + 1` tokens: instructions, say.
    ///
    /// # Panics
    /// If `context` is 0, or an item has more tokens.
    pub fn of_items(items: Vec<TextItem>, context: usize) -> Self {
        let fit = items.iter().all(|item| item.tokens.len() <= context + 1);
        assert!(fit, "an item has more than {} tokens", context + 1);
        Self::of(Tokens::Items(items), context)
    }

    fn of(tokens: Tokens, context: usize) -> Self {
        assert!(context > 0, "a window needs a token to predict");
        let count = match &tokens {
            Tokens::Memory(tokens) => tokens.len(),
            Tokens::Shards(shards) => shards.tokens(),
            Tokens::Items(items) => items.len(),
        };
        Self {
            range: 0..count,
            tokens: Arc::new(tokens),
            context,
        }
    }

    /// The part before and the part from token `at`, or item `at`; they share the text.
    pub(super) fn split(self, at: usize) -> [Self; 2] {
        let part = |range| Self {
            range,
            ..self.clone()
        };
        [part(0..at), part(at..self.range.end)]
    }

    /// The number of windows, or of items.
    pub fn len(&self) -> usize {
        match &*self.tokens {
            Tokens::Items(_) => self.range.len(),
            _ => self.range.len().saturating_sub(1) / self.context,
        }
    }

    /// Whether the text does not fill a window.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many tokens are predicted in a window; the most in an item.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The `context + 1` tokens of window `index`, or those of item `index`.
    ///
    /// # Errors
    /// Those of [`TokenShards::read`], where the tokens are in files.
    ///
    /// # Panics
    /// If `index >= len()`, as a slice would.
    pub fn window(&self, index: usize) -> Result<Vec<u32>, DatasetError> {
        assert!(index < self.len(), "window {index} of {}", self.len());
        let start = self.range.start + index * self.context;
        let window = start..start + self.context + 1;
        match &*self.tokens {
            Tokens::Memory(tokens) => Ok(tokens[window].to_vec()),
            Tokens::Shards(shards) => shards.read(window),
            Tokens::Items(items) => Ok(items[self.range.start + index].tokens.clone()),
        }
    }

    /// The first `count` windows (all of them if there are fewer), without a copy.
    #[must_use]
    pub fn first(&self, count: usize) -> Self {
        let tokens = match &*self.tokens {
            Tokens::Items(_) => count,
            _ => self.len().min(count) * self.context + 1,
        };
        let end = self.range.start + tokens.min(self.range.len());
        Self {
            range: self.range.start..end,
            ..self.clone()
        }
    }

    /// SHA-256 of the windows' length and of all tokens, in hexadecimal: equal exactly for equal data. Of tokens in files,
    /// of these files instead: see [`TokenShards::fingerprint`].
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        hash.update((self.context as u64).to_le_bytes());
        match &*self.tokens {
            Tokens::Memory(tokens) => {
                for token in &tokens[self.range.clone()] {
                    hash.update(token.to_le_bytes());
                }
            }
            Tokens::Shards(shards) => {
                let Range { start, end } = self.range;
                for bound in [start, end] {
                    hash.update((bound as u64).to_le_bytes());
                }
                hash.update(shards.fingerprint());
            }
            Tokens::Items(items) => {
                for TextItem { tokens, mask } in &items[self.range.clone()] {
                    hash.update((tokens.len() as u64).to_le_bytes());
                    for (place, token) in tokens.iter().enumerate() {
                        let counts = mask.as_ref().is_none_or(|mask| mask[place]);
                        hash.update(token.to_le_bytes());
                        hash.update([u8::from(counts)]);
                    }
                }
            }
        }
        format!("{:x}", hash.finalize())
    }
}

debug_by!(TextDataset, it => len: it.len(), context: it.context);

impl Dataset<TextItem> for TextDataset {
    fn get(&self, index: usize) -> Result<TextItem, burn_dataset::DatasetError> {
        if let Tokens::Items(items) = &*self.tokens {
            return Ok(items[self.range.clone()][index].clone());
        }
        let tokens = self.window(index);
        let tokens = tokens.map_err(burn_dataset::DatasetError::new)?;
        Ok(TextItem::new(tokens))
    }

    fn len(&self) -> usize {
        self.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_predict_each_token_but_the_first_once_and_leave_out_the_rest() {
        for (tokens, context) in [(0, 1), (1, 1), (2, 1), (7, 3), (8, 3), (10, 3), (100, 7)] {
            let text = TextDataset::new((0..tokens).collect(), context);
            let predicted =
                (0..text.len()).flat_map(|index| text.window(index).unwrap()[1..].to_vec());
            let predicted = predicted.collect::<Vec<_>>();
            let count = (tokens.max(1) - 1) as usize / context * context;
            assert_eq!(predicted, (1..=count as u32).collect::<Vec<_>>());
        }
    }

    #[test]
    fn both_parts_of_a_split_and_the_first_windows_share_the_text() {
        let [front, back] = TextDataset::new((0..20).collect(), 4).split(10);
        assert_eq!((front.len(), back.len()), (2, 2));
        assert_eq!(back.window(0).unwrap(), [10, 11, 12, 13, 14]);
        assert!(Arc::ptr_eq(&front.tokens, &back.tokens));
        let one = back.first(1);
        assert_eq!(
            (one.len(), back.first(9).len(), back.first(0).len()),
            (1, 2, 0)
        );
        assert_eq!(one.window(0).unwrap(), back.window(0).unwrap());
        assert_ne!(one.fingerprint(), back.fingerprint());
        assert_ne!(front.fingerprint(), back.fingerprint());
    }
}
