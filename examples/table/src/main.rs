//! Predicts the price of a house from a row of a table.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use everburn::burn::data::dataloader::batcher::Batcher;
use everburn::burn::data::dataset::InMemDataset;
use everburn::burn::prelude::*;
// `everburn::burn` is Burn itself; its derives look for it under the name `burn`.
use everburn::burn;
use everburn::nn::{Linear, LinearConfig, Relu};
use everburn::prelude::*;
use serde::{Deserialize, Serialize};

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

/// A row of the table; the header names the columns.
#[derive(Debug, Clone, Deserialize)]
struct House {
    area: f32,
    rooms: f32,
    age: f32,
    distance: f32,
    /// Unknown where it is to be predicted.
    #[serde(default)]
    price: f32,
}

/// The model, an ordinary Burn module: columns `[B, 4]` to prices `[B, 1]`.
#[derive(Module, Debug)]
struct Regressor {
    input: Linear,
    hidden: Linear,
    output: Linear,
    relu: Relu,
}

impl Regressor {
    fn forward(&self, columns: Tensor<2>) -> Tensor<2> {
        let hidden = self.relu.forward(self.input.forward(columns));
        let hidden = self.relu.forward(self.hidden.forward(hidden));
        self.output.forward(hidden)
    }
}

/// Columns `[B, 4]` and prices `[B, 1]`.
type HouseBatch = (Tensor<2>, Tensor<2>);

/// Makes a batch of several rows; columns are scaled to about -1 to 1.
struct HouseBatcher;

impl Batcher<House, HouseBatch> for HouseBatcher {
    fn batch(&self, houses: Vec<House>, device: &Device) -> HouseBatch {
        let columns =
            |h: &House| [h.area / 100.0 - 1.0, h.rooms / 4.0 - 1.0, h.age / 50.0 - 1.0, h.distance / 10.0 - 1.0];
        let columns = houses.iter().map(|house| Tensor::<1>::from_floats(columns(house), device));
        let prices = houses.iter().map(|house| Tensor::<1>::from_floats([house.price / 100.0], device));
        (Tensor::stack(columns.collect(), 0), Tensor::stack(prices.collect(), 0))
    }
}

impl Task for Houses {
    type Config = HousesConfig;
    type Model = Regressor;
    type Item = House;
    type Batch = HouseBatch;

    fn model(&self, config: &HousesConfig, device: &Device) -> Result<Regressor, TaskError> {
        Ok(Regressor {
            input: LinearConfig::new(4, config.width).init(device),
            hidden: LinearConfig::new(config.width, config.width).init(device),
            output: LinearConfig::new(config.width, 1).init(device),
            relu: Relu::new(),
        })
    }

    fn data(&self, config: &mut HousesConfig) -> Result<TaskData<House, HouseBatch>, TaskError> {
        let mut train = read(&config.file)?;
        // The last tenth is kept to test on.
        let test = train.split_off(train.len() - train.len() / 10);
        Ok(TaskData::from(TrainingData {
            train: Arc::new(InMemDataset::new(train)),
            test: Arc::new(InMemDataset::new(test)),
            validation: None,
            batcher: Arc::new(HouseBatcher),
            name: "houses".to_string(),
            fingerprint: String::new(),
            origin: config.file.display().to_string(),
        }))
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

/// The rows of a table. Any error becomes a `TaskError` by `?`, and the user reads it.
fn read(file: &Path) -> Result<Vec<House>, TaskError> {
    let rows = csv::Reader::from_path(file)?.into_deserialize();
    Ok(rows.collect::<Result<_, _>>()?)
}
