//! How many bytes a token has.

use std::fmt;

/// Tokens of 16 or 32 bits, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenWidth {
    U16,
    U32,
}

impl TokenWidth {
    /// The smaller one that has room for `vocabulary` different tokens.
    pub(crate) fn of_vocabulary(vocabulary: usize) -> Self {
        match vocabulary as u64 <= Self::U16.most() {
            true => Self::U16,
            false => Self::U32,
        }
    }

    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::U16 => 2,
            Self::U32 => 4,
        }
    }

    /// How many different tokens there can be.
    pub(crate) fn most(self) -> u64 {
        1 << (8 * self.bytes())
    }

    /// The tokens in `bytes`; a part of one at the end is left out.
    pub(crate) fn decode(self, bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
        bytes.chunks_exact(self.bytes()).map(|token| match *token {
            [a, b] => u32::from(u16::from_le_bytes([a, b])),
            [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
            _ => unreachable!("a token has two or four bytes"),
        })
    }

    /// The bytes of `tokens`, each of which fits.
    pub(crate) fn encode(self, tokens: &[u32]) -> Vec<u8> {
        let tokens = tokens.iter();
        match self {
            Self::U16 => tokens
                .flat_map(|token| (*token as u16).to_le_bytes())
                .collect(),
            Self::U32 => tokens.flat_map(|token| token.to_le_bytes()).collect(),
        }
    }
}

impl fmt::Display for TokenWidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bits", 8 * self.bytes())
    }
}
