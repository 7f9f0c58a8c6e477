//! Finders: every rank finds the same, and nothing is learnt.

use std::sync::Mutex;

use burn::prelude::*;
use everburn_models::mnist_bn::{MnistBn, MnistBnConfig};
use everburn_tests::AssertContains;
use everburn_train::{
    BatchSizeLimit, Classifier, LearningRateRange, LearningRateSweep, Trainer, TrainingConfig,
};

use crate::harness::config::changed;
use crate::harness::data::{Images, digits};
use crate::harness::parameters::{drawn, parameters};
use crate::harness::ranks::on_ranks;
use crate::samples::in_bytes;

/// Of which 40 are held out.
fn images() -> Images {
    in_bytes(digits(5, 200, 100))
}

/// A net with batch norms, whose running statistics change in each step.
fn model() -> MnistBn {
    let config = MnistBnConfig::new().with_dropout(0.0);
    drawn(config.init(&Device::flex()))
}

fn config() -> TrainingConfig {
    TrainingConfig {
        batch_size: 20,
        validation_samples: Some(40),
        ..TrainingConfig::default()
    }
}

/// Sweeps on this many ranks; the weights, buffers included, stay as they are.
fn sweep(world_size: usize, config: &TrainingConfig) -> LearningRateSweep {
    let data = images();
    let range = LearningRateRange {
        from: 1e-5,
        to: 10.0,
        steps: 40,
    };
    let mut sweeps = on_ranks(world_size, config, None, |trainer| {
        let model = Classifier::new(model(), MnistBn::forward);
        let before = parameters(&model);
        let sweep = trainer.find_learning_rate(model.clone(), &data, range);
        assert_eq!(parameters(&model), before);
        sweep.unwrap()
    });
    let first = sweeps.remove(0);
    assert!(sweeps.iter().all(|other| *other == first));
    first
}

#[test]
fn a_sweep_finds_the_same_on_any_number_of_ranks() {
    let config = TrainingConfig {
        // As one rank, whose batch norms see the whole batch.
        sync_batch_norm: true,
        ..config()
    };
    let (one, two) = (sweep(1, &config), sweep(2, &config));
    assert!(one.points.len() > 20 && !one.interrupted, "{one:?}");
    for (a, b) in one.points.iter().zip(&two.points).take(20) {
        assert_eq!(a.learning_rate, b.learning_rate);
        assert!((a.loss - b.loss).abs() < 1e-3 * a.loss, "{a:?} {b:?}");
    }
    let rate = one.suggestion().unwrap();
    assert!(rate > 1e-5 && rate < 10.0, "{rate}");
}

#[test]
fn a_loss_that_is_not_finite_ends_a_sweep_on_all_ranks_without_an_error() {
    let mut config = config();
    config.optimizer.kind = everburn_train::OptimizerKind::Sgd;
    let data = images();
    let range = LearningRateRange {
        from: 1.0,
        to: 1e30,
        steps: 30,
    };
    let sweeps = on_ranks(2, &config, None, |trainer| {
        let model = Classifier::new(model(), MnistBn::forward);
        trainer.find_learning_rate(model, &data, range).unwrap()
    });
    assert!(
        sweeps[0].exploded && sweeps[0].points.len() < 30,
        "{sweeps:?}"
    );
    assert_eq!(sweeps[0], sweeps[1]);
    assert!(sweeps[0].points.iter().all(|point| point.loss.is_finite()));
}

#[test]
fn the_rank_with_the_least_memory_decides_on_the_batch_size() {
    let data = images();
    let tried = Mutex::new(Vec::new());
    let searches = on_ranks(2, &config(), None, |trainer| {
        let model = Classifier::new(model(), MnistBn::forward);
        let rank = trainer.group.rank();
        // Rank 1 has none left.
        let free = || Some(if rank == 1 { 0 } else { 1 << 50 });
        let tell = |size: &everburn_train::TriedBatchSize| {
            if rank == 0 {
                tried.lock().unwrap().push(*size);
            }
        };
        trainer.find_batch_size(model, &data, &free, &tell).unwrap()
    });
    assert_eq!(searches[0], searches[1]);
    assert_eq!(searches[0].tried, *tried.lock().unwrap());
    let search = &searches[0];
    assert_eq!((search.largest, search.limit), (2, BatchSizeLimit::Memory));
    assert!(
        search.confirmed && search.suggestion() == Some(2),
        "{search:?}"
    );

    let everything = |trainer: Trainer| {
        let model = Classifier::new(model(), MnistBn::forward);
        let free = || Some(1 << 50);
        trainer
            .find_batch_size(model, &data, &free, &|_| ())
            .unwrap()
    };
    for search in on_ranks(2, &config(), None, everything) {
        // There are 160 samples to learn from.
        assert_eq!(
            (search.largest, search.limit),
            (160, BatchSizeLimit::Samples)
        );
        assert!(search.confirmed, "{search:?}");
        let sizes: Vec<usize> = search.tried.iter().map(|tried| tried.batch_size).collect();
        assert!(sizes.starts_with(&[2, 4, 8]), "{sizes:?}");
        assert!(
            search
                .suggestion()
                .is_some_and(|size| sizes.contains(&size))
        );
    }
}

#[test]
fn what_a_finder_cannot_measure_is_refused_on_all_ranks() {
    let data = images();
    let config = changed(config(), |config| config.sync = "every=5".parse().unwrap());
    for error in on_ranks(2, &config, None, |trainer| {
        let model = Classifier::new(model(), MnistBn::forward);
        let range = LearningRateRange::default();
        trainer
            .find_learning_rate(model, &data, range)
            .unwrap_err()
            .to_string()
    }) {
        error.assert_contains(["a finder and `training.sync = 5`"]);
    }
    for error in on_ranks(2, &self::config(), None, |trainer| {
        let model = Classifier::new(model(), MnistBn::forward);
        let free = || (trainer.group.rank() == 0).then_some(1 << 50);
        trainer
            .find_batch_size(model, &data, &free, &|_| ())
            .unwrap_err()
            .to_string()
    }) {
        assert!(error.contains("how much memory is free"), "{error}");
    }
}
