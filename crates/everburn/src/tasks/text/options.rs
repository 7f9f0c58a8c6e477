//! The section `[text]`: how a text model reads, and what a run remembers of it.

use everburn_datasets::{ChatTemplate, ShardsRecord, Tokenizer, TokenizerKind};
use everburn_train::TaskError;
use serde::{Deserialize, Serialize};

use super::special_tokens::SpecialTokens;

/// How a text model reads, and shows what it writes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TextOptions {
    pub(super) tokenizer: TokenizerKind,
    /// SHA-256 of the tokenizer's file, if it is from one.
    pub(super) tokenizer_hash: Option<String>,
    /// The characters that the tokenizer knows; those of the text if absent.
    pub(super) alphabet: Option<String>,
    /// A sample is written every N steps, besides after each epoch.
    pub(super) sample_every: Option<usize>,
    /// How many tokens a window of the text has; as many as the model can see if absent.
    pub(super) window: Option<usize>,
    /// Whether instructions that are longer than a window are cut; else they are refused.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) truncate: bool,
    /// How messages become text, if the run reads instructions.
    pub(super) template: Option<ChatTemplate>,
    /// The special tokens that a pretrained model came with, and that an export gives back.
    #[serde(skip_serializing_if = "SpecialTokens::is_none")]
    pub(super) special_tokens: SpecialTokens,
    /// Those of its `generation_config.json`, if it had one.
    pub(super) generation_tokens: Option<SpecialTokens>,
    /// Which files of tokens the run reads, if it reads such.
    pub(super) shards: Option<ShardsRecord>,
}

impl TextOptions {
    /// Keeps the hash of the tokenizer's file, and refuses another file than before.
    pub(super) fn pin(&mut self, tokenizer: Option<&Tokenizer>) -> Result<(), TaskError> {
        let found = tokenizer.and_then(Tokenizer::file_hash).map(str::to_owned);
        if self.tokenizer_hash.is_some() && self.tokenizer_hash != found {
            return Err(TaskError::new(format!(
                "the tokenizer {} has changed since the run began",
                self.tokenizer
            ))
            .with_help(
                "name the run's own tokenizer: its SHA-256 is text.tokenizer_hash in config.toml",
            ));
        }
        self.tokenizer_hash = found;
        Ok(())
    }

    /// Keeps what tells the files of tokens at `data` from others, and refuses others than before.
    pub(super) fn pin_shards(
        &mut self,
        data: &str,
        found: Option<ShardsRecord>,
    ) -> Result<(), TaskError> {
        if let Some(begun) = &self.shards
            && found.as_ref() != Some(begun)
        {
            let found = match &found {
                None => "is no folder of tokens".to_owned(),
                Some(found) if found.to_string() == begun.to_string() => {
                    format!("has {found}, which are not the same")
                }
                Some(found) => format!("has {found}"),
            };
            return Err(
                TaskError::new(format!("the run began with {begun}, and {data} {found}"))
                    .with_help(
                        "a run continues with its own data; for others, start a new one with --init-from",
                    ),
            );
        }
        self.shards = found;
        Ok(())
    }
}
