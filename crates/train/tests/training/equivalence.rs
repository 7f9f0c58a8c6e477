//! One rank and several ranks, same seed and same global batch: the same training.

use burn::module::Module;
use burn::prelude::*;
use everburn_models::mnist::{Mnist, MnistConfig};
use everburn_models::mnist_bn::{MnistBn, MnistBnConfig};
use everburn_train::{Classifier, MetricLine, OptimizerConfig, OptimizerKind, TrainingConfig};

use crate::alone;
use crate::harness::config::{changed, optimizer};
use crate::harness::data::{Images, digits};
use crate::harness::parameters::{difference, drawn_within, inputs, parameters};
use crate::harness::ranks::on_ranks;
use crate::harness::run::step_lines;
use crate::replicas::in_common;
use crate::samples::in_bytes;

fn images() -> Images {
    digits(1, 4_000, 500)
}

/// The model with its first weights, and biases of zero.
fn drawn<M: Module>(model: M) -> M {
    drawn_within(model, 1, |shape| match shape {
        [_] => 0.0,
        _ => 1.4 / inputs(shape).sqrt(),
    })
}

fn initial_weights() -> Mnist {
    drawn(MnistConfig::new().init(&Device::flex()))
}

/// Trains the two-convolution net on ranks that are threads; returns the loss of each step and
/// the parameters.
fn train_mnist(model: &Mnist, world_size: usize, config: &TrainingConfig) -> (Vec<f64>, Vec<f32>) {
    let folder = tempfile::tempdir().unwrap();
    let data = images();
    let replicas = on_ranks(world_size, config, Some(folder.path()), |trainer| {
        let model = Classifier::new(model.clone(), Mnist::forward);
        let (model, report) = trainer.fit(model, &data).unwrap();
        assert_eq!(report.world_size, world_size);
        parameters(&model).concat()
    });
    let steps = step_lines(folder.path());
    for MetricLine { cost, .. } in &steps {
        assert!(
            cost.exposed <= cost.waited && cost.waited <= cost.seconds,
            "{cost:?}"
        );
        let alone = world_size == 1;
        assert_eq!(cost.gradient_bytes == 0, alone, "{cost:?}");
        assert_eq!(cost.communication == 0.0, alone, "{cost:?}");
    }
    let losses = steps.iter().map(|line| line.loss).collect();
    (losses, in_common(replicas))
}

fn fifty_steps(optimizer: OptimizerConfig) -> TrainingConfig {
    TrainingConfig {
        epochs: 1,
        steps: Some(50),
        batch_size: 64,
        validation_samples: Some(500),
        log_every: 1,
        optimizer,
        ..TrainingConfig::default()
    }
}

fn largest_relative_difference(left: &[f64], right: &[f64]) -> f64 {
    assert_eq!(left.len(), right.len());
    let differences = left
        .iter()
        .zip(right)
        .map(|(a, b)| (a - b).abs() / a.abs().max(b.abs()));
    differences.fold(0.0, f64::max)
}

#[test]
fn sgd_with_momentum_agrees_on_one_and_more_ranks() {
    let config = fifty_steps(OptimizerConfig {
        momentum: Some(0.9),
        ..optimizer(OptimizerKind::Sgd, 0.01)
    });
    let model = initial_weights();
    let (losses, weights) = train_mnist(&model, 1, &config);
    assert_eq!(losses.len(), 50);
    assert!(
        losses[49] < losses[0],
        "it learns: {} to {}",
        losses[0],
        losses[49]
    );
    for world_size in [2, 3, 4] {
        let (other_losses, other_weights) = train_mnist(&model, world_size, &config);
        let loss = largest_relative_difference(&losses, &other_losses);
        assert!(
            loss <= 1e-5,
            "losses of {world_size} ranks differ by {loss:e}"
        );
        let weight = difference(&weights, &other_weights);
        assert!(
            weight <= 1e-5,
            "parameters of {world_size} ranks differ by {weight:e}"
        );
    }
}

#[test]
fn micro_batches_and_exchange_after_the_backward_pass_change_nothing() {
    let config = fifty_steps(optimizer(OptimizerKind::Sgd, 0.01));
    let config = changed(config, |config| config.steps = Some(10));
    let model = initial_weights();
    let (losses, weights) = train_mnist(&model, 2, &config);
    let after = changed(config.clone(), |config| config.overlap = false);
    assert_eq!(train_mnist(&model, 2, &after), (losses.clone(), weights));
    for (world_size, accumulate) in [(1, 4), (2, 3), (3, 7)] {
        let config = changed(config.clone(), |config| config.accumulate = accumulate);
        let (others, _) = train_mnist(&model, world_size, &config);
        let loss = largest_relative_difference(&losses, &others);
        assert!(
            loss <= 1e-5,
            "{world_size} ranks, {accumulate} parts: {loss:e}"
        );
    }
}

#[test]
fn batch_norm_statistics_and_dropout_survive_several_ranks() {
    let data = in_bytes(images());
    let config = TrainingConfig {
        epochs: 3,
        batch_size: 32,
        validation_samples: Some(1_000),
        schedule: everburn_train::LrSchedule::Cosine,
        optimizer: optimizer(OptimizerKind::default(), 3e-3),
        ..TrainingConfig::default()
    };
    let accuracies = on_ranks(3, &config, None, |trainer| {
        let model = MnistBnConfig::new()
            .with_momentum(0.1)
            .init(&trainer.device);
        let model = Classifier::new(model, MnistBn::forward);
        let (model, report) = trainer.fit(model, &data).unwrap();
        // The evaluation normalises by the running statistics: had they stayed those of
        // one rank, or been forgotten, this would be chance.
        let again = trainer.evaluate(&model, &data).unwrap().unwrap();
        assert_eq!(again.accuracy(), report.test_accuracy);
        (again.accuracy().unwrap(), parameters(&model))
    });
    assert!(accuracies.iter().all(|rank| *rank == accuracies[0]));
    assert!(accuracies[0].0 > 0.7, "accuracy {}", accuracies[0].0);
}

/// Trains the net with batch norm, without dropout and with statistics over all ranks; returns the
/// parameters and the running statistics.
fn train_mnist_bn(model: &MnistBn, world_size: usize, config: &TrainingConfig) -> Vec<f32> {
    let data = in_bytes(digits(1, 50, 10));
    in_common(on_ranks(world_size, config, None, |trainer| {
        // Not a clone, which would share the running statistics.
        let model = model.valid();
        let model = everburn_distributed::synchronize_batch_norms(model, &trainer.group).unwrap();
        let model = Classifier::new(model, MnistBn::forward);
        let (model, report) = trainer.fit(model, &data).unwrap();
        assert!(report.test_accuracy.is_some());
        parameters(&model).concat()
    }))
}

#[test]
fn batch_norm_over_all_ranks_agrees_on_one_and_more_ranks() {
    let model = MnistBnConfig::new().with_dropout(0.0).with_momentum(0.1);
    let model = drawn(model.init(&Device::flex()));
    let config = TrainingConfig {
        epochs: 2,
        // 38 samples to train on: the last global batch has two, which leaves some ranks none.
        batch_size: 12,
        validation_samples: Some(12),
        optimizer: optimizer(OptimizerKind::Sgd, 0.01),
        ..TrainingConfig::default()
    };
    let expected = train_mnist_bn(&model, 1, &config);
    for (world_size, overlap) in [(2, true), (3, true), (4, true), (4, false)] {
        let config = changed(config.clone(), |config| config.overlap = overlap);
        let trained = train_mnist_bn(&model, world_size, &config);
        let differences = expected.iter().zip(&trained);
        let largest = differences
            .map(|(a, b)| (a - b).abs() / a.abs().max(b.abs()).max(1.0))
            .fold(0.0, f32::max);
        assert!(largest <= 1e-5, "{world_size} ranks differ by {largest:e}");
    }
    // Ranks with different numbers of micro-batches keep step too.
    let config = changed(config, |config| config.accumulate = 3);
    assert_eq!(train_mnist_bn(&model, 4, &config).len(), expected.len());
}

#[test]
#[ignore = "60,000 passes: a step of `cargo xtask check`"]
fn the_synthetic_digits_are_within_reach_of_the_small_net() {
    let data = digits(everburn_datasets::DEFAULT_SYNTHETIC_SEED, 30_000, 5_000);
    let config = TrainingConfig {
        epochs: 2,
        validation_samples: Some(1_000),
        ..TrainingConfig::default()
    };
    let trainer = alone(config);
    trainer.seed();
    let model = Classifier::new(MnistConfig::new().init(&trainer.device), Mnist::forward);
    let (_, report) = trainer.fit(model, &data).unwrap();
    let accuracy = report.test_accuracy.unwrap();
    // Tests beside this one draw from the same generator: weights and dropout differ from run to run.
    assert!(accuracy > 0.94, "accuracy {accuracy}");
}
