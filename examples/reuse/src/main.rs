//! Trains Everburn's `mlp` data-parallel over threads, each of them a rank.

use std::error::Error;

use everburn::burn::module::Module;
use everburn::burn::prelude::Device;
use everburn::datasets::{ImageBatcher, Split, SyntheticDigits};
use everburn::models::mlp::{Mlp, MlpConfig};
use everburn::prelude::*;

fn main() -> Result<(), Box<dyn Error>> {
    let report = train_on_threads(4, 10_000)?;
    let accuracy = report.test_accuracy.unwrap_or(f64::NAN);
    println!("{} ranks: test accuracy {accuracy:.4}", report.world_size);
    Ok(())
}

fn train_on_threads(ranks: usize, samples: usize) -> Result<TrainingReport, Box<dyn Error>> {
    let digits = SyntheticDigits::new(0);
    let train = digits.generate(Split::Train, samples)?;
    let test = digits.generate(Split::Test, 1_000)?;
    let data = TrainingData::new("synthetic-digits", train, test, ImageBatcher::unit());
    let devices = vec![Device::flex(); ranks];
    let config = TrainingConfig::default();
    config.seed_for_weights(&devices[0]);
    let model = MlpConfig::new().init(&devices[0]);
    let mut reports = data_parallel(&devices, GroupOptions::default(), |group, device| {
        let model = Classifier::new(model.clone().fork(&device), Mlp::forward);
        let trainer = Trainer { device, ..Trainer::new(config.clone(), group) };
        let (_trained, report) = trainer.fit(model, &data)?;
        Ok(report)
    })?;
    Ok(reports.swap_remove(0)) // every rank has the same
}

#[test]
fn four_threads_learn_digits() {
    let report = train_on_threads(4, 10_000).unwrap();
    assert_eq!((report.world_size, report.epochs), (4, 3));
    assert!(report.test_accuracy.unwrap() > 0.8, "{report:?}");
}
