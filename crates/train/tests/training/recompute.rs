//! The same training, whichever activations are kept.

use std::path::Path;

use burn::module::Module;
use burn::prelude::*;
use everburn_models::mnist_bn::{MnistBn, MnistBnConfig};
use everburn_train::{ActivationCheckpointing, Classifier, RunDirectory, TrainingConfig};

use crate::harness::data::digits;
use crate::harness::ranks::on_ranks;
use crate::harness::run::metric_lines;
use crate::replicas::{bits, in_common};
use crate::samples::in_bytes;

fn net(dropout: f64) -> MnistBn {
    let model = MnistBnConfig::new()
        .with_dropout(dropout)
        .with_momentum(0.1)
        .init(&Device::flex());
    drop(bits(&model)); // lazily initialised parameters are drawn now
    model
}

/// Trains on ranks that are threads.
fn train(model: &MnistBn, world_size: usize, how: &str, folder: Option<&Path>) -> Vec<u32> {
    let checkpointing: ActivationCheckpointing = how.parse().unwrap();
    let config = TrainingConfig {
        epochs: 1,
        batch_size: 12,
        // 38 samples to train on: the last global batch has two.
        validation_samples: Some(12),
        log_every: 1,
        sync_batch_norm: world_size > 1,
        activation_checkpointing: checkpointing,
        ..TrainingConfig::default()
    };
    let data = in_bytes(digits(1, 50, 10));
    in_common(on_ranks(world_size, &config, folder, |trainer| {
        // Not a clone, which would share the running statistics.
        let model = Classifier::of_checkpointed_blocks(model.valid(), checkpointing);
        let (model, report) = trainer.fit(model, &data).unwrap();
        assert!(report.test_accuracy.is_some());
        bits(&model)
    }))
}

#[test]
fn all_ways_give_the_same_bits_on_one_rank() {
    let model = net(0.0);
    let expected = train(&model, 1, "none", None);
    for how in ["blocks", "2", "99", "burn"] {
        assert_eq!(train(&model, 1, how, None), expected, "{how}");
    }
}

#[test]
fn batch_norms_over_ranks_exchange_once_more_and_give_the_same_bits() {
    let model = net(0.0);
    let expected = train(&model, 2, "none", None);
    for how in ["blocks", "burn"] {
        assert_eq!(train(&model, 2, how, None), expected, "{how}");
    }
}

#[test]
fn steps_tell_how_much_memory_they_took() {
    let folder = tempfile::tempdir().unwrap();
    train(&net(0.0), 2, "blocks", Some(folder.path()));
    let lines = metric_lines(folder.path());
    let peaks: Vec<_> = lines.iter().map(|line| line.cost.peak_memory).collect();
    let run = RunDirectory::open(folder.path()).unwrap();
    let report = run.read_report().unwrap();
    if cfg!(target_os = "linux") {
        let most = peaks.iter().max().copied().flatten();
        assert!(most.is_some_and(|bytes| bytes > 1 << 20), "{peaks:?}");
        assert_eq!(report.peak_memory, most);
    }
}
