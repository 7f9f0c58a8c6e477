//! Text, cut into windows of tokens.

#[cfg(feature = "tensors")]
mod batcher;
mod dataset;
mod source;
mod tokenizer;
mod tokenizer_file;

#[cfg(feature = "tensors")]
pub use batcher::TextBatcher;
pub use dataset::{TextDataset, TextItem};
pub use source::{LoadedText, TextRequest, load_text, load_text_in};
pub use tokenizer::{Tokenizer, TokenizerKind, UnknownTokenizer};
