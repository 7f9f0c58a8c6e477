//! One rank and several ranks, same seed and same global batch: the same training.

use std::sync::Arc;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_datasets::{ImageBatcher, ImageDataset, ImageItem, Split, SyntheticDigits};
use everburn_models::mnist::{Mnist, MnistConfig};
use everburn_models::mnist_bn::{MnistBn, MnistBnConfig};
use everburn_train::{
    Classifier, MetricKind, MetricLine, OptimizerConfig, OptimizerKind, RunDirectory, Trainer,
    TrainingConfig, TrainingData,
};

type Images = TrainingData<ImageItem, (Tensor<4>, Tensor<1, Int>)>;

fn digits() -> (ImageDataset, ImageDataset) {
    let digits = SyntheticDigits::new(1);
    let train = digits.generate(Split::Train, 4_000).unwrap();
    (train, digits.generate(Split::Test, 500).unwrap())
}

fn images(train: &ImageDataset, test: &ImageDataset, batcher: ImageBatcher) -> Images {
    TrainingData {
        train: Arc::new(train.clone()),
        test: Arc::new(test.clone()),
        batcher: Arc::new(batcher),
        name: "synthetic-digits".to_string(),
        origin: "generated".to_string(),
        fingerprint: train.fingerprint(),
    }
}

/// Every parameter and buffer, flat, in visiting order.
fn parameters<M: Module>(model: &M) -> Vec<f32> {
    struct Collect(Vec<f32>);
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend(param.val().into_data().iter::<f32>());
        }
    }
    let mut collect = Collect(Vec::new());
    model.visit(&mut collect);
    collect.0
}

/// Initial weights, the same in every run of the tests: those beside this one draw from the generator
/// of Burn's device, so that even a seed would not make it so.
fn initial_weights() -> Mnist {
    drawn(MnistConfig::new().init(&Device::flex()))
}

/// `model` with such weights. What is the same for all channels, of a norm, stays.
fn drawn<M: Module>(model: M) -> M {
    struct Draw(u64);
    impl ModuleMapper for Draw {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            if D == 1 && are_alike(&param.val()) {
                return param;
            }
            let (id, old, mapper) = param.consume();
            let shape = old.dims();
            // A linear layer has its inputs first, a convolution its outputs.
            let inputs: usize = match D {
                2 => shape[0],
                _ => shape.iter().skip(1).product(),
            };
            let bound = if D == 1 {
                0.0
            } else {
                1.4 / (inputs as f32).sqrt()
            };
            let values = (0..old.shape().num_elements()).map(|_| {
                // Knuth's MMIX generator; its upper bits are the good ones.
                let step = self.0.wrapping_mul(6_364_136_223_846_793_005);
                self.0 = step.wrapping_add(1_442_695_040_888_963_407);
                bound * ((self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0)
            });
            let data = TensorData::new(values.collect::<Vec<f32>>(), shape);
            Param::from_mapped_value(id, Tensor::from_data(data, &old.device()), mapper)
        }
    }
    fn are_alike<const D: usize>(tensor: &Tensor<D>) -> bool {
        let values = tensor.to_data();
        let mut values = values.iter::<f32>();
        let first = values.next();
        values.all(|value| Some(value) == first)
    }
    model.map(&mut Draw(1))
}

/// Trains the two-convolution net on ranks that are threads; returns the loss of each step and
/// the parameters.
fn train_mnist(model: &Mnist, world_size: usize, config: &TrainingConfig) -> (Vec<f64>, Vec<f32>) {
    let folder = tempfile::tempdir().unwrap();
    let (train, test) = digits();
    let ranks = ProcessGroup::over_threads(world_size, GroupOptions::default())
        .into_iter()
        .map(|group| {
            let (config, model) = (config.clone(), model.clone());
            let data = images(&train, &test, ImageBatcher::unit());
            let run = (group.rank() == 0)
                .then(|| RunDirectory::create(folder.path().join("run")).unwrap());
            std::thread::spawn(move || {
                let trainer = Trainer {
                    run,
                    ..Trainer::new(config, group)
                };
                let model = Classifier::new(model, Mnist::forward);
                let (model, report) = trainer.fit(model, &data).unwrap();
                assert_eq!(report.world_size, world_size);
                parameters(&model)
            })
        })
        .collect::<Vec<_>>();
    let replicas = ranks
        .into_iter()
        .map(|rank| rank.join().unwrap())
        .collect::<Vec<_>>();
    for replica in &replicas {
        assert_eq!(replica, &replicas[0], "replicas are equal to the bit");
    }
    let lines = std::fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap();
    let steps: Vec<_> = lines
        .lines()
        .map(|line| serde_json::from_str::<MetricLine>(line).unwrap())
        .filter(|line| line.kind == MetricKind::Step)
        .collect();
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
    (losses, replicas[0].clone())
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
        kind: OptimizerKind::Sgd,
        learning_rate: 0.01,
        momentum: 0.9,
        ..OptimizerConfig::default()
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
        let weight = weights
            .iter()
            .zip(&other_weights)
            .map(|(a, b)| (a - b).abs());
        let weight = weight.fold(0.0, f32::max);
        assert!(
            weight <= 1e-5,
            "parameters of {world_size} ranks differ by {weight:e}"
        );
    }
}

#[test]
fn micro_batches_and_exchange_after_the_backward_pass_change_nothing() {
    let config = fifty_steps(OptimizerConfig {
        kind: OptimizerKind::Sgd,
        learning_rate: 0.01,
        ..OptimizerConfig::default()
    });
    let config = TrainingConfig {
        steps: Some(10),
        ..config
    };
    let model = initial_weights();
    let (losses, weights) = train_mnist(&model, 2, &config);
    let after = TrainingConfig {
        overlap: false,
        ..config.clone()
    };
    assert_eq!(train_mnist(&model, 2, &after), (losses.clone(), weights));
    for (world_size, accumulate) in [(1, 4), (2, 3), (3, 7)] {
        let config = TrainingConfig {
            accumulate,
            ..config.clone()
        };
        let (others, _) = train_mnist(&model, world_size, &config);
        let loss = largest_relative_difference(&losses, &others);
        assert!(
            loss <= 1e-5,
            "{world_size} ranks, {accumulate} parts: {loss:e}"
        );
    }
}

#[test]
fn adam_agrees_on_one_and_four_ranks() {
    let config = fifty_steps(OptimizerConfig::default());
    let model = initial_weights();
    let (losses, _) = train_mnist(&model, 1, &config);
    let (other_losses, _) = train_mnist(&model, 4, &config);
    let loss = largest_relative_difference(&losses, &other_losses);
    assert!(loss <= 1e-3, "losses differ by {loss:e}");
}

#[test]
fn batch_norm_statistics_and_dropout_survive_several_ranks() {
    let (train, test) = digits();
    let accuracies = ProcessGroup::over_threads(3, GroupOptions::default())
        .into_iter()
        .map(|group| {
            let data = images(&train, &test, ImageBatcher::bytes());
            std::thread::spawn(move || {
                let config = TrainingConfig {
                    epochs: 3,
                    batch_size: 32,
                    validation_samples: Some(1_000),
                    schedule: everburn_train::Schedule::Cosine,
                    optimizer: OptimizerConfig {
                        learning_rate: 3e-3,
                        ..OptimizerConfig::default()
                    },
                    ..TrainingConfig::default()
                };
                let trainer = Trainer::new(config, group);
                let model = MnistBnConfig::new()
                    .with_momentum(0.1)
                    .init(&trainer.device);
                let model = Classifier::new(model, MnistBn::forward);
                let (model, report) = trainer.fit(model, &data).unwrap();
                // The evaluation normalises by the running statistics: had they stayed those of
                // one rank, or been forgotten, this would be chance.
                let again = trainer.evaluate(&model, &data).unwrap().unwrap();
                assert_eq!(Some(again.accuracy()), report.test_accuracy);
                (again.accuracy(), parameters(&model))
            })
        })
        .collect::<Vec<_>>()
        .into_iter()
        .map(|rank| rank.join().unwrap())
        .collect::<Vec<_>>();
    assert!(accuracies.iter().all(|rank| *rank == accuracies[0]));
    assert!(accuracies[0].0 > 0.7, "accuracy {}", accuracies[0].0);
}

/// Trains the net with batch norm, without dropout and with statistics over all ranks; returns the
/// parameters and the running statistics.
fn train_mnist_bn(model: &MnistBn, world_size: usize, config: &TrainingConfig) -> Vec<f32> {
    let digits = SyntheticDigits::new(1);
    let train = digits.generate(Split::Train, 50).unwrap();
    let test = digits.generate(Split::Test, 10).unwrap();
    let ranks = ProcessGroup::over_threads(world_size, GroupOptions::default())
        .into_iter()
        .map(|group| {
            // Not a clone, which would share the running statistics.
            let (config, model) = (config.clone(), model.valid());
            let data = images(&train, &test, ImageBatcher::bytes());
            std::thread::spawn(move || {
                let model = everburn_distributed::synchronize_batch_norms(model, &group).unwrap();
                let model = Classifier::new(model, MnistBn::forward);
                let (model, report) = Trainer::new(config, group).fit(model, &data).unwrap();
                assert!(report.test_accuracy.is_some());
                parameters(&model)
            })
        })
        .collect::<Vec<_>>();
    let replicas = ranks
        .into_iter()
        .map(|rank| rank.join().unwrap())
        .collect::<Vec<_>>();
    for replica in &replicas {
        assert_eq!(replica, &replicas[0], "replicas are equal to the bit");
    }
    replicas[0].clone()
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
        optimizer: OptimizerConfig {
            kind: OptimizerKind::Sgd,
            learning_rate: 0.01,
            ..OptimizerConfig::default()
        },
        ..TrainingConfig::default()
    };
    let expected = train_mnist_bn(&model, 1, &config);
    for (world_size, overlap) in [(2, true), (3, true), (4, true), (4, false)] {
        let config = TrainingConfig {
            overlap,
            ..config.clone()
        };
        let trained = train_mnist_bn(&model, world_size, &config);
        let differences = expected.iter().zip(&trained);
        let largest = differences
            .map(|(a, b)| (a - b).abs() / a.abs().max(b.abs()).max(1.0))
            .fold(0.0, f32::max);
        assert!(largest <= 1e-5, "{world_size} ranks differ by {largest:e}");
    }
    // Ranks with different numbers of micro-batches keep step too.
    let config = TrainingConfig {
        accumulate: 3,
        ..config
    };
    assert_eq!(train_mnist_bn(&model, 4, &config).len(), expected.len());
}

#[test]
fn the_synthetic_digits_are_within_reach_of_the_small_net() {
    let digits = SyntheticDigits::new(everburn_datasets::DEFAULT_SYNTHETIC_SEED);
    let train = digits.generate(Split::Train, 30_000).unwrap();
    let test = digits.generate(Split::Test, 5_000).unwrap();
    let config = TrainingConfig {
        epochs: 2,
        validation_samples: Some(1_000),
        ..TrainingConfig::default()
    };
    let trainer = Trainer::new(config, ProcessGroup::alone(GroupOptions::default()));
    trainer.seed();
    let model = Classifier::new(MnistConfig::new().init(&trainer.device), Mnist::forward);
    let data = images(&train, &test, ImageBatcher::unit());
    let (_, report) = trainer.fit(model, &data).unwrap();
    let accuracy = report.test_accuracy.unwrap();
    // Tests beside this one draw from the same generator: weights and dropout differ from run to run.
    assert!(accuracy > 0.94, "accuracy {accuracy}");
}
