//! Trains Everburn's `mlp` data-parallel over threads, each of them a rank.

use std::error::Error;
use std::sync::Arc;
use std::thread;

use everburn::prelude::*;
use everburn_datasets::{ImageBatcher, ImageDataset, Split, SyntheticDigits};
use everburn_models::mlp::{Mlp, MlpConfig};

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
    let groups = ProcessGroup::over_threads(ranks, GroupOptions::default()).into_iter();
    let threads = groups.map(|group| {
        let (train, test) = (train.clone(), test.clone());
        thread::spawn(move || train_rank(group, train, test))
    });
    let threads = threads.collect::<Vec<_>>().into_iter();
    let reports = threads.map(|rank| rank.join().expect("a rank panicked"));
    let mut reports = reports.collect::<Result<Vec<_>, _>>()?;
    Ok(reports.swap_remove(0)) // every rank has the same
}

fn train_rank(
    group: ProcessGroup,
    train: ImageDataset,
    test: ImageDataset,
) -> Result<TrainingReport, TrainError> {
    let trainer = Trainer::new(TrainingConfig::default(), group);
    let data = TrainingData {
        train: Arc::new(train),
        test: Arc::new(test),
        batcher: Arc::new(ImageBatcher::unit()),
        name: "synthetic-digits".to_string(),
        origin: "generated".to_string(),
    };
    let model = MlpConfig::new().init(&trainer.device);
    let (_model, report) = trainer.fit(Classifier::new(model, Mlp::forward), &data)?;
    Ok(report)
}

#[test]
fn four_threads_learn_digits() {
    let report = train_on_threads(4, 10_000).unwrap();
    assert_eq!((report.world_size, report.epochs), (4, 3));
    assert!(report.test_accuracy.unwrap() > 0.8, "{report:?}");
}
