//! Predictions of all ranks, in the order of the samples.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use burn::data::dataset::Dataset;
use burn::data::dataset::transform::PartialDataset;
use burn::module::Module;
use everburn_record::units::counted;

use super::Trainer;
use crate::error::TrainError;
use crate::model::erased::{AnyData, AnyItem, AnyModel};
use crate::task::ConfiguredTask;

/// Whose predictions are asked for.
///
/// ```
/// # mod everburn { pub use everburn_train as train; }
/// use everburn::train::PredictionInput;
///
/// assert_eq!("train".parse(), Ok(PredictionInput::Train));
/// assert_eq!(PredictionInput::File("houses.csv".into()).to_string(), "houses.csv");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PredictionInput {
    /// The samples that a model is tested on.
    #[default]
    Test,
    /// The samples that a model learns from.
    Train,
    /// The samples that a training validates on.
    Validation,
    /// The samples in a file that the task reads.
    File(PathBuf),
}

impl std::str::FromStr for PredictionInput {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "test" => Self::Test,
            "train" => Self::Train,
            "validation" => Self::Validation,
            file => Self::File(file.into()),
        })
    }
}

impl fmt::Display for PredictionInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Test => f.write_str("test"),
            Self::Train => f.write_str("train"),
            Self::Validation => f.write_str("validation"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Trainer {
    /// What `model` predicts for the samples of `input`, a line of JSON each, in the order of the samples on any
    /// number of ranks. All ranks call it; `write` is given the lines on rank 0 as they come. Yields how many samples
    /// there were.
    ///
    /// # Errors
    /// [`TrainError`] when a rank fails, the ranks have different data, or the task has no such samples or makes no
    /// predictions; as `write` fails.
    pub fn predict(
        &self,
        task: &dyn ConfiguredTask,
        model: &AnyModel,
        data: &AnyData,
        input: &PredictionInput,
        write: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<usize, TrainError> {
        let items = self.samples_of(task, data, input)?;
        let about = self.about_data(data)?.and("input", input);
        about
            .and("samples of the input", items.len())
            .check(&self.group)?;
        let count = items.len();
        let loader = self.ordered_loader(items.clone(), data, &self.group)?;
        let mut names = SampleNames::of(task, &*items);
        let first = self.first_of(data, input);
        let model = model.valid();
        let compute_type = self.config.precision.compute_type();
        for share in loader.epoch(0) {
            let share = share.map_err(|error| TrainError::Data(error.to_string()))?;
            let mut own = Vec::new();
            for part in share.micro_batches {
                let predict = || task.predict(&model, part.batch);
                let lines = everburn_nn::autocast(compute_type, predict);
                let lines = lines.map_err(|error| match error.not_finite_prediction() {
                    Some(found) => TrainError::PredictionNotFinite {
                        sample: names.sample(part.indices.get(found.sample), input, first),
                        what: found.what.clone(),
                    },
                    None => error.into(),
                })?;
                if lines.len() != part.samples {
                    return Err(TrainError::Config(format!(
                        "the task predicts {} for a batch of {}: `Predict::predict` has to yield one for each sample",
                        counted(lines.len(), "value"),
                        counted(part.samples, "sample")
                    )));
                }
                for line in lines {
                    own.extend_from_slice(line.as_bytes());
                    own.push(b'\n');
                }
            }
            let all = self.group.all_gather_varied(own).wait()?;
            if self.group.rank() == 0 {
                for lines in all {
                    let lines = names.before(lines)?;
                    let written = write(&lines);
                    written.map_err(|error| TrainError::write("predictions".as_ref(), error))?;
                }
            }
        }
        Ok(count)
    }

    /// The number of the first sample of `input` in the data to learn from, if it was held out of those.
    fn first_of(&self, data: &AnyData, input: &PredictionInput) -> Option<usize> {
        let is_held_out = *input == PredictionInput::Validation && data.validation.is_none();
        is_held_out.then(|| data.train.len() - self.held_out(data))
    }

    fn samples_of(
        &self,
        task: &dyn ConfiguredTask,
        data: &AnyData,
        input: &PredictionInput,
    ) -> Result<Arc<dyn Dataset<AnyItem>>, TrainError> {
        let all = data.train.len();
        let learnt = all.saturating_sub(self.held_out(data));
        let part = |from: usize, to: usize| -> Arc<dyn Dataset<AnyItem>> {
            Arc::new(PartialDataset::new(data.train.clone(), from, to))
        };
        let items = match input {
            PredictionInput::Test => data.test.clone(),
            PredictionInput::Train => part(0, learnt),
            PredictionInput::Validation => match &data.validation {
                Some(own) => own.clone(),
                None => part(learnt, all),
            },
            PredictionInput::File(file) => task.read(file)?,
        };
        match items.len() {
            0 => Err(TrainError::Config(format!(
                "there are no samples to predict of {input}: name test, train, validation or a file that \
                 the task reads"
            ))),
            _ => Ok(items),
        }
    }
}

struct SampleNames<'a> {
    task: &'a dyn ConfiguredTask,
    items: &'a dyn Dataset<AnyItem>,
    /// How many predictions have their names; `None` for a task whose samples have none.
    named: Option<usize>,
}

impl<'a> SampleNames<'a> {
    fn of(task: &'a dyn ConfiguredTask, items: &'a dyn Dataset<AnyItem>) -> Self {
        let first = items.get(0).ok();
        let has_names = first.is_some_and(|item| task.sample_name(&item).is_some());
        Self {
            task,
            items,
            named: has_names.then_some(0),
        }
    }

    /// The sample of this number among those of `input`, in words: its number in the data set, counted from 0, and its name.
    fn sample(
        &self,
        number: Option<&usize>,
        input: &PredictionInput,
        first: Option<usize>,
    ) -> String {
        let Some(number) = number else {
            return "a sample".to_owned();
        };
        let item = self.items.get(*number).ok();
        let name = item.and_then(|item| self.task.sample_name(&item));
        let name = name.map_or_else(String::new, |name| format!(" ({name})"));
        let of = match (input, first) {
            (PredictionInput::Train, _) | (_, Some(_)) => "the training data".to_owned(),
            (PredictionInput::Test, _) => "the test".to_owned(),
            (PredictionInput::Validation, _) => "the validation".to_owned(),
            (PredictionInput::File(file), _) => file.display().to_string(),
        };
        format!("sample {} of {of}{name}", number + first.unwrap_or(0))
    }

    /// The next predictions, a line of JSON each, with the names of their samples.
    fn before(&mut self, lines: Vec<u8>) -> Result<Vec<u8>, TrainError> {
        let Some(named) = &mut self.named else {
            return Ok(lines);
        };
        let mut with_names = Vec::with_capacity(lines.len());
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            let item = self.items.get(*named);
            let item = item.map_err(|error| TrainError::Data(error.to_string()))?;
            let name = self.task.sample_name(&item).unwrap_or_default();
            let name = serde_json::Value::from(name).to_string();
            *named += 1;
            with_names.extend_from_slice(format!("{{\"sample\":{name},").as_bytes());
            match line {
                [b'{', b'}', b'\n'] => {
                    with_names.pop();
                    with_names.extend_from_slice(b"}\n");
                }
                [b'{', fields @ ..] => with_names.extend_from_slice(fields),
                value => {
                    with_names.extend_from_slice(b"\"prediction\":");
                    with_names.extend_from_slice(value.trim_ascii_end());
                    with_names.extend_from_slice(b"}\n");
                }
            }
        }
        Ok(with_names)
    }
}
