//! How a text model comes from a folder of Hugging Face's transformers, and goes to one.

use std::path::Path;

use everburn_datasets::{Tokenizer, TokenizerKind};
use everburn_train::{Patterns, Pretrained, StateDictLayout, TaskError};
use serde_json::{Value, json};

use super::options::TextOptions;
use super::special_tokens::SpecialTokens;
use super::{DataConfig, PretrainedDecoder, Text, TextConfig, numbers};
use crate::tasks::json_keys::read_json;

/// The most tokens of a window for a pretrained model, unless the user says otherwise.
const PRETRAINED_WINDOW: usize = 1024;

/// The file by which transformers know how a model writes.
const GENERATION: &str = "generation_config.json";

impl<C: PretrainedDecoder> Pretrained for Text<C> {
    fn adopt(
        &self,
        folder: &Path,
        config_json: &Value,
        _skip: &Patterns,
    ) -> Result<Option<TextConfig>, TaskError> {
        let adopted = match self.pretrained {
            true => C::adopt(config_json)?,
            false => None,
        };
        let Some(numbers) = adopted else {
            return Ok(None);
        };
        let own = numbers::to_section(&numbers)?;
        let folder = std::path::absolute(folder)?;
        let generation = read_json(&folder, GENERATION)?;
        Ok(Some(TextConfig {
            data: DataConfig::default(),
            text: TextOptions {
                tokenizer: TokenizerKind::of_pretrained(&folder).unwrap_or_default(),
                window: Some(numbers.context().min(PRETRAINED_WINDOW)),
                special_tokens: SpecialTokens::of_json(config_json),
                generation_tokens: generation.as_ref().map(SpecialTokens::of_json),
                ..TextOptions::default()
            },
            models: [(C::SECTION.to_string(), own)].into(),
        }))
    }

    fn config_json(&self, config: &TextConfig) -> Result<Value, TaskError> {
        let mut json = self.numbers(config)?.config_json()?;
        let tokenizer = config.exported_tokenizer()?;
        let tokens = config.text.special_tokens.clone();
        config.completed(tokens, tokenizer.as_ref()).put(&mut json);
        Ok(json)
    }

    fn files_beside(&self, config: &TextConfig) -> Result<Vec<(String, Vec<u8>)>, TaskError> {
        let tokenizer = config.exported_tokenizer()?;
        let mut files = match &tokenizer {
            Some(tokenizer) => tokenizer.pretrained_files()?,
            None => Vec::new(),
        };
        if let Some(generation) = &config.text.generation_tokens {
            let mut json = json!({});
            let tokens = config.completed(generation.clone(), tokenizer.as_ref());
            tokens.put(&mut json);
            files.push((GENERATION.to_string(), bytes_of(&json)));
        }
        let Some(tokenizer) = tokenizer else {
            return Ok(files);
        };
        let has_settings = files
            .iter()
            .any(|(name, _)| name == Tokenizer::SETTINGS_FILE);
        if !has_settings && !files.is_empty() {
            let tokens = config.text.special_tokens.clone();
            let tokens = config.completed(tokens, Some(&tokenizer));
            let mut json = json!({
                "tokenizer_class": "PreTrainedTokenizerFast",
                "model_max_length": self.context(config),
                "clean_up_tokenization_spaces": false,
            });
            for (name, token) in tokens.first_of_each() {
                json[name] = json!(tokenizer.decode(&[token]));
            }
            files.push((Tokenizer::SETTINGS_FILE.to_string(), bytes_of(&json)));
        }
        Ok(files)
    }

    fn layout(&self, config: &TextConfig) -> StateDictLayout {
        // What cannot be built was refused.
        let numbers = self.numbers(config);
        numbers.map_or_else(|_| StateDictLayout::default(), |numbers| numbers.layout())
    }
}

impl TextConfig {
    /// The tokenizer that goes with the model to transformers: that of a file, if the file is still there.
    fn exported_tokenizer(&self) -> Result<Option<Tokenizer>, TaskError> {
        match &self.text.tokenizer {
            TokenizerKind::File(path) if path.exists() => self.tokenizer(),
            _ => Ok(None),
        }
    }

    /// The numbers of special tokens, with those that the run's tokenizer knows. Where answers have learned to end with a
    /// token, that is the end.
    fn completed(&self, tokens: SpecialTokens, tokenizer: Option<&Tokenizer>) -> SpecialTokens {
        let Some(tokenizer) = tokenizer else {
            return tokens;
        };
        let template = self.text.template.as_ref();
        let end = template.and_then(|template| tokenizer.token(template.end.trim()));
        tokens.completed(tokenizer, end)
    }
}

/// A JSON file.
fn bytes_of(json: &Value) -> Vec<u8> {
    format!("{json:#}\n").into_bytes()
}
