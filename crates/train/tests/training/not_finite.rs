//! A loss that is NaN or infinite: where the data are the cause, the error names the sample and the rank that has read it.

mod suspects;

use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::nn::{Linear, LinearConfig};
use burn::prelude::*;
use everburn_train::checkpoint::CheckpointFolder;
use everburn_train::{
    AnyTask, Classifier, LabeledBatch, Loss, NoSettings, NotFiniteInput, Predict, Predictor,
    ReadMetrics, RunDirectory, Task, TaskData, TaskError, TrainError, Trainer, TrainingConfig,
    TrainingData,
};

use crate::alone;
use crate::harness::config::changed;
use crate::harness::ranks::on_ranks;

/// What is measured of a sample, and its class.
type Sample = ([f32; 3], i32);

struct Rows;

impl Batcher<Sample, LabeledBatch<2>> for Rows {
    fn batch(&self, items: Vec<Sample>, device: &Device) -> LabeledBatch<2> {
        let count = items.len();
        let (inputs, classes): (Vec<_>, Vec<_>) = items.into_iter().unzip();
        let inputs = TensorData::new(inputs.concat(), [count, 3]);
        let classes = TensorData::new(classes, [count]);
        (
            Tensor::from_data(inputs, device),
            Tensor::from_data(classes, device),
        )
    }
}

fn samples(count: usize) -> Vec<Sample> {
    let sample = |number: usize| {
        let at = number as f32;
        ([at.sin(), (1.7 * at).cos(), 1.0], (number % 2) as i32)
    };
    (0..count).map(sample).collect()
}

/// 60 samples to learn from and 12 to validate on.
fn data(train: Vec<Sample>, validation: Vec<Sample>) -> TrainingData<Sample, LabeledBatch<2>> {
    let (train, test) = (InMemDataset::new(train), InMemDataset::new(samples(12)));
    TrainingData::new("points", train, test, Rows).with_validation(InMemDataset::new(validation))
}

fn model() -> Classifier<Linear, 2> {
    let model = LinearConfig::new(3, 2).init(&Device::flex());
    Classifier::new(model, Linear::forward)
}

fn config() -> TrainingConfig {
    TrainingConfig {
        epochs: 2,
        batch_size: 12,
        compare_every: 0,
        ..TrainingConfig::default()
    }
}

/// The errors of all ranks.
fn errors(
    ranks: usize,
    config: &TrainingConfig,
    data: &TrainingData<Sample, LabeledBatch<2>>,
) -> Vec<TrainError> {
    on_ranks(ranks, config, None, |trainer| {
        trainer.fit(model(), data).map(drop).unwrap_err()
    })
}

/// The finding of all ranks, which is the same.
fn found(errors: &[TrainError]) -> NotFiniteInput {
    let found = errors.iter().map(|error| match error {
        TrainError::InputNotFinite(input) => NotFiniteInput::clone(input),
        error => panic!("{error}"),
    });
    let found: Vec<_> = found.collect();
    assert!(found.iter().all(|input| *input == found[0]), "{found:?}");
    found[0].clone()
}

#[test]
fn a_sample_with_a_nan_is_named_with_the_rank_that_has_read_it() {
    let with = |change: fn(&mut TrainingConfig)| changed(config(), change);
    let ways = [
        with(|_| {}),
        with(|config| config.accumulate = 2),
        with(|config| config.input.workers = Some(1)),
        with(|config| config.read_metrics = ReadMetrics::Late),
        with(|config| config.virtual_ranks = Some(4)),
        with(|config| config.ddp.max_gradient_norm = Some(1.0)),
        with(|config| config.sync = "every=3".parse().unwrap()),
    ];
    for (way, config) in ways.iter().enumerate() {
        let mut readers = Vec::new();
        for ranks in [1, 2] {
            for sample in [5, 41] {
                let mut train = samples(60);
                train[sample].0[1] = f32::NAN;
                let found = found(&errors(ranks, config, &data(train, samples(12))));
                let named = (found.sample, found.of, found.tensor.as_str(), found.is_nan);
                assert_eq!(
                    named,
                    (sample, "the training", "input", true),
                    "way {way}: {found}"
                );
                let step = found.step.unwrap();
                assert!((1..=5).contains(&step), "way {way}: {found}");
                assert!(found.rank < ranks, "way {way}: {found}");
                readers.push((ranks, found.step, found.rank));
            }
        }
        // Whatever the number of ranks, a sample comes in the same step.
        assert_eq!(readers[0].1, readers[2].1, "way {way}: {readers:?}");
        assert_eq!(readers[1].1, readers[3].1, "way {way}: {readers:?}");
    }
}

#[test]
fn all_samples_of_the_batch_are_named() {
    let mut train = samples(12);
    for sample in [2, 5, 11] {
        train[sample].0[1] = f32::NAN;
    }
    let found = found(&errors(2, &config(), &data(train, samples(12))));
    let mut all = [found.others.clone(), vec![found.sample]].concat();
    all.sort_unstable();
    assert_eq!(all, [2, 5, 11], "{found}");
    assert!(found.to_string().contains("; so do samples "), "{found}");
}

/// Points in a batch of a type that only the task has.
struct Points {
    samples: Vec<Sample>,
}

struct PointBatch {
    inputs: Tensor<2>,
}

struct PointBatcher;

impl Batcher<Sample, PointBatch> for PointBatcher {
    fn batch(&self, items: Vec<Sample>, device: &Device) -> PointBatch {
        let (inputs, _) = Rows.batch(items, device);
        PointBatch { inputs }
    }
}

impl Task for Points {
    type Config = NoSettings;
    type Model = Linear;
    type Item = Sample;
    type Batch = PointBatch;

    fn model(&self, _: &NoSettings, device: &Device) -> Result<Linear, TaskError> {
        Ok(LinearConfig::new(3, 1).init(device))
    }

    fn data(&self, _: &mut NoSettings) -> Result<TaskData<Sample, PointBatch>, TaskError> {
        let set = |samples: Vec<Sample>| InMemDataset::new(samples);
        let (train, test) = (set(self.samples.clone()), set(samples(12)));
        let data = TrainingData::new("points", train, test, PointBatcher);
        Ok(data.with_validation(set(samples(12))).into())
    }

    fn loss(&self, _: &NoSettings, model: &Linear, batch: PointBatch) -> Loss {
        let [samples, _] = batch.inputs.dims();
        Loss::new(model.forward(batch.inputs).powi_scalar(2).mean(), samples)
    }

    fn predictor(&self) -> Option<Predictor<Self>> {
        Some(Predictor::by_task())
    }
}

impl Predict for Points {
    type Prediction = f32;

    fn predict(
        &self,
        _: &NoSettings,
        model: &Linear,
        batch: PointBatch,
    ) -> Result<Vec<f32>, TaskError> {
        let values = model.forward(batch.inputs).into_data();
        Ok(values.iter::<f32>().collect())
    }

    fn sample_name(&self, (_, class): &Sample) -> Option<String> {
        Some(format!("points.csv, line {}", class + 2))
    }
}

#[test]
fn a_sample_of_a_type_of_the_tasks_own_is_found_by_its_loss_and_named_by_the_task() {
    for ranks in [1, 2] {
        let mut points = samples(60);
        for (number, (_, class)) in points.iter_mut().enumerate() {
            *class = number as i32;
        }
        points[41].0[2] = f32::NAN;
        let task = AnyTask::new("points", Points { samples: points });
        let errors = on_ranks(ranks, &config(), None, |trainer| {
            let mut task = task.configure(&toml::Table::new()).unwrap();
            let data = task.load().unwrap().for_training();
            let model = task.model(&trainer.device).unwrap();
            let trainer = Trainer {
                task: Some(Arc::from(task)),
                ..trainer
            };
            trainer.fit(model, &data).map(drop).unwrap_err()
        });
        let found = found(&errors);
        assert_eq!((found.sample, found.others.len()), (41, 0), "{found}");
        let expected = "the loss by fresh weights of sample 41 (points.csv, line 43) of the training, which rank";
        assert!(found.to_string().contains(expected), "{found}");
    }
}

#[test]
fn each_rank_is_named_for_the_samples_of_its_own() {
    // In this order: the first half of each batch is rank 0's.
    let mut readers = Vec::new();
    for sample in 0..12 {
        let mut train = samples(12);
        train[sample].0[0] = f32::INFINITY;
        let config = changed(config(), |config| config.epochs = 1);
        let found = found(&errors(2, &config, &data(train, samples(12))));
        assert_eq!(
            (found.sample, found.step, found.is_nan),
            (sample, Some(1), false),
            "{found}"
        );
        readers.push(found.rank);
    }
    assert_eq!(readers.iter().filter(|rank| **rank == 1).count(), 6);
}

#[test]
fn a_sample_of_the_validation_is_named() {
    for ranks in [1, 2] {
        let mut validation = samples(12);
        validation[7].0[2] = f32::NAN;
        let found = found(&errors(ranks, &config(), &data(samples(60), validation)));
        assert_eq!((found.sample, found.of), (7, "the validation"), "{found}");
        assert_eq!(found.rank, ranks - 1, "{found}");
        let text = "the validation loss is NaN after step 5: the input of sample 7 of the validation, which rank";
        assert!(found.to_string().starts_with(text), "{found}");
    }
}

#[test]
fn a_sample_of_the_test_is_named_in_a_training_and_in_an_evaluation() {
    for ranks in [1, 2] {
        let mut test = samples(12);
        test[7].0[2] = f32::NAN;
        let (train, validation) = (
            InMemDataset::new(samples(60)),
            InMemDataset::new(samples(12)),
        );
        let data = TrainingData::new("points", train, InMemDataset::new(test), Rows);
        let data = data.with_validation(validation);
        let trained = found(&errors(ranks, &config(), &data));
        let named = (trained.sample, trained.of, trained.step, trained.rank);
        assert_eq!(named, (7, "the test", Some(10), ranks - 1), "{trained}");
        let text =
            "the test loss is NaN after step 10: the input of sample 7 of the test, which rank";
        assert!(trained.to_string().starts_with(text), "{trained}");
        let errors = on_ranks(ranks, &config(), None, |trainer| {
            trainer.evaluate(&model(), &data).unwrap_err()
        });
        let evaluated = found(&errors);
        assert_eq!((evaluated.sample, evaluated.step), (7, None), "{evaluated}");
        let text = "the test loss is NaN: the input of sample 7 of the test, which rank";
        assert!(evaluated.to_string().starts_with(text), "{evaluated}");
    }
}

#[test]
fn an_epoch_whose_validation_is_no_number_leaves_a_checkpoint_to_resume_from() {
    let mut broken = samples(12);
    broken[7].0[2] = f32::INFINITY;
    for ranks in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        let data = data(samples(60), broken.clone());
        let errors = on_ranks(ranks, &config(), Some(&run), |trainer| {
            trainer.fit(model(), &data).map(drop).unwrap_err()
        });
        assert_eq!(found(&errors).of, "the validation");
        let checkpoints = CheckpointFolder::new(run.join("checkpoints"), 1);
        let progress = checkpoints.newest_progress().unwrap();
        assert_eq!((progress.epoch, progress.step), (1, 5));
    }
    let folder = tempfile::tempdir().unwrap();
    let run = RunDirectory::create(folder.path().join("run")).unwrap();
    let trainer = |resume| Trainer {
        run: Some(run.clone()),
        resume,
        ..alone(config())
    };
    let failed = trainer(false).fit(model(), &data(samples(60), broken));
    failed.map(drop).unwrap_err();
    let resumed = trainer(true).fit(model(), &data(samples(60), samples(12)));
    let (_, report) = resumed.unwrap();
    assert_eq!((report.resumed_after_epoch, report.steps), (Some(1), 10));
}

#[test]
fn a_sample_that_is_held_out_has_its_number_in_the_training_data() {
    let mut train = samples(60);
    train[57].0[2] = f32::NAN;
    let config = changed(config(), |config| config.validation_samples = Some(12));
    let data = TrainingData {
        validation: None,
        ..data(train, samples(12))
    };
    let found = found(&errors(2, &config, &data));
    assert_eq!(
        (found.sample, found.of),
        (57, "the training data"),
        "{found}"
    );
}
