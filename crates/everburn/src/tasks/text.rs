//! Models that predict the next token of a text.

use std::path::Path;
use std::sync::Arc;

use burn::prelude::*;
use everburn_datasets::{DataChoice, TextBatcher, TextItem, TextRequest, Tokenizer, TokenizerKind};
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
}

impl TextOptions {
    /// Keeps the hash of the tokenizer's file, and refuses another file than before.
    fn pin(&mut self, tokenizer: &Tokenizer) -> Result<(), TaskError> {
        let found = tokenizer.file_hash().map(str::to_owned);
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
        let (choice, file) = match config.data.choice() {
            Ok(choice) => (choice, None),
            Err(_) if Path::new(&config.data.name).is_file() => {
                let file = std::path::absolute(&config.data.name)?;
                config.data.name = file.display().to_string();
                (DataChoice::Auto, Some(file))
            }
            Err(unknown) => {
                return Err(unknown.with_help("or name a text file, which is not there"));
            }
        };
        if let TokenizerKind::File(path) = &mut config.text.tokenizer {
            *path = std::path::absolute(&*path)?;
        }
        let mut loaded = everburn_datasets::load_text(&TextRequest {
            choice,
            data_dir: config.data.folder.clone(),
            file,
            tokenizer: config.text.tokenizer.clone(),
            alphabet: config.text.alphabet.clone(),
            context: self.gpt(config).context,
            train_limit: config.data.train_samples,
            test_limit: config.data.test_samples,
        })?;
        config.data.pin(&mut loaded.description);
        // A model of text is always read with the tokenizer that it was trained with.
        config.text.alphabet = loaded.tokenizer.alphabet();
        config.text.pin(&loaded.tokenizer)?;
        config.gpt.vocabulary = Some(loaded.tokenizer.vocabulary());
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
                config.text.clone().pin(&tokenizer)?;
                tokenizer
            }
            (TokenizerKind::Byte, _) => Tokenizer::of_bytes(),
            (TokenizerKind::Char, Some(alphabet)) => Tokenizer::of_alphabet(alphabet)?,
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
