//! A training over logical shards has the same bits on any number of ranks.
//!
//! Ranks are threads here, which share a generator of random numbers, so nothing draws any; what draws is
//! tested with processes, in `tests/tests/virtual_ranks.rs`.

use burn::prelude::*;
use everburn_models::resnet50::{ResNet50, ResNet50Config, Stem};
use everburn_train::{Classifier, OptimizerConfig, OptimizerKind, StateHashes, TrainingConfig};

use crate::harness::config::optimizer;
use crate::harness::data::digits;
use crate::harness::parameters::drawn;
use crate::harness::ranks::on_ranks;
use crate::replicas::{bits, hashes};

fn config(virtual_ranks: Option<usize>) -> TrainingConfig {
    let mut config = TrainingConfig {
        epochs: 2,
        batch_size: 20,
        virtual_ranks,
        hash_every: Some(1),
        validation_samples: Some(21),
        optimizer: OptimizerConfig {
            momentum: Some(0.9),
            ..optimizer(OptimizerKind::Sgd, 0.05)
        },
        ..TrainingConfig::default()
    };
    config.ddp.max_gradient_norm = Some(1.0);
    // Several buckets, in the order in which a backward pass has filled them.
    config.ddp.bucket_bytes = 4096;
    config.ddp.first_bucket_bytes = 1024;
    config
}

/// What a training leaves behind, to the bit.
#[derive(Debug, Clone, PartialEq)]
struct Trained {
    hashes: Vec<StateHashes>,
    parameters: Vec<u32>,
    validation_loss: u64,
    test_loss: u64,
}

fn train(config: &TrainingConfig, world_size: usize) -> Trained {
    let folder = tempfile::tempdir().unwrap();
    // The last batches of an epoch are small: some logical shards have no sample of them.
    let data = digits(5, 63, 37);
    let mut results = on_ranks(world_size, config, Some(folder.path()), |trainer| {
        // Not clones of one, which would share their running statistics.
        trainer
            .fit(Classifier::<ResNet50, 4>::of_blocks(model()), &data)
            .unwrap()
    });
    let (model, report) = results.swap_remove(0);
    Trained {
        hashes: hashes(folder.path()),
        parameters: bits(&model),
        validation_loss: report.best_epoch.unwrap().validation_loss.to_bits(),
        test_loss: report.test_loss.unwrap().to_bits(),
    }
}

/// A net with batch norms.
fn model() -> ResNet50 {
    let config = ResNet50Config::new()
        .with_stem(Stem::Mnist)
        .with_blocks([1, 1, 1, 1])
        .with_width(4)
        .with_classes(10);
    drawn(config.init(&Device::flex()))
}

#[test]
fn parameters_statistics_and_losses_have_the_same_bits_on_any_number_of_ranks() {
    for virtual_ranks in [4, 5] {
        let config = config(Some(virtual_ranks));
        let alone = train(&config, 1);
        assert_eq!(alone.hashes.len(), 6, "two epochs of 42 samples");
        for world_size in 2..=4 {
            let over_ranks = train(&config, world_size);
            for (ours, theirs) in alone.hashes.iter().zip(&over_ranks.hashes) {
                let (step, difference) = (ours.step, ours.first_difference(theirs));
                assert_eq!(
                    difference, None,
                    "step {step}, {virtual_ranks} on {world_size}"
                );
            }
            assert_eq!(alone, over_ranks, "{virtual_ranks} on {world_size} ranks");
        }
    }
}

#[test]
fn the_number_of_virtual_ranks_does_change_the_bits() {
    let [four, five] = [4, 5].map(|count| train(&config(Some(count)), 1));
    assert_ne!(four.parameters, five.parameters);
}
