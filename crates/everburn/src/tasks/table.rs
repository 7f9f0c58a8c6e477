//! A perceptron on the rows of a table.

use std::path::{Path, PathBuf};

use burn::prelude::*;
use everburn_datasets::{
    ColumnKind, DataKind, LoadedTable, Missing, TableBatcher, TableRequest, TableRow, TableSchema,
    detect_for, load_table, load_test_table,
};
use everburn_models::mlp::{Mlp, MlpConfig};
use everburn_train::{
    ClassTargets, Loss, Predict, Predictor, Task, TaskData, TaskError, TrainingData,
};
use serde::{Deserialize, Serialize};

use super::images::{PredictedClass, predicted_classes};

/// A column of a CSV file, predicted from the others by a multi-layer perceptron: a number by the squared error, or one of
/// several values by the cross entropy.
///
/// ```
/// use everburn::prelude::*;
/// use everburn::tasks::Table;
///
/// let app = App::new().task("houses", Table::new("the price of a house"));
/// ```
pub struct Table {
    summary: &'static str,
}

impl Table {
    /// A task with this line in `train --list`.
    pub fn new(summary: &'static str) -> Self {
        Self { summary }
    }
}

/// The settings of a task on a table.
///
/// ```
/// use everburn::tasks::TableConfig;
///
/// // In `config.toml` it is the sections `[data]` and `[table]`.
/// let config: TableConfig = toml::from_str("[data]\nname = 'houses.csv'\n[table]\ntarget = 'price'").unwrap();
/// ```
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TableConfig {
    data: FileConfig,
    table: Columns,
}

/// Which table a run reads.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct FileConfig {
    /// The file, as `--data` gives it.
    name: Option<PathBuf>,
    train_samples: Option<usize>,
    test_samples: Option<usize>,
}

/// How a table is read, and by what model.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Columns {
    /// The column to be predicted.
    target: Option<String>,
    /// Columns that are not read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ignore: Vec<String>,
    /// Columns whose numbers are names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    categorical: Vec<String>,
    missing: Missing,
    /// The width of each hidden layer.
    hidden: Vec<usize>,
    /// What the columns are; the data decide it.
    schema: Option<TableSchema>,
}

impl Default for Columns {
    fn default() -> Self {
        Self {
            target: None,
            ignore: Vec::new(),
            categorical: Vec::new(),
            missing: Missing::Refuse,
            hidden: vec![64, 64],
            schema: None,
        }
    }
}

impl TableConfig {
    fn request(&self) -> Result<TableRequest, TaskError> {
        let missing = |what: &str, help: &str| TaskError::new(what).with_help(help);
        let file = self
            .data
            .name
            .clone()
            .ok_or_else(|| missing("no table is given", "name a CSV file with --data"))?;
        detect_for(&file, &[DataKind::Table, DataKind::Text], "a table")?;
        let target = self.table.target.clone().ok_or_else(|| {
            missing(
                "no column to predict is given",
                "name one with --set table.target=COLUMN",
            )
        })?;
        Ok(TableRequest {
            ignore: self.table.ignore.clone(),
            categorical: self.table.categorical.clone(),
            missing: self.table.missing,
            ..TableRequest::new(file, target)
        })
    }

    /// The rows that are wanted, with a line about them.
    fn limited(
        &mut self,
        request: TableRequest,
        loaded: LoadedTable,
        only_test: bool,
    ) -> TaskData<TableRow, (Tensor<2>, Tensor<1>)> {
        let origin = request.file.display().to_string();
        self.data.name = Some(request.file);
        let (train, test) = (self.data.train_samples, self.data.test_samples);
        let train = loaded.train.first(train.unwrap_or(usize::MAX));
        let test = loaded.test.first(test.unwrap_or(usize::MAX));
        let schema = &loaded.schema;
        let target = match schema.classes() {
            Some(classes) => format!("{} of {} classes", request.target, classes.len()),
            None => format!("the number {}", request.target),
        };
        let trained = match only_test {
            true => String::new(),
            false => format!("{} training and ", train.len()),
        };
        let separated = match loaded.semicolons {
            true => " with semicolons between cells, and a comma as the decimal point",
            false => "",
        };
        TaskData {
            description: format!(
                "{origin}, taken for {}{separated}: {trained}{} test rows, {} features of {} columns, to predict {target}",
                DataKind::Table,
                test.len(),
                schema.width(),
                schema.columns.len(),
            ),
            class_names: schema.classes().unwrap_or_default().to_vec(),
            data: TrainingData::new("table", train, test, TableBatcher)
                .with_fingerprint(loaded.fingerprint)
                .with_origin(origin),
        }
    }

    fn schema(&self) -> Result<&TableSchema, TaskError> {
        let none = || TaskError::new("the table has not been read yet");
        self.table.schema.as_ref().ok_or_else(none)
    }

    /// Keeps what the columns are. The columns of a trained model stay, for another table has other means.
    fn keep(&mut self, loaded: &LoadedTable) -> Result<(), TaskError> {
        match &self.table.schema {
            Some(schema) if *schema != loaded.schema => Err(TaskError::new(
                "the model was trained on other columns than the table has",
            )
            .with_help("`predict --input FILE` reads other tables by the columns of the run")),
            Some(_) => Ok(()),
            None => {
                self.table.schema = Some(loaded.schema.clone());
                Ok(())
            }
        }
    }
}

impl Task for Table {
    type Config = TableConfig;
    type Model = Mlp;
    type Item = TableRow;
    type Batch = (Tensor<2>, Tensor<1>);

    fn model(&self, config: &TableConfig, device: &Device) -> Result<Mlp, TaskError> {
        let schema = config.table.schema.as_ref();
        let config = MlpConfig {
            // Of one number, before there are data.
            inputs: schema.map_or(1, TableSchema::width),
            hidden: config.table.hidden.clone(),
            classes: schema.map_or(1, TableSchema::outputs),
        };
        Ok(config.init(device))
    }

    fn data_decide_model(&self) -> bool {
        true
    }

    fn data(&self, config: &mut TableConfig) -> Result<TaskData<TableRow, Self::Batch>, TaskError> {
        let mut request = config.request()?;
        request.file = std::path::absolute(request.file)?;
        let loaded = load_table(&request)?;
        config.keep(&loaded)?;
        Ok(config.limited(request, loaded, false))
    }

    fn test_data(
        &self,
        config: &mut TableConfig,
    ) -> Result<TaskData<TableRow, Self::Batch>, TaskError> {
        let mut request = config.request()?;
        request.file = std::path::absolute(request.file)?;
        let loaded = load_test_table(&request.file, config.schema()?)?;
        Ok(config.limited(request, loaded, true))
    }

    fn loss(&self, config: &TableConfig, model: &Mlp, (features, targets): Self::Batch) -> Loss {
        let output = forward(model, features);
        let schema = config.table.schema.as_ref();
        let samples = targets.dims()[0];
        match schema.map(|schema| &schema.target.kind) {
            Some(ColumnKind::Category { .. }) => targets.int().loss(output),
            kind => {
                let errors = output.squeeze_dim::<1>(1) - targets;
                let std = match kind {
                    Some(ColumnKind::Number { std, .. }) => *std,
                    _ => 1.0,
                };
                // In the units of the table; the loss is of standardised numbers.
                let absolute = errors.clone().detach().abs().sum() * std;
                let loss = Loss::new(errors.powi_scalar(2).mean(), samples);
                loss.with_metric("mae", absolute, samples)
            }
        }
    }

    fn summary(&self) -> String {
        self.summary.to_string()
    }

    fn input_and_output(&self) -> [String; 2] {
        ["columns of the table", "a number or a class"].map(str::to_owned)
    }

    fn sections(&self) -> &'static [&'static str] {
        &["data", "table"]
    }

    fn local_settings(&self) -> &'static [&'static str] {
        &["data.name"]
    }

    fn predictor(&self) -> Option<Predictor<Self>> {
        Some(Predictor::by_task())
    }
}

/// The output `[B, outputs]` of features `[B, width]`.
fn forward(model: &Mlp, features: Tensor<2>) -> Tensor<2> {
    let [rows, width] = features.dims();
    model.forward(features.reshape([rows, 1, 1, width]))
}

/// The prediction for a row: a number, or a class.
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum PredictedTarget {
    /// A number, in the units of the table.
    Number(f64),
    /// A class, and how likely each is.
    Class(PredictedClass),
}

impl Predict for Table {
    type Prediction = PredictedTarget;

    fn predict(
        &self,
        config: &TableConfig,
        model: &Mlp,
        (features, _targets): Self::Batch,
    ) -> Result<Vec<PredictedTarget>, TaskError> {
        let schema = config.schema()?;
        let output = forward(model, features);
        match schema.classes() {
            Some(classes) => {
                let predicted = predicted_classes(output, classes)?.into_iter();
                Ok(predicted.map(PredictedTarget::Class).collect())
            }
            None => {
                let numbers = output.try_into_data()?;
                let numbers = numbers.iter::<f32>().map(|number| schema.in_units(number));
                Ok(numbers.map(PredictedTarget::Number).collect())
            }
        }
    }

    fn read(&self, config: &TableConfig, file: &Path) -> Result<Vec<TableRow>, TaskError> {
        let rows = config.schema()?.read(file)?;
        Ok((0..rows.len()).map(|row| rows.row(row)).collect())
    }
}
