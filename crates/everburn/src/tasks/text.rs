//! Models that predict the next token of a text.

mod hugging_face;
mod options;
mod pretrained;
mod special_tokens;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::prelude::*;
use everburn_datasets::{
    DataChoice, DataKind, LoadedText, MaskedTextBatcher, TextItem, TextRequest, TokenFormat,
    Tokenizer, TokenizerKind, detect_for, is_url,
};
use everburn_models::decoder::{Decoder, DecoderConfig, KeyValueCache};
use everburn_train::{
    BlocksOf, Conversation, DataFingerprint, Language, Loss, MaskedNextToken, MaskedTextBatch,
    OnDevice, PretrainedFormat, Task, TaskData, TaskError, TrainingData, block_loss,
};
use serde::{Deserialize, Serialize};
use toml::Table;

pub use self::hugging_face::PretrainedDecoder;
use self::options::TextOptions;
use super::{DataConfig, check_dropout_over_ranks, numbers};

/// The most tokens that are read at once where no gradients are needed: the scores of more would fill the memory.
const EVALUATION_TOKENS: usize = 16_384;

/// What `--data` says before the path of a file without a header that is nanoGPT's.
const NANOGPT: &str = "nanogpt:";

/// A text, continued by a decoder: a [`Gpt`](everburn_models::gpt::Gpt) or a
/// [`Llama`](everburn_models::llama::Llama).
///
/// ```
/// use everburn::models::gpt::GptConfig;
/// use everburn::prelude::*;
/// use everburn::tasks::Text;
///
/// let small = Text::new("a small GPT", GptConfig::new(256).with_layers(2));
/// let app = App::new().task("gpt-small", small);
/// ```
pub struct Text<C> {
    summary: &'static str,
    model: C,
    preset: Table,
    pretrained: bool,
}

impl<C: DecoderConfig> Text<C> {
    /// A task with this line in `train --list`, for a model of these numbers.
    pub fn new(summary: &'static str, model: C) -> Self {
        Self {
            summary,
            model,
            preset: Table::new(),
            pretrained: false,
        }
    }

    /// The same, which takes pretrained models of its kind and any size: `--init-from FOLDER`.
    #[must_use]
    pub fn with_pretrained(self) -> Self {
        Self {
            pretrained: true,
            ..self
        }
    }

    /// The same with settings of a run that suit the model.
    #[must_use]
    pub fn with_preset(self, preset: Table) -> Self {
        Self { preset, ..self }
    }

    /// The preset with the user's numbers. It may be one that cannot be built: see [`DecoderConfig::check`].
    ///
    /// # Errors
    /// If a number is unknown, or no such number.
    fn numbers(&self, config: &TextConfig) -> Result<C, TaskError> {
        let section = C::SECTION;
        numbers::with_own(&self.model, section, config.models.get(section))
    }

    /// The longest text that the model of these settings sees at once.
    fn context(&self, config: &TextConfig) -> usize {
        // What cannot be built was refused.
        self.numbers(config).map_or(1, |numbers| numbers.context())
    }

    /// The tokens of a window of the data.
    fn window(&self, config: &TextConfig) -> usize {
        config.text.window.unwrap_or_else(|| self.context(config))
    }
}

/// The settings of a text model.
///
/// ```
/// use everburn::tasks::TextConfig;
///
/// // In `config.toml` it is the sections `[data]` and `[text]`, and one of the model.
/// let config: TextConfig = toml::from_str("[data]\nname = 'tinyshakespeare'").unwrap();
/// ```
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TextConfig {
    data: DataConfig,
    #[serde(skip_serializing_if = "crate::tasks::is_default")]
    text: TextOptions,
    /// The numbers of the model that are not the preset's, in the section of its kind.
    #[serde(flatten)]
    models: BTreeMap<String, Table>,
}

impl TextConfig {
    /// How many tokens the model knows, if that has been decided.
    fn vocabulary(&self, section: &str) -> Option<usize> {
        let own = self.models.get(section)?.get("vocabulary")?;
        own.as_integer()?.try_into().ok()
    }

    /// The tokenizer of the run; `None` if it learns from numbers, and nobody knows what they stand for.
    fn tokenizer(&self) -> Result<Option<Tokenizer>, TaskError> {
        Ok(Some(match (&self.text.tokenizer, &self.text.alphabet) {
            (TokenizerKind::File(path), _) => {
                let tokenizer = Tokenizer::from_file(path)?;
                self.text.clone().pin(Some(&tokenizer))?;
                tokenizer
            }
            (TokenizerKind::Byte, _) => Tokenizer::of_bytes(),
            (TokenizerKind::Char, Some(alphabet)) => Tokenizer::of_alphabet(alphabet)?,
            (TokenizerKind::Char, None) if self.text.shards.is_some() => return Ok(None),
            (TokenizerKind::Char, None) => {
                return Err(TaskError::new(
                    "the run's config.toml does not list the characters of its tokenizer",
                ));
            }
        }))
    }

    /// Refuses a tokenizer with more tokens than the model of `section` has.
    fn check_vocabulary(&self, section: &str, tokenizer: &Tokenizer) -> Result<(), TaskError> {
        let has = tokenizer.vocabulary();
        match self.vocabulary(section) {
            Some(known) if has > known => Err(TaskError::new(format!(
                "the tokenizer has {has} tokens, and the model {known}: it is of another model"
            ))),
            _ => Ok(()),
        }
    }

    /// Keeps what the text decides: a model is always read with the tokenizer that it was trained with. A model may know
    /// more tokens than the tokenizer has.
    fn keep(&mut self, section: &str, loaded: &LoadedText) -> Result<(), TaskError> {
        let tokenizer = loaded.tokenizer.as_ref();
        self.text.alphabet = tokenizer.and_then(Tokenizer::alphabet);
        self.text.tokenizer = loaded.kind.clone();
        self.text.pin(tokenizer)?;
        self.text.template.clone_from(&loaded.template);
        self.text
            .pin_shards(&self.data.name, loaded.shards.clone())?;
        let known = self.vocabulary(section).unwrap_or(0);
        let vocabulary = toml::Value::try_from(loaded.vocabulary.max(known))
            .map_err(|error| TaskError::new(error.to_string()))?;
        let own = self.models.entry(section.to_string()).or_default();
        own.insert("vocabulary".to_string(), vocabulary);
        Ok(())
    }
}

impl DataConfig {
    /// What the name says: a set, or what is at a path, which is made absolute, so that the run finds it from any
    /// working directory.
    fn resolve(&mut self) -> Result<(DataChoice, Option<PathBuf>, TokenFormat), TaskError> {
        if let Some(path) = self.name.strip_prefix(NANOGPT) {
            let path = std::path::absolute(path)?;
            self.name = format!("{NANOGPT}{}", path.display());
            return Ok((DataChoice::Auto, Some(path), TokenFormat::NanoGpt));
        }
        match self.choice() {
            Ok(choice) => Ok((choice, None, TokenFormat::Detect)),
            Err(_) if is_url(&self.name) || Path::new(&self.name).exists() => {
                detect_for(&self.name, &[DataKind::Text, DataKind::Tokens], "text")?;
                let path = std::path::absolute(&self.name)?;
                self.name = path.display().to_string();
                Ok((DataChoice::Auto, Some(path), TokenFormat::Detect))
            }
            Err(_) => Err(TaskError::new(format!(
                "there is no text called `{0}`, and no file or folder {0}",
                self.name
            ))
            .with_help(
                "name a text file, a file of tokens or a folder of these; or tinyshakespeare, or embedded",
            )),
        }
    }
}

impl<C: PretrainedDecoder> Text<C> {
    fn read_data(
        &self,
        config: &mut TextConfig,
        only_test: bool,
    ) -> Result<TaskData<TextItem, MaskedTextBatch>, TaskError> {
        if !config.data.augment.is_none() {
            return Err(TaskError::new(
                "data.augment changes images, and this model reads text",
            ));
        }
        let (choice, file, format) = config.data.resolve()?;
        if let TokenizerKind::File(path) = &mut config.text.tokenizer {
            *path = std::path::absolute(&*path)?;
        }
        let mut loaded = everburn_datasets::load_text(&TextRequest {
            choice,
            data_dir: config.data.folder.clone(),
            file,
            format,
            tokenizer: config.text.tokenizer.clone(),
            alphabet: config.text.alphabet.clone(),
            vocabulary: config.vocabulary(C::SECTION),
            context: self.window(config),
            template: config.text.template.clone(),
            truncate: config.text.truncate,
            only_test,
            train_limit: config.data.train_samples,
            test_limit: config.data.test_samples,
        })?;
        config.data.pin(&mut loaded.description);
        config.keep(C::SECTION, &loaded)?;
        let fingerprints = loaded.fingerprints();
        let all = fingerprints.join(" ");
        let [_, of_train, of_test] = fingerprints;
        let description = loaded.description;
        let described = description.to_string();
        let origin = format!("{}: {}", description.origin, description.reason);
        let (train, test) = (loaded.train, loaded.test);
        let data = TrainingData {
            fingerprint: DataFingerprint {
                all,
                train: of_train,
                // Else the test is a part of all.
                test: Some(of_test).filter(|_| only_test).unwrap_or_default(),
            },
            origin,
            ..TrainingData::new(description.name, train, test, MaskedTextBatcher)
        };
        Ok(TaskData {
            description: described,
            class_names: Vec::new(),
            data: match loaded.template {
                Some(_) => data.weighted_by(TextItem::predictions),
                None => data,
            },
        })
    }
}

impl<C: PretrainedDecoder> Task for Text<C> {
    type Config = TextConfig;
    type Model = C::Model;
    type Item = TextItem;
    type Batch = MaskedTextBatch;

    fn model(&self, config: &TextConfig, device: &Device) -> Result<C::Model, TaskError> {
        Ok(self.numbers(config)?.build(device))
    }

    fn data(
        &self,
        config: &mut TextConfig,
    ) -> Result<TaskData<TextItem, MaskedTextBatch>, TaskError> {
        self.read_data(config, false)
    }

    fn test_data(
        &self,
        config: &mut TextConfig,
    ) -> Result<TaskData<TextItem, MaskedTextBatch>, TaskError> {
        self.read_data(config, true)
    }

    fn loss(&self, _config: &TextConfig, model: &C::Model, batch: MaskedTextBatch) -> Loss {
        block_loss::<C::Model, MaskedNextToken>(model, batch)
    }

    fn summary(&self) -> String {
        self.summary.to_string()
    }

    fn input_and_output(&self) -> [String; 2] {
        let input = format!("text, {} tokens", self.context(&TextConfig::default()));
        [input, "tokens of the data".to_owned()]
    }

    fn sections(&self) -> &'static [&'static str] {
        C::TEXT_SECTIONS
    }

    fn local_settings(&self) -> &'static [&'static str] {
        // Of a tokenizer's file, the hash is compared.
        &["data.folder", "data.reason", "text.tokenizer"]
    }

    fn preset(&self) -> Table {
        self.preset.clone()
    }

    fn check(&self, config: &TextConfig) -> Result<(), TaskError> {
        let help = format!(
            "the sizes of the model are in [{}] of the configuration file",
            C::SECTION
        );
        let numbers = self
            .numbers(config)
            .map_err(|error| error.with_help(&*help))?;
        numbers.check().map_err(|error| {
            TaskError::new(format!("the model cannot be built: {error}")).with_help(help)
        })?;
        let window = self.window(config);
        if window == 0 || window > numbers.context() {
            let context = numbers.context();
            return Err(TaskError::new(format!(
                "text.window is {window}, and the model sees 1 to {context} tokens at once"
            ))
            .with_help(format!(
                "leave text.window out, or set at most {context}; a model with a longer context is another one"
            )));
        }
        match config.text.sample_every {
            Some(0) => Err(TaskError::new("--sample-every must be at least 1")),
            _ => Ok(()),
        }
    }

    fn check_tensor_parallel(&self, config: &TextConfig) -> Result<(), TaskError> {
        check_dropout_over_ranks(self.numbers(config)?.dropout(), C::SECTION)
    }

    fn data_decide_model(&self) -> bool {
        true
    }

    fn evaluation_batch(&self, config: &TextConfig) -> usize {
        (EVALUATION_TOKENS / self.window(config)).clamp(1, 1_000)
    }

    fn blocks(&self) -> Option<BlocksOf<Self>> {
        Some(BlocksOf::new::<MaskedNextToken>(
            |task, config, samples, device| Tensor::zeros([samples, task.window(config)], device),
        ))
    }

    fn on_device(&self) -> Option<OnDevice<Self>> {
        Some(OnDevice::by_rows())
    }

    fn pretrained(&self) -> Option<PretrainedFormat<Self>> {
        Some(PretrainedFormat::by_task())
    }

    fn language(&self, config: &TextConfig) -> Result<Option<Language<C::Model>>, TaskError> {
        let Some(tokenizer) = config.tokenizer()? else {
            return Ok(None);
        };
        config.check_vocabulary(C::SECTION, &tokenizer)?;
        let decoder = tokenizer.clone();
        let template = config.text.template.clone();
        Ok(Some(Language {
            conversation: template.map(|template| Conversation {
                end: template.end.clone(),
                remembers: template.messages,
                turn: Arc::new(move |question, first| template.turn(question, first)),
            }),
            context: self.context(config),
            sample_every: config.text.sample_every,
            encode: Arc::new(move |text| Ok(tokenizer.encode(text)?)),
            decode: Arc::new(move |tokens| decoder.decode(tokens)),
            scorer: Arc::new(|model: &C::Model| {
                let mut cache = KeyValueCache::new();
                Box::new(move |tokens, start| {
                    if start == 0 {
                        cache = KeyValueCache::new();
                    }
                    model.forward_cached(tokens, &mut cache)
                })
            }),
        }))
    }
}
