//! Predictions: of each sample, in their order, on any number of ranks.

use std::path::Path;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::nn::{Linear, LinearConfig};
use burn::prelude::*;
use everburn_tests::AssertContains;
use everburn_train::{
    AnyTask, ConfiguredTask, Loss, NoSettings, Predict, PredictionInput, Predictor, Task, TaskData,
    TaskError, Trainer, TrainingConfig, TrainingData,
};
use serde::Serialize;
use toml::Table;

use crate::harness::config::changed;
use crate::harness::ranks::on_ranks;

/// Twice a number, but NaN in place of `broken`. `short` says one prediction too few of each batch.
#[derive(Clone, Copy)]
struct Twice {
    predicts: bool,
    short: bool,
    broken: Option<u32>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Doubled {
    Whole(u32),
    Broken(f32),
}

struct Numbers;

impl Batcher<u16, Tensor<2>> for Numbers {
    fn batch(&self, items: Vec<u16>, device: &Device) -> Tensor<2> {
        let numbers = items.into_iter().map(f32::from).collect::<Vec<_>>();
        Tensor::<1>::from_floats(numbers.as_slice(), device).unsqueeze_dim(1)
    }
}

impl Task for Twice {
    type Config = NoSettings;
    type Model = Linear;
    type Item = u16;
    type Batch = Tensor<2>;

    fn model(&self, _: &NoSettings, device: &Device) -> Result<Linear, TaskError> {
        let mut model = LinearConfig::new(1, 1).with_bias(false).init(device);
        model.weight = model
            .weight
            .map(|weight| weight.zeros_like().add_scalar(2.0));
        Ok(model)
    }

    fn data(&self, _: &mut NoSettings) -> Result<TaskData<u16, Tensor<2>>, TaskError> {
        let (train, test) = ((100..130).collect(), (0..23).collect());
        let (train, test) = (InMemDataset::new(train), InMemDataset::new(test));
        Ok(TaskData::from(TrainingData::new(
            "numbers", train, test, Numbers,
        )))
    }

    fn loss(&self, _: &NoSettings, model: &Linear, batch: Tensor<2>) -> Loss {
        let samples = batch.dims()[0];
        Loss::new(model.forward(batch).mean(), samples)
    }

    fn predictor(&self) -> Option<Predictor<Self>> {
        self.predicts.then(Predictor::by_task)
    }
}

impl Predict for Twice {
    type Prediction = Doubled;

    fn predict(
        &self,
        _: &NoSettings,
        model: &Linear,
        batch: Tensor<2>,
    ) -> Result<Vec<Doubled>, TaskError> {
        let doubled = model.forward(batch).into_data();
        let doubled = doubled.iter::<f32>().map(|number| match number as u32 {
            number if Some(number) == self.broken => Doubled::Broken(f32::NAN),
            number => Doubled::Whole(number),
        });
        Ok(doubled.skip(usize::from(self.short)).collect())
    }

    fn read(&self, _: &NoSettings, file: &Path) -> Result<Vec<u16>, TaskError> {
        let text = std::fs::read_to_string(file)?;
        let numbers = text.lines().map(|line| Ok(line.parse()?));
        numbers.collect()
    }
}

const PREDICTS: Twice = Twice {
    predicts: true,
    short: false,
    broken: None,
};

fn configured(task: Twice) -> Box<dyn ConfiguredTask> {
    AnyTask::new("twice", task)
        .configure(&Table::new())
        .unwrap()
}

/// What ranks predict that read four samples at a time; what rank 0 has written, or why it failed.
fn predicted(ranks: usize, task: Twice, input: &PredictionInput) -> Result<String, String> {
    let config = changed(TrainingConfig::default(), |config| {
        config.validation_samples = Some(5);
    });
    let mut ended = on_ranks(ranks, &config, None, |trainer| {
        let mut task = configured(task);
        let data = task.load().unwrap().for_training();
        let trainer = Trainer {
            evaluation_batch: 4,
            ..trainer
        };
        let model = task.model(&trainer.device).unwrap();
        let mut written = Vec::new();
        let write = &mut |lines: &[u8]| {
            written.extend_from_slice(lines);
            Ok(())
        };
        let predicted = trainer.predict(&*task, &model, &data, input, write);
        predicted.map_err(|error| error.to_string())?;
        assert!(trainer.group.rank() == 0 || written.is_empty());
        Ok(String::from_utf8(written).unwrap())
    });
    ended.swap_remove(0)
}

fn doubled(numbers: impl Iterator<Item = u32>) -> String {
    numbers.map(|number| format!("{}\n", 2 * number)).collect()
}

#[test]
fn each_sample_has_its_line_in_order_on_any_number_of_ranks() {
    for ranks in [1, 2, 3, 4, 7] {
        let of = |input| predicted(ranks, PREDICTS, &input).unwrap();
        assert_eq!(of(PredictionInput::Test), doubled(0..23), "{ranks}");
        assert_eq!(of(PredictionInput::Train), doubled(100..125), "{ranks}");
        assert_eq!(
            of(PredictionInput::Validation),
            doubled(125..130),
            "{ranks}"
        );
    }
}

#[test]
fn samples_are_read_from_a_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "7\n3\n9\n").unwrap();
    let input = PredictionInput::File(file.path().to_path_buf());
    assert_eq!(predicted(2, PREDICTS, &input).unwrap(), "14\n6\n18\n");
    std::fs::write(file.path(), "").unwrap();
    let error = predicted(1, PREDICTS, &input).unwrap_err();
    assert!(error.contains("no samples to predict"), "{error}");
    std::fs::write(file.path(), "seven").unwrap();
    let error = predicted(1, PREDICTS, &input).unwrap_err();
    assert!(error.contains("invalid digit"), "{error}");
}

#[test]
fn a_task_that_does_not_predict_or_not_of_each_sample_is_refused() {
    let test = PredictionInput::Test;
    let silent = Twice {
        predicts: false,
        ..PREDICTS
    };
    assert!(!configured(silent).predicts() && configured(PREDICTS).predicts());
    let error = predicted(1, silent, &test).unwrap_err();
    assert!(error.contains("`twice` makes no predictions"), "{error}");
    let short = Twice {
        short: true,
        ..PREDICTS
    };
    let error = predicted(1, short, &test).unwrap_err();
    error.assert_contains(["3 values for a batch of 4 samples"]);
}

#[test]
fn a_prediction_that_is_nan_is_refused_with_the_number_of_its_sample() {
    for (input, broken, sample) in [
        (
            PredictionInput::Test,
            2 * 9,
            "sample 9 of the test is a NaN",
        ),
        (
            PredictionInput::Train,
            2 * 103,
            "sample 3 of the training data is a NaN",
        ),
        // The third of the samples that are held out.
        (
            PredictionInput::Validation,
            2 * 127,
            "sample 27 of the training data is a NaN",
        ),
    ] {
        let task = Twice {
            broken: Some(broken),
            ..PREDICTS
        };
        let error = predicted(1, task, &input).unwrap_err();
        assert!(error.contains(sample), "{error}");
    }
}
