//! Text, cut into windows of tokens, and instructions.

#[cfg(feature = "tensors")]
mod batcher;
mod dataset;
mod documents;
mod instructions;
mod request;
mod shards;
mod source;
mod tokenize;
mod tokenizer;
mod tokenizer_file;
mod tokens_folder;
mod train_tokenizer;

#[cfg(feature = "tensors")]
pub use batcher::{MaskedTextBatcher, TextBatcher};
pub use dataset::{TextDataset, TextItem};
pub use documents::Documents;
pub use instructions::{ChatMessage, ChatTemplate};
pub use request::TextRequest;
pub use source::{LoadedText, load_text, load_text_in};
pub use tokenize::{EndOfDocument, TokenizeRequest, Tokenized, tokenize};
pub use tokenizer::{Tokenizer, TokenizerKind, UnknownTokenizer};
pub use train_tokenizer::{TokenizerRequest, train_tokenizer};
