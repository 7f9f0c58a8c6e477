//! Running statistics of ranks within an epoch: a checkpoint changes them in no training, and a resumed one has each rank's.

use std::path::Path;

use burn::prelude::*;
use everburn_distributed::BufferSync;
use everburn_models::mnist_bn::{MnistBn, MnistBnConfig};
use everburn_train::{Classifier, Trainer, TrainingConfig};

use crate::harness::config::changed;
use crate::harness::data::digits;
use crate::harness::parameters::drawn;
use crate::harness::ranks::on_ranks;
use crate::harness::run::metric_lines;
use crate::replicas::{bits, in_common};

/// 15 steps of 12 samples in an epoch.
fn config() -> TrainingConfig {
    TrainingConfig {
        epochs: 2,
        batch_size: 12,
        validation_samples: Some(20),
        log_every: 1,
        ..TrainingConfig::default()
    }
}

/// The bits of the model after a training, buffers included, with those of each line of the metrics.
fn train(
    folder: &Path,
    config: &TrainingConfig,
    ranks: usize,
    resume: bool,
) -> (Vec<u32>, Vec<(usize, u64)>) {
    let data = digits(5, 200, 40);
    let models = on_ranks(ranks, config, Some(folder), |trainer| {
        let trainer = Trainer { resume, ..trainer };
        let model = MnistBnConfig::new().with_dropout(0.0).init(&Device::flex());
        let model = Classifier::new(drawn(model), MnistBn::forward);
        bits(&trainer.fit(model, &data).unwrap().0)
    });
    let lines = metric_lines(folder).into_iter();
    let lines = lines.map(|line| (line.step, line.loss.to_bits()));
    (in_common(models), lines.collect())
}

/// The numbers of ranks whose statistics the checkpoints below `folder` have.
fn saved_ranks(folder: &Path) -> Vec<u64> {
    let checkpoints = std::fs::read_dir(folder.join("checkpoints")).unwrap();
    let files = checkpoints.map(|entry| entry.unwrap().path().join("buffers.safetensors"));
    let files = files.filter(|file| file.exists());
    let ranks = files.map(|file| {
        let bytes = std::fs::read(file).unwrap();
        let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
        let head = &rest[..u64::from_le_bytes(*length) as usize];
        let head: serde_json::Value = serde_json::from_slice(head).unwrap();
        head["samples"]["shape"][0].as_u64().unwrap()
    });
    ranks.collect()
}

#[test]
fn checkpoints_change_no_bit_of_a_training_and_a_resumed_one_has_all_its_bits() {
    for buffers in [BufferSync::Average, BufferSync::Broadcast] {
        let mut config = config();
        config.ddp.buffers = buffers;
        // Ranks share the 12 samples of a batch in unequal parts: the mean is weighted.
        config.balance = "3,1".parse().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let in_folder = |name: &str| folder.path().join(name);
        let plain = train(&in_folder("plain"), &config, 2, false);
        assert!(saved_ranks(&in_folder("plain")).is_empty());
        let often = TrainingConfig {
            checkpoint_every: "2steps".parse().unwrap(),
            keep_checkpoints: 100,
            ..config.clone()
        };
        assert_eq!(train(&in_folder("often"), &often, 2, false), plain);
        assert_eq!(saved_ranks(&in_folder("often")), [2; 14]);
        // Stopped within the first epoch, and within the second.
        for steps in [7, 19] {
            let name = format!("stopped-{steps}");
            let stopped = changed(config.clone(), |config| config.steps = Some(steps));
            train(&in_folder(&name), &stopped, 2, false);
            let resumed = train(&in_folder(&name), &config, 2, true).0;
            assert_eq!(resumed, plain.0, "{buffers}, stopped after step {steps}");
        }
    }
}

#[test]
fn another_number_of_ranks_continues_from_the_mean() {
    let folder = tempfile::tempdir().unwrap();
    let stopped = changed(config(), |config| config.steps = Some(7));
    train(folder.path(), &stopped, 3, false);
    assert_eq!(saved_ranks(folder.path()), [3]);
    for ranks in [2, 1] {
        let (model, lines) = train(folder.path(), &config(), ranks, true);
        assert_eq!(lines.last().unwrap().0, 30);
        assert!(model.iter().all(|bits| f32::from_bits(*bits).is_finite()));
    }
}
