//! A moving average of the parameters: kept, validated, saved and resumed.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use burn::module::Module;
use burn::prelude::*;
use burn::store::ModuleRecord;
use burn::tensor::Bytes;
use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_datasets::{ImageBatcher, ImageItem, Split, SyntheticDigits};
use everburn_models::mnist_bn::{MnistBn, MnistBnConfig};
use everburn_train::{
    Classifier, EmaConfig, RunDirectory, Tally, Trainer, TrainingConfig, TrainingData,
    TrainingReport, load_averaged,
};

type Images = TrainingData<ImageItem, (Tensor<4>, Tensor<1, Int>)>;

fn images() -> Images {
    let digits = SyntheticDigits::new(5);
    TrainingData {
        train: Arc::new(digits.generate(Split::Train, 200).unwrap()),
        test: Arc::new(digits.generate(Split::Test, 100).unwrap()),
        batcher: Arc::new(ImageBatcher::bytes()),
        name: "digits".to_string(),
        fingerprint: String::new(),
        origin: "generated".to_string(),
    }
}

/// A net with batch norms, without dropout; always of the same numbers: they are drawn once.
fn model() -> MnistBn {
    static WEIGHTS: OnceLock<Vec<u8>> = OnceLock::new();
    let config = MnistBnConfig::new().with_dropout(0.0).with_momentum(0.1);
    let model = config.init(&Device::flex());
    let weights = WEIGHTS.get_or_init(|| {
        let record = model.clone().into_record().into_bytes();
        record.unwrap().to_vec()
    });
    let record = ModuleRecord::from_bytes(Bytes::from_bytes_vec(weights.clone()));
    model.try_load_record(record.unwrap()).unwrap()
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

/// A folder that another training can go on with.
fn run_directory(folder: &Path, config: &TrainingConfig) -> RunDirectory {
    let run = RunDirectory::create(folder).unwrap();
    run.write_config(config).unwrap();
    run
}

/// Trains on so many ranks; rank 0 records in `folder`.
fn train(
    world_size: usize,
    config: &TrainingConfig,
    folder: &Path,
    resume: bool,
) -> TrainingReport {
    let groups = ProcessGroup::over_threads(world_size, GroupOptions::default());
    let data = &images();
    std::thread::scope(|scope| {
        let ranks = groups.into_iter().map(|group| {
            let run = (group.rank() == 0).then(|| run_directory(folder, config));
            let model = model();
            scope.spawn(move || {
                let trainer = Trainer {
                    run,
                    resume,
                    ..Trainer::new(config.clone(), group)
                };
                let model = Classifier::new(model, MnistBn::forward);
                trainer.fit(model, data).unwrap().1
            })
        });
        let ranks = ranks.collect::<Vec<_>>();
        let mut reports = ranks.into_iter().map(|rank| rank.join().unwrap());
        reports.next().unwrap()
    })
}

fn file(folder: &Path, name: &str) -> Vec<u8> {
    std::fs::read(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// What a model of a run yields on the test samples, alone.
fn measure(model: MnistBn) -> Tally {
    let group = ProcessGroup::alone(GroupOptions::default());
    let trainer = Trainer::new(TrainingConfig::default(), group);
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
    let plain = TrainingConfig {
        ema: None,
        ..config(ema(false, false))
    };
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
        let one = TrainingConfig {
            epochs: 1,
            ..config(ema)
        };
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
    let config = TrainingConfig {
        sync: "every=3".parse().unwrap(),
        ..config(ema(true, true))
    };
    let report = train(2, &config, folder.path(), false);
    let run = RunDirectory::open(folder.path()).unwrap();
    let measured = measure(load_averaged(model(), &run).unwrap());
    let apart = (report.test_loss.unwrap() - measured.mean_loss()).abs();
    assert!(apart <= 1e-6 * measured.mean_loss(), "{apart:e}");
}
