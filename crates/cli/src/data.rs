//! The data that a run asks for.

use std::sync::Arc;

use everburn::burn::prelude::*;
use everburn::train::TrainingData;
use everburn_datasets::{
    DataRequest, DatasetDescription, ImageBatcher, ImageItem, LoadedData, SyntheticDigits,
};
use everburn_models::registry::PixelRange;

use crate::config::DataConfig;
use crate::error::CliError;

/// Images `[B, 1, 28, 28]` and their classes `[B]`.
pub(crate) type Images = TrainingData<ImageItem, (Tensor<4>, Tensor<1, Int>)>;

/// Finds, fetches or draws the data.
pub(crate) fn load(config: &DataConfig) -> Result<LoadedData, CliError> {
    let choice = config.name.parse();
    let choice = choice.map_err(|error| CliError::usage(format!("{error}")))?;
    let (train, test) = (config.train_samples, config.test_samples);
    // Asked for here, and not cut off afterwards: digits that nobody reads are not drawn.
    let limits = (train.is_some() || test.is_some()).then(|| {
        (
            train.unwrap_or(SyntheticDigits::TRAIN_COUNT),
            test.unwrap_or(SyntheticDigits::TEST_COUNT),
        )
    });
    let mut data = everburn_datasets::load(&DataRequest {
        choice,
        data_dir: config.folder.clone(),
        limits,
        ..DataRequest::default()
    })?;
    if let Some(reason) = &config.reason {
        data.description.reason.clone_from(reason);
    }
    Ok(data)
}

/// Fixes a choice that was left open, so that every rank and every repetition takes the same.
pub(crate) fn pin(config: &mut DataConfig, description: &DatasetDescription) {
    if config.name == "auto" {
        config.name = match description.name.as_str() {
            "synthetic-digits" => "synthetic".to_string(),
            other => other.to_string(),
        };
        config.reason = Some(description.reason.clone());
    }
}

/// The data as a trainer takes it.
pub(crate) fn for_training(data: &LoadedData, pixels: PixelRange) -> Images {
    let batcher = match pixels {
        PixelRange::Unit => ImageBatcher::unit(),
        PixelRange::Byte => ImageBatcher::bytes(),
    };
    let description = &data.description;
    TrainingData {
        train: Arc::new(data.train.clone()),
        test: Arc::new(data.test.clone()),
        batcher: Arc::new(batcher),
        name: description.name.clone(),
        fingerprint: format!("{} {}", data.train.fingerprint(), data.test.fingerprint()),
        origin: format!("{}: {}", description.origin, description.reason),
    }
}
