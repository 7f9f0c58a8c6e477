//! Models that predict the next token of a text.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::prelude::*;
use everburn_datasets::{
    DataChoice, LoadedText, ShardsRecord, TextBatcher, TextItem, TextRequest, TokenFormat,
    Tokenizer, TokenizerKind,
};
use everburn_models::gpt::{Gpt, GptConfig, Positions};
use everburn_nn::InBlocks;
use everburn_train::{
    BlocksOf, Language, Loss, NextToken, OnDevice, Task, TaskData, TaskError, TextBatch,
    TrainingData, block_loss,
};
use serde::{Deserialize, Serialize};
use toml::Table;

use super::DataConfig;

/// The most tokens that are read at once where no gradients are needed: the scores of more would fill the memory.
const EVALUATION_TOKENS: usize = 16_384;

/// What `--data` says before the path of a file without a header that is nanoGPT's.
const NANOGPT: &str = "nanogpt:";

/// A text, continued by a GPT.
pub struct Text {
    summary: &'static str,
    model: GptConfig,
    preset: Table,
}

impl Text {
    /// A task with this line in `train --list`, for a model of these numbers.
    pub fn new(summary: &'static str, model: GptConfig) -> Self {
        Self {
            summary,
            model,
            preset: Table::new(),
        }
    }

    /// The same with settings of a run that suit the model.
    #[must_use]
    pub fn with_preset(self, preset: Table) -> Self {
        Self { preset, ..self }
    }

    /// The preset with the user's numbers. It may be one that cannot be built: see [`GptConfig::check`].
    fn gpt(&self, config: &TextConfig) -> GptConfig {
        let (own, preset) = (&config.gpt, self.model.clone());
        GptConfig {
            vocabulary: own.vocabulary.unwrap_or(preset.vocabulary),
            context: own.context.unwrap_or(preset.context),
            width: own.width.unwrap_or(preset.width),
            layers: own.layers.unwrap_or(preset.layers),
            heads: own.heads.unwrap_or(preset.heads),
            dropout: own.dropout.unwrap_or(preset.dropout),
            positions: own.positions.unwrap_or(preset.positions),
            deviation: own.deviation.unwrap_or(preset.deviation),
        }
    }
}

/// The settings of a model of text.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TextConfig {
    data: DataConfig,
    #[serde(skip_serializing_if = "is_default")]
    text: TextOptions,
    #[serde(skip_serializing_if = "is_default")]
    gpt: GptOptions,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl TextConfig {
    /// Keeps what the text decides: a model is always read with the tokenizer that it was trained with.
    fn keep(&mut self, loaded: &LoadedText) -> Result<(), TaskError> {
        let tokenizer = loaded.tokenizer.as_ref();
        self.text.alphabet = tokenizer.and_then(Tokenizer::alphabet);
        self.text.tokenizer = loaded.kind.clone();
        self.text.pin(tokenizer)?;
        self.text
            .pin_shards(&self.data.name, loaded.shards.clone())?;
        self.gpt.vocabulary = Some(loaded.vocabulary);
        Ok(())
    }
}

impl DataConfig {
    /// What the name says: a set, or what lies at a path, which is made absolute, so that the run finds it from any
    /// working directory.
    fn resolve(&mut self) -> Result<(DataChoice, Option<PathBuf>, TokenFormat), TaskError> {
        if let Some(path) = self.name.strip_prefix(NANOGPT) {
            let path = std::path::absolute(path)?;
            self.name = format!("{NANOGPT}{}", path.display());
            return Ok((DataChoice::Auto, Some(path), TokenFormat::NanoGpt));
        }
        match self.choice() {
            Ok(choice) => Ok((choice, None, TokenFormat::Detect)),
            Err(_) if Path::new(&self.name).exists() => {
                let path = std::path::absolute(&self.name)?;
                self.name = path.display().to_string();
                Ok((DataChoice::Auto, Some(path), TokenFormat::Detect))
            }
            Err(unknown) => Err(unknown.with_help(
                "or name a text file, a file of tokens or a folder of these: nothing is there",
            )),
        }
    }
}

/// How a model of text reads, and shows what it writes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct TextOptions {
    tokenizer: TokenizerKind,
    /// SHA-256 of the tokenizer's file, if it is from one.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokenizer_hash: Option<String>,
    /// The characters that the tokenizer knows; those of the text if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    alphabet: Option<String>,
    /// A sample is written every so many steps, besides after each epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    sample_every: Option<usize>,
    /// Which files of tokens the run reads, if it reads such.
    #[serde(skip_serializing_if = "Option::is_none")]
    shards: Option<ShardsRecord>,
}

impl TextOptions {
    /// Keeps the hash of the tokenizer's file, and refuses another file than before.
    fn pin(&mut self, tokenizer: Option<&Tokenizer>) -> Result<(), TaskError> {
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
    fn pin_shards(&mut self, data: &str, found: Option<ShardsRecord>) -> Result<(), TaskError> {
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
                        "a run goes on with its own data; for others, begin one with --init-from",
                    ),
            );
        }
        self.shards = found;
        Ok(())
    }
}

/// The numbers of a [`GptConfig`] that are not the preset's.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct GptOptions {
    /// How many different tokens there are; the data decide it.
    #[serde(skip_serializing_if = "Option::is_none")]
    vocabulary: Option<usize>,
    /// The longest text that the model sees at once, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<usize>,
    /// The length of a token's vector.
    #[serde(skip_serializing_if = "Option::is_none")]
    width: Option<usize>,
    /// How many layers there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    layers: Option<usize>,
    /// How many heads the attention of a layer has.
    #[serde(skip_serializing_if = "Option::is_none")]
    heads: Option<usize>,
    /// The share of activations that dropout sets to zero.
    #[serde(skip_serializing_if = "Option::is_none")]
    dropout: Option<f64>,
    /// How the model knows positions.
    #[serde(skip_serializing_if = "Option::is_none")]
    positions: Option<Positions>,
    /// The standard deviation of the initial weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    deviation: Option<f64>,
}

impl Task for Text {
    type Config = TextConfig;
    type Model = Gpt;
    type Item = TextItem;
    type Batch = TextBatch;

    fn model(&self, config: &TextConfig, device: &Device) -> Result<Gpt, TaskError> {
        Ok(self.gpt(config).init(device))
    }

    fn data(&self, config: &mut TextConfig) -> Result<TaskData<TextItem, TextBatch>, TaskError> {
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
            vocabulary: config.gpt.vocabulary,
            context: self.gpt(config).context,
            train_limit: config.data.train_samples,
            test_limit: config.data.test_samples,
        })?;
        config.data.pin(&mut loaded.description);
        config.keep(&loaded)?;
        let fingerprint = loaded.fingerprint();
        let description = loaded.description;
        Ok(TaskData {
            description: description.to_string(),
            class_names: Vec::new(),
            data: TrainingData {
                train: Arc::new(loaded.train),
                test: Arc::new(loaded.test),
                validation: None,
                batcher: Arc::new(TextBatcher),
                fingerprint,
                origin: format!("{}: {}", description.origin, description.reason),
                name: description.name,
            },
        })
    }

    fn loss(&self, _config: &TextConfig, model: &Gpt, batch: TextBatch) -> Loss {
        block_loss::<Gpt, NextToken>(model, batch)
    }

    fn summary(&self) -> String {
        self.summary.to_string()
    }

    fn sections(&self) -> &'static [&'static str] {
        &["data", "text", "gpt"]
    }

    fn local_settings(&self) -> &'static [&'static str] {
        // Of a tokenizer's file, the hash is compared.
        &["data.folder", "data.reason", "text.tokenizer"]
    }

    fn preset(&self) -> Table {
        self.preset.clone()
    }

    fn check(&self, config: &TextConfig) -> Result<(), TaskError> {
        self.gpt(config).check().map_err(|error| {
            TaskError::new(format!("the model cannot be built: {error}"))
                .with_help("the numbers of models of text stand in [gpt] of the configuration file")
        })?;
        match config.text.sample_every {
            Some(0) => Err(TaskError::new("--sample-every must be at least 1")),
            _ => Ok(()),
        }
    }

    fn check_tensor_parallel(&self, config: &TextConfig) -> Result<(), TaskError> {
        match self.gpt(config).dropout {
            dropout if dropout > 0.0 => Err(TaskError::new(format!(
                "a dropout of {dropout} and layers over several ranks do not go together"
            ))
            .with_help(
                "ranks that share layers would all drop the same places of their parts: use dropout = 0.0 in \
                 [gpt], or tensor=1",
            )),
            _ => Ok(()),
        }
    }

    fn data_decide_model(&self) -> bool {
        true
    }

    fn evaluation_batch(&self, config: &TextConfig) -> usize {
        (EVALUATION_TOKENS / self.gpt(config).context).clamp(1, 1_000)
    }

    fn blocks(&self) -> Option<BlocksOf<Self>> {
        Some(BlocksOf::new::<NextToken>(
            |task, config, samples, device| {
                Tensor::zeros([samples, task.gpt(config).context], device)
            },
        ))
    }

    fn on_device(&self) -> Option<OnDevice<Self>> {
        Some(OnDevice::by_rows())
    }

    fn language(&self, config: &TextConfig) -> Result<Option<Language<Gpt>>, TaskError> {
        let tokenizer = match (&config.text.tokenizer, &config.text.alphabet) {
            (TokenizerKind::File(path), _) => {
                let tokenizer = Tokenizer::from_file(path)?;
                config.text.clone().pin(Some(&tokenizer))?;
                tokenizer
            }
            (TokenizerKind::Byte, _) => Tokenizer::of_bytes(),
            (TokenizerKind::Char, Some(alphabet)) => Tokenizer::of_alphabet(alphabet)?,
            // It learns from numbers, and nobody knows what they stand for.
            (TokenizerKind::Char, None) if config.text.shards.is_some() => return Ok(None),
            (TokenizerKind::Char, None) => {
                return Err(TaskError::new(
                    "the run's config.toml does not say which characters its tokenizer knows",
                ));
            }
        };
        let decoder = tokenizer.clone();
        Ok(Some(Language {
            context: self.gpt(config).context,
            sample_every: config.text.sample_every,
            encode: Arc::new(move |text| Ok(tokenizer.encode(text)?)),
            decode: Arc::new(move |tokens| decoder.decode(tokens)),
            scores: Arc::new(|model: &Gpt, tokens| model.blocks().forward(model, tokens)),
        }))
    }
}
