//! A moving average of the parameters: kept, validated, saved and resumed.

use std::path::Path;

use burn::prelude::*;
use everburn_models::mnist_bn::{MnistBn, MnistBnConfig};
use everburn_train::{
    Classifier, EmaConfig, MetricSums, RunDirectory, Trainer, TrainingConfig, TrainingReport,
    load_averaged,
};

use crate::alone;
use crate::harness::config::changed;
use crate::harness::data::{Images, digits};
use crate::harness::parameters::drawn;
use crate::harness::ranks::on_ranks;
use crate::samples::in_bytes;

fn images() -> Images {
    in_bytes(digits(5, 200, 100))
}

/// A net with batch norms, without dropout.
fn model() -> MnistBn {
    let config = MnistBnConfig::new().with_dropout(0.0).with_momentum(0.1);
    drawn(config.init(&Device::flex()))
}

fn config(ema: EmaConfig) -> TrainingConfig {
    TrainingConfig {
        epochs: 2,
        batch_size: 20,
        validation_samples: Some(40),
        ema: Some(ema),
        ..TrainingConfig::default()
    }
}

fn ema(sharded: bool, validate: bool) -> EmaConfig {
    EmaConfig {
        decay: 0.9,
        sharded,
        validate,
    }
}

/// Trains on this many ranks; rank 0 records in `folder`.
fn train(
    world_size: usize,
    config: &TrainingConfig,
    folder: &Path,
    resume: bool,
) -> TrainingReport {
    let data = images();
    let reports = on_ranks(world_size, config, Some(folder), |trainer| {
        let trainer = Trainer { resume, ..trainer };
        let model = Classifier::new(model(), MnistBn::forward);
        trainer.fit(model, &data).unwrap().1
    });
    reports.into_iter().next().unwrap()
}

fn file(folder: &Path, name: &str) -> Vec<u8> {
    std::fs::read(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// What a model of a run yields on the test samples, alone.
fn measure(model: MnistBn) -> MetricSums {
    let trainer = alone(TrainingConfig::default());
    let model = Classifier::new(model, MnistBn::forward);
    trainer.evaluate(&model, &images()).unwrap().unwrap()
}

#[test]
fn whoever_keeps_it_the_average_is_the_same_and_training_is_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, config: &TrainingConfig| {
        let path = folder.path().join(name);
        train(3, config, &path, false);
        path
    };
    let plain = changed(config(ema(false, false)), |config| config.ema = None);
    let plain = run("plain", &plain);
    let first = run("first", &config(ema(false, false)));
    let sharded = run("sharded", &config(ema(true, false)));
    for path in [&first, &sharded] {
        assert_eq!(
            file(path, "model.safetensors"),
            file(&plain, "model.safetensors")
        );
        let newest = "checkpoints/epoch-0002/ema.safetensors";
        assert_eq!(file(path, newest), file(&first, newest));
        assert_eq!(
            file(path, "ema.safetensors"),
            file(&first, "ema.safetensors")
        );
    }
    assert_ne!(
        file(&first, "ema.safetensors"),
        file(&plain, "model.safetensors")
    );
    assert!(!plain.join("ema.safetensors").exists());
}

#[test]
fn a_resumed_run_goes_on_with_its_average_to_the_bit() {
    for (name, ema) in [("first", ema(false, true)), ("sharded", ema(true, false))] {
        let folder = tempfile::tempdir().unwrap();
        let path = |part: &str| folder.path().join(part);
        train(2, &config(ema), &path("at-once"), false);
        let one = changed(config(ema), |config| config.epochs = 1);
        train(2, &one, &path("in-two"), false);
        train(2, &config(ema), &path("in-two"), true);
        for file_name in ["model.safetensors", "ema.safetensors"] {
            let [theirs, ours] = ["at-once", "in-two"].map(|part| file(&path(part), file_name));
            assert_eq!(theirs, ours, "{name}: {file_name}");
        }
    }
}

#[test]
fn what_is_validated_and_tested_is_the_averaged_model_where_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let report = |name: &str, ema| train(2, &config(ema), &folder.path().join(name), false);
    let plain = report("plain", ema(false, false));
    let averaged = report("averaged", ema(false, true));
    assert!(averaged.averaged && !plain.averaged);
    let run = RunDirectory::open(folder.path().join("averaged")).unwrap();
    let measured = measure(load_averaged(model(), &run).unwrap());
    let apart = (averaged.test_loss.unwrap() - measured.mean_loss()).abs();
    assert!(apart <= 1e-6 * measured.mean_loss(), "{apart:e}");
    assert_ne!(plain.test_loss, averaged.test_loss);
    let validated = |report: &TrainingReport| report.best_epoch.unwrap().validation_loss;
    assert_ne!(validated(&plain), validated(&averaged));
}

#[test]
fn ranks_that_take_steps_by_themselves_average_what_they_have_in_common() {
    let folder = tempfile::tempdir().unwrap();
    let config = changed(config(ema(true, true)), |config| {
        config.sync = "every=3".parse().unwrap();
    });
    let report = train(2, &config, folder.path(), false);
    let run = RunDirectory::open(folder.path()).unwrap();
    let measured = measure(load_averaged(model(), &run).unwrap());
    let apart = (report.test_loss.unwrap() - measured.mean_loss()).abs();
    assert!(apart <= 1e-6 * measured.mean_loss(), "{apart:e}");
}
