//! Files of tokens: text that is larger than memory, tokenized once.
//!
//! A file has a header and tokens of 16 or 32 bits; several files are one sequence. Three formats are read
//! ([`TokenFormat`]): ours, that of llm.c and modded-nanogpt, and that of nanoGPT, which has no header. Ours is written by
//! [`tokenize`](crate::tokenize), and says in addition which tokenizer made the tokens.
//!
//! Documents are one after the other with a token between them that says so, as in nanoGPT, in llm.c and in Megatron-LM
//! with `--append-eod`: a model learns what the token means, and a window may begin anywhere. An index of documents beside
//! the tokens, which Megatron-LM has too, would only serve attention that ends at documents.
//!
//! Nothing is mapped into memory and nothing is kept: a window is one positioned read, two where it goes over the end of a
//! file. So the memory of a training does not depend on its text, and a file that is cut short under it is an error and
//! no signal.

mod files;
mod header;
mod sequence;
mod shard;
#[cfg(test)]
mod tests;
mod width;
mod writer;

use std::fmt;

pub(crate) use self::files::is_held_out;
pub use self::files::{ShardsRecord, TokenFiles};
pub use self::sequence::TokenShards;
pub(crate) use self::shard::has_header;
pub(crate) use self::width::TokenWidth;
pub(crate) use self::writer::{ShardOptions, ShardWriter};

/// How a file of tokens is laid out.
///
/// ```
/// # mod everburn { pub use everburn_datasets as datasets; }
/// use everburn::datasets::TokenFormat;
///
/// assert_eq!(TokenFormat::LlmC.to_string(), "llm.c");
/// assert_eq!(TokenFormat::default(), TokenFormat::Detect);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TokenFormat {
    /// Whichever the header says; of a folder without headers, nanoGPT's `train.bin` and `val.bin`.
    #[default]
    Detect,
    /// Ours, as `everburn tokenize` writes it.
    Ours,
    /// llm.c's and modded-nanogpt's: 256 numbers of 32 bits, then tokens of 16 bits (GPT-2) or 32 bits (Llama 3).
    LlmC,
    /// nanoGPT's: tokens of 16 bits and nothing else.
    NanoGpt,
}

impl fmt::Display for TokenFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Detect => "any format",
            Self::Ours => "everburn tokenize",
            Self::LlmC => "llm.c",
            Self::NanoGpt => "nanoGPT",
        })
    }
}

/// What made tokens of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MadeBy {
    /// The file does not say.
    Unknown,
    /// Tokens are bytes.
    Bytes,
    /// A tokenizer whose file has this SHA-256, in hexadecimal.
    File(String),
}

impl fmt::Display for MadeBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("a tokenizer that it does not name"),
            Self::Bytes => f.write_str("the tokenizer `byte`"),
            Self::File(hash) => write!(f, "the tokenizer with the SHA-256 {hash}"),
        }
    }
}
