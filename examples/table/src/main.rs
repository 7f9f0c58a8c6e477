//! Predicts the price of a house from a row of a table.

mod net;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use everburn::burn::prelude::*;
use everburn::datasets::{
    ColumnKind, LoadedTable, TableBatcher, TableRequest, TableRow, TableSchema, load_table, load_test_table,
};
use everburn::prelude::*;
use serde::{Deserialize, Serialize};

use crate::net::Regressor;

// Every command of Everburn works on the tasks that are named here: `train`, `eval`, `monitor`, ...
fn main() -> ExitCode {
    App::new().task("houses", Houses).main()
}

/// What is trained.
struct Houses;

/// Features `[B, width]` and standardised prices `[B]`.
type HouseBatch = (Tensor<2>, Tensor<1>);

/// The settings, in `[houses]` of a configuration file; `--set houses.width=128` sets one.
#[derive(Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct HousesConfig {
    /// The table.
    file: PathBuf,
    /// How many numbers each hidden layer has.
    width: usize,
    /// What the columns are, and by what they are scaled; the table decides it.
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<TableSchema>,
}

impl Default for HousesConfig {
    fn default() -> Self {
        let file = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/houses.csv"));
        Self { file, width: 64, schema: None }
    }
}

impl HousesConfig {
    /// What a standardised price is multiplied by.
    fn scale(&self) -> f64 {
        match self.schema.as_ref().map(|schema| &schema.target.kind) {
            Some(ColumnKind::Number { std, .. }) => *std,
            _ => 1.0,
        }
    }

    fn columns(&self) -> Result<&TableSchema, TaskError> {
        self.schema.as_ref().ok_or_else(|| TaskError::new("the table has not been read yet"))
    }
}

/// A table that was read.
fn houses(config: &HousesConfig, loaded: LoadedTable) -> TaskData<TableRow, HouseBatch> {
    let data = TrainingData::new("houses", loaded.train, loaded.test, TableBatcher)
        .with_fingerprint(loaded.fingerprint)
        .with_origin(config.file.display().to_string());
    TaskData::from(data)
}

impl Task for Houses {
    type Config = HousesConfig;
    type Model = Regressor;
    type Item = TableRow;
    type Batch = HouseBatch;

    fn model(&self, config: &HousesConfig, device: &Device) -> Result<Regressor, TaskError> {
        let features = config.schema.as_ref().map_or(1, TableSchema::width);
        Ok(Regressor::new(features, config.width, device))
    }

    // The model is built after the table is read, for as many features as it has.
    fn data_decide_model(&self) -> bool {
        true
    }

    fn data(&self, config: &mut HousesConfig) -> Result<TaskData<TableRow, HouseBatch>, TaskError> {
        // Every tenth row is kept to test on. Other columns, and missing values: see `TableRequest`.
        let loaded = load_table(&TableRequest::new(&config.file, "price"))?;
        config.schema = Some(loaded.schema.clone());
        Ok(houses(config, loaded))
    }

    // `eval RUN --set houses.file=OTHER` tests all rows of another table, which has the same columns.
    fn test_data(&self, config: &mut HousesConfig) -> Result<TaskData<TableRow, HouseBatch>, TaskError> {
        let loaded = load_test_table(&config.file, config.columns()?)?;
        Ok(houses(config, loaded))
    }

    fn loss(&self, config: &HousesConfig, model: &Regressor, (features, prices): HouseBatch) -> Loss {
        let samples = prices.dims()[0];
        let errors = model.forward(features) - prices;
        // The gradients are those of the mean; metrics are sums with weights, so that ranks add up.
        let absolute = errors.clone().detach().abs().sum() * config.scale();
        Loss::new(errors.powi_scalar(2).mean(), samples).with_metric("mae", absolute, samples)
    }

    fn summary(&self) -> String {
        "the price of a house, from its area, rooms, age and distance".to_string()
    }

    // What `train --list` shows of the model.
    fn input_and_output(&self) -> [String; 2] {
        ["columns of the table", "a price"].map(str::to_string)
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
    type Prediction = f64;

    fn predict(
        &self,
        config: &HousesConfig,
        model: &Regressor,
        (features, _prices): HouseBatch,
    ) -> Result<Vec<f64>, TaskError> {
        let columns = config.columns()?;
        let prices = model.forward(features).try_into_data()?;
        Ok(prices.iter::<f32>().map(|price| columns.in_units(price)).collect())
    }

    // `predict RUN --input FILE` needs none of the data.
    fn input_data(&self, _config: &HousesConfig) -> Option<TaskData<TableRow, HouseBatch>> {
        Some(TaskData::for_input(TableBatcher))
    }

    // `predict RUN --input FILE` is for other houses than those of the data.
    fn read(&self, config: &HousesConfig, file: &Path) -> Result<Vec<TableRow>, TaskError> {
        let houses = config.columns()?.read(file)?;
        Ok((0..houses.len()).map(|house| houses.row(house)).collect())
    }
}
