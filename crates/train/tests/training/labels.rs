//! Labels that a model has no score for are refused with their samples.

use burn::data::dataset::{Dataset, InMemDataset};
use burn::prelude::*;
use everburn_datasets::ImageItem;
use everburn_models::mlp::{Mlp, MlpConfig};
use everburn_nn::IndexOf;
use everburn_train::{
    Classifier, ReadMetrics, TrainError, Trainer, TrainingConfig, TrainingData, WrongLabel,
};

use crate::harness::config::changed;
use crate::harness::data::{Images, digits};
use crate::harness::ranks::on_ranks;

const LABEL: u8 = 12;

fn model() -> Classifier<Mlp, 4> {
    Classifier::of_blocks(MlpConfig::new().init(&Device::flex()))
}

fn config() -> TrainingConfig {
    TrainingConfig {
        epochs: 1,
        batch_size: 20,
        compare_every: 0,
        validation_samples: Some(10),
        ..TrainingConfig::default()
    }
}

/// A set in which the sample of this number has a label that is none of the ten.
fn mislabeled(set: &dyn Dataset<ImageItem>, wrong: usize) -> InMemDataset<ImageItem> {
    let mut items: Vec<ImageItem> = (0..set.len())
        .map(|index| set.get(index).unwrap())
        .collect();
    items[wrong].label = LABEL;
    InMemDataset::new(items)
}

/// A training of 90 samples, of which number 41 has a wrong label.
fn data() -> Images {
    let data = digits(5, 100, 37);
    let train = mislabeled(&*data.train, 41);
    TrainingData {
        train: std::sync::Arc::new(train),
        ..data
    }
}

fn expected(sample: usize, of: &'static str) -> WrongLabel {
    WrongLabel {
        sample: Some(sample),
        of,
        place: None,
        label: LABEL.into(),
        scores: 10,
        index: IndexOf::Class,
    }
}

fn errors(ranks: usize, config: &TrainingConfig) -> Vec<TrainError> {
    on_ranks(ranks, config, None, |trainer: Trainer| {
        let fitted = match config.input.on_device {
            true => {
                let data = trainer.on_device(data(), Some(1 << 40)).unwrap();
                trainer.fit(model(), &data).map(drop)
            }
            false => trainer.fit(model(), &data()).map(drop),
        };
        fitted.unwrap_err()
    })
}

#[test]
fn a_label_without_a_score_is_refused_with_its_sample() {
    let with = |change: fn(&mut TrainingConfig)| changed(config(), change);
    let ways = [
        with(|_| {}),
        with(|config| config.accumulate = 3),
        with(|config| config.input.workers = Some(1)),
        with(|config| config.input.on_device = true),
        with(|config| config.read_metrics = ReadMetrics::Late),
        with(|config| config.virtual_ranks = Some(4)),
    ];
    for (way, config) in ways.iter().enumerate() {
        for ranks in [1, 2] {
            let errors = errors(ranks, config);
            let found = errors.iter().filter_map(|error| match error {
                TrainError::Label(wrong) => Some(wrong.clone()),
                _ => None,
            });
            let found: Vec<_> = found.collect();
            assert_eq!(
                found,
                [expected(41, "the training")],
                "way {way}: {errors:?}"
            );
            let others = errors.iter().filter(|error| error.is_secondary()).count();
            assert_eq!(others, ranks - 1, "way {way}: {errors:?}");
        }
    }
}

#[test]
fn a_wrong_label_of_the_test_is_named_after_the_training() {
    let data = digits(5, 100, 37);
    let test = mislabeled(&*data.test, 4);
    let data = TrainingData {
        test: std::sync::Arc::new(test),
        ..data
    };
    let mut errors = on_ranks(1, &config(), None, |trainer| {
        trainer.fit(model(), &data).map(drop).unwrap_err()
    });
    let TrainError::TestData(text) = errors.swap_remove(0) else {
        panic!("the test has read the label");
    };
    assert_eq!(text, expected(4, "the test").to_string());
}
