//! The data that a run asks for.

use std::sync::Arc;

use everburn::train::{LabeledBatch, TextBatch, TrainingData};
use everburn_datasets::{
    DataChoice, DataRequest, DatasetDescription, ImageBatcher, ImageItem, LoadedData, LoadedText,
    SyntheticDigits, TextBatcher, TextItem, TextRequest,
};
use everburn_models::registry::PixelRange;

use crate::config::RunConfig;
use crate::error::CliError;

/// Images `[B, 1, 28, 28]` and their classes `[B]`.
pub(crate) type Images = TrainingData<ImageItem, LabeledBatch<4>>;

/// Texts `[B, T]` and what follows each of their tokens.
pub(crate) type Texts = TrainingData<TextItem, TextBatch>;

/// The classes of Fashion-MNIST, as its authors name them.
const FASHION: [&str; 10] = [
    "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot",
];

/// What a model reads.
pub(crate) enum Loaded {
    Images(LoadedData),
    Text(LoadedText),
}

impl Loaded {
    pub(crate) fn description(&self) -> &DatasetDescription {
        match self {
            Self::Images(images) => &images.description,
            Self::Text(text) => &text.description,
        }
    }

    /// How many training samples there are.
    pub(crate) fn train_len(&self) -> usize {
        self.description().train
    }

    /// The names of the classes, where they are more than numbers.
    pub(crate) fn class_names(&self) -> Vec<String> {
        let names = match self.description().name.as_str() {
            "fashion-mnist" => FASHION.as_slice(),
            _ => &[],
        };
        names.iter().map(ToString::to_string).collect()
    }

    /// The images as a trainer takes them.
    pub(crate) fn images(&self, pixels: PixelRange) -> Result<Images, CliError> {
        let Self::Images(data) = self else {
            return Err(CliError::usage(
                "the model takes images, and the data are text",
            ));
        };
        let batcher = match pixels {
            PixelRange::Unit => ImageBatcher::unit(),
            PixelRange::Byte => ImageBatcher::bytes(),
        };
        let (train, test) = (&data.train, &data.test);
        Ok(TrainingData {
            train: Arc::new(train.clone()),
            test: Arc::new(test.clone()),
            batcher: Arc::new(batcher),
            name: data.description.name.clone(),
            fingerprint: format!("{} {}", train.fingerprint(), test.fingerprint()),
            origin: origin(&data.description),
        })
    }

    /// The text, and its windows as a trainer takes them.
    pub(crate) fn text(&self) -> Result<(&LoadedText, Texts), CliError> {
        let Self::Text(text) = self else {
            return Err(CliError::usage(
                "the model takes text, and the data are images",
            ));
        };
        let data = TrainingData {
            train: Arc::new(text.train.clone()),
            test: Arc::new(text.test.clone()),
            batcher: Arc::new(TextBatcher),
            name: text.description.name.clone(),
            fingerprint: text.fingerprint(),
            origin: origin(&text.description),
        };
        Ok((text, data))
    }
}

fn origin(description: &DatasetDescription) -> String {
    format!("{}: {}", description.origin, description.reason)
}

/// Finds, fetches or draws the data.
pub(crate) fn load(config: &RunConfig) -> Result<Loaded, CliError> {
    let choice = config.data.name.parse();
    let choice = choice.map_err(|error| CliError::usage(format!("{error}")))?;
    let mut loaded = match config.gpt.config(&config.model) {
        Some(gpt) => Loaded::Text(load_text(config, choice, gpt.context)?),
        None => Loaded::Images(load_images(config, choice)?),
    };
    if let Some(reason) = &config.data.reason {
        match &mut loaded {
            Loaded::Images(images) => images.description.reason.clone_from(reason),
            Loaded::Text(text) => text.description.reason.clone_from(reason),
        }
    }
    Ok(loaded)
}

fn load_images(config: &RunConfig, choice: DataChoice) -> Result<LoadedData, CliError> {
    let (train, test) = (config.data.train_samples, config.data.test_samples);
    // Asked for here, and not cut off afterwards: digits that nobody reads are not drawn.
    let limits = (train.is_some() || test.is_some()).then(|| {
        (
            train.unwrap_or(SyntheticDigits::TRAIN_COUNT),
            test.unwrap_or(SyntheticDigits::TEST_COUNT),
        )
    });
    Ok(everburn_datasets::load(&DataRequest {
        choice,
        data_dir: config.data.folder.clone(),
        limits,
        ..DataRequest::default()
    })?)
}

fn load_text(
    config: &RunConfig,
    choice: DataChoice,
    context: usize,
) -> Result<LoadedText, CliError> {
    Ok(everburn_datasets::load_text(&TextRequest {
        choice,
        data_dir: config.data.folder.clone(),
        tokenizer: config.text.tokenizer,
        alphabet: config.text.alphabet.clone(),
        context,
        train_limit: config.data.train_samples,
        test_limit: config.data.test_samples,
    })?)
}

/// [`pin`]s a configuration whose data nobody reads yet.
pub(crate) fn pin_to(config: &mut RunConfig) -> Result<(), CliError> {
    let loaded = load(config)?;
    pin(config, &loaded);
    Ok(())
}

/// Fixes what was left open, so that every rank and every repetition takes the same, and a model of
/// text is always read with the tokenizer that it was trained with.
pub(crate) fn pin(config: &mut RunConfig, loaded: &Loaded) {
    let description = loaded.description();
    if config.data.name == "auto" {
        config.data.name = match description.name.as_str() {
            "synthetic-digits" => "synthetic".to_string(),
            other => other.to_string(),
        };
        config.data.reason = Some(description.reason.clone());
    }
    if let Loaded::Text(text) = loaded {
        config.text.alphabet = text.tokenizer.alphabet();
        config.gpt.vocabulary = Some(text.tokenizer.vocabulary());
    }
}
