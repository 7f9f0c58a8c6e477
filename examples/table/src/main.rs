//! Predicts the price of a house from a row of a table.

mod data;
mod net;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use everburn::burn::data::dataset::InMemDataset;
use everburn::burn::prelude::*;
use everburn::prelude::*;
use serde::{Deserialize, Serialize};

use crate::data::{House, HouseBatch, HouseBatcher, read};
use crate::net::Regressor;

// Every command of Everburn works on the tasks that are named here: `train`, `eval`, `monitor`, ...
fn main() -> ExitCode {
    App::new().task("houses", Houses).main()
}

/// What is trained.
struct Houses;

/// The settings, in `[houses]` of a configuration file; `--set houses.width=128` sets one.
#[derive(Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct HousesConfig {
    /// The table.
    file: PathBuf,
    /// How many numbers each hidden layer has.
    width: usize,
}

impl Default for HousesConfig {
    fn default() -> Self {
        let file = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/houses.csv"));
        Self { file, width: 64 }
    }
}

impl Task for Houses {
    type Config = HousesConfig;
    type Model = Regressor;
    type Item = House;
    type Batch = HouseBatch;

    fn model(&self, config: &HousesConfig, device: &Device) -> Result<Regressor, TaskError> {
        Ok(Regressor::new(config.width, device))
    }

    fn data(&self, config: &mut HousesConfig) -> Result<TaskData<House, HouseBatch>, TaskError> {
        let mut train = read(&config.file)?;
        // The last tenth is kept to test on.
        let test = train.split_off(train.len() - train.len() / 10);
        let (train, test) = (InMemDataset::new(train), InMemDataset::new(test));
        let data = TrainingData::new("houses", train, test, HouseBatcher);
        Ok(TaskData::from(data.with_origin(config.file.display().to_string())))
    }

    fn loss(&self, _config: &HousesConfig, model: &Regressor, (columns, prices): HouseBatch) -> Loss {
        let samples = prices.dims()[0];
        let errors = model.forward(columns) - prices;
        // The gradients are those of the mean; metrics are sums with weights, so that ranks add up.
        let absolute = errors.clone().detach().abs().sum();
        Loss::new(errors.powi_scalar(2).mean(), samples).with_metric("mae", absolute, samples)
    }

    fn summary(&self) -> String {
        "the price of a house, from its area, rooms, age and distance".to_string()
    }

    // Machines may have the table in other places; all else must be the same on all ranks.
    fn local_settings(&self) -> &'static [&'static str] {
        &["file"]
    }

    fn predictor(&self) -> Option<Predictor<Self>> {
        Some(Predictor::by_task())
    }
}

// What `predict` writes of each house: its price, a number.
impl Predict for Houses {
    type Prediction = f32;

    fn predict(
        &self,
        _config: &HousesConfig,
        model: &Regressor,
        (columns, _prices): HouseBatch,
    ) -> Result<Vec<f32>, TaskError> {
        let prices = model.forward(columns) * 100.0;
        Ok(prices.try_into_data()?.iter::<f32>().collect())
    }

    // `predict RUN --input FILE` is for other houses than those of the data.
    fn read(&self, _config: &HousesConfig, file: &Path) -> Result<Vec<House>, TaskError> {
        read(file)
    }
}
