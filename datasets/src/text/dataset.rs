//! Windows of a text.

use std::ops::Range;
use std::sync::Arc;

use burn_dataset::Dataset;
use sha2::{Digest, Sha256};

/// A text as windows of `context + 1` tokens. Each begins with the last token of the one before, so
/// that every token but the first is predicted once. What does not fill a window is left out.
/// Cloning shares the text.
///
/// ```
/// use everburn_datasets::TextDataset;
///
/// let text = TextDataset::new(vec![0, 1, 2, 3, 4, 5, 6, 7], 3);
/// assert_eq!(text.len(), 2);
/// assert_eq!(text.window(0), [0, 1, 2, 3]);
/// assert_eq!(text.window(1), [3, 4, 5, 6]);
/// assert_eq!(text.first(1).len(), 1);
/// ```
#[derive(Clone)]
pub struct TextDataset {
    tokens: Arc<Vec<u32>>,
    /// The part of `tokens` that is this text.
    range: Range<usize>,
    context: usize,
}

/// A window of a text, as [`burn_dataset::Dataset`] hands it to a batcher.
///
/// ```
/// use burn_dataset::Dataset;
/// use everburn_datasets::{TextDataset, TextItem};
///
/// let text = TextDataset::new(vec![5, 6, 7], 2);
/// assert_eq!(text.get(0).unwrap(), TextItem { tokens: vec![5, 6, 7] });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextItem {
    /// One token more than the model sees: the last is what follows.
    pub tokens: Vec<u32>,
}

impl TextDataset {
    /// Cuts `tokens` into windows in which `context` tokens are predicted.
    ///
    /// # Panics
    /// If `context` is 0.
    pub fn new(tokens: Vec<u32>, context: usize) -> Self {
        assert!(context > 0, "a window needs a token to predict");
        Self {
            range: 0..tokens.len(),
            tokens: Arc::new(tokens),
            context,
        }
    }

    /// The part before and the part from token `at`; they share the text.
    pub(super) fn split(self, at: usize) -> [Self; 2] {
        let part = |range| Self {
            range,
            ..self.clone()
        };
        [part(0..at), part(at..self.range.end)]
    }

    /// The number of windows.
    pub fn len(&self) -> usize {
        self.range.len().saturating_sub(1) / self.context
    }

    /// Whether the text does not fill a window.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many tokens are predicted in a window.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The `context + 1` tokens of window `index`.
    ///
    /// # Panics
    /// If `index >= len()`, as a slice would.
    pub fn window(&self, index: usize) -> &[u32] {
        assert!(index < self.len(), "window {index} of {}", self.len());
        let start = self.range.start + index * self.context;
        &self.tokens[start..=start + self.context]
    }

    /// The first `count` windows (all of them if there are fewer), without a copy.
    #[must_use]
    pub fn first(&self, count: usize) -> Self {
        let tokens = self.len().min(count) * self.context + 1;
        let end = self.range.start + tokens.min(self.range.len());
        Self {
            range: self.range.start..end,
            ..self.clone()
        }
    }

    /// SHA-256 of the windows' length and of all tokens, in hexadecimal: equal exactly for equal data.
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        hash.update((self.context as u64).to_le_bytes());
        for token in &self.tokens[self.range.clone()] {
            hash.update(token.to_le_bytes());
        }
        format!("{:x}", hash.finalize())
    }
}

impl std::fmt::Debug for TextDataset {
    // The derived form would print millions of tokens.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TextDataset")
            .field("len", &self.len())
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

impl Dataset<TextItem> for TextDataset {
    fn get(&self, index: usize) -> Result<TextItem, burn_dataset::DatasetError> {
        Ok(TextItem {
            tokens: self.window(index).to_vec(),
        })
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
            let predicted = (0..text.len()).flat_map(|index| text.window(index)[1..].to_vec());
            let predicted = predicted.collect::<Vec<_>>();
            let count = (tokens.max(1) - 1) as usize / context * context;
            assert_eq!(predicted, (1..=count as u32).collect::<Vec<_>>());
        }
    }

    #[test]
    fn both_parts_of_a_split_and_the_first_windows_share_the_text() {
        let [front, back] = TextDataset::new((0..20).collect(), 4).split(10);
        assert_eq!((front.len(), back.len()), (2, 2));
        assert_eq!(back.window(0), [10, 11, 12, 13, 14]);
        assert!(std::ptr::eq(front.tokens.as_ptr(), back.tokens.as_ptr()));
        let one = back.first(1);
        assert_eq!(
            (one.len(), back.first(9).len(), back.first(0).len()),
            (1, 2, 0)
        );
        assert_eq!(one.window(0), back.window(0));
        assert_ne!(one.fingerprint(), back.fingerprint());
        assert_ne!(front.fingerprint(), back.fingerprint());
    }
}
