//! Ranks of different speed share each global batch by that, and learn what they would with equal shares.
//!
//! How long a rank has computed is made up here: nothing depends on how fast the machine is.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use burn::data::dataset::InMemDataset;
use burn::prelude::*;
use everburn_models::mlp::Mlp;
use everburn_train::{
    Classifier, InputConfig, MetricLine, OptimizerKind, Trainer, TrainingConfig, TrainingData,
};

use crate::harness::config::{changed, optimizer};
use crate::harness::ranks::on_ranks;
use crate::harness::run::step_lines;
use crate::read_once::{Pixels, held_out, learned_from, model};
use crate::replicas::hashes;

/// 41 batches of 8 samples an epoch, and one of 5.
const SAMPLES: usize = 333;
const BATCH: usize = 8;
const STEPS: usize = 42;

/// The step after which ranks compare their times for the first time.
const FIRST: usize = 20;

/// The seconds per sample of a rank in a step.
type PerSample = fn(rank: usize, step: usize) -> f64;

/// What a rank has computed: the samples of each pass.
type Passes = Vec<Vec<usize>>;

fn config(balance: &str) -> TrainingConfig {
    TrainingConfig {
        epochs: 2,
        batch_size: BATCH,
        balance: balance.parse().unwrap(),
        log_every: 1,
        optimizer: optimizer(OptimizerKind::Sgd, 0.05),
        ..TrainingConfig::default()
    }
}

/// Trains on two ranks, and returns the passes of each over training samples.
fn train(
    model: &Mlp,
    config: &TrainingConfig,
    folder: &Path,
    resume: bool,
    per_sample: PerSample,
) -> Vec<Passes> {
    on_ranks(2, config, Some(folder), |trainer| {
        let rank = trainer.group.rank();
        let numbers = InMemDataset::new((0..SAMPLES as i64).collect());
        let data = TrainingData::new("numbers", numbers, held_out(), Pixels);
        let data = data.with_validation(held_out());
        let read = Arc::new(Mutex::new(Passes::new()));
        let record = Arc::clone(&read);
        let forward = move |model: &Mlp, images: Tensor<4>| {
            let numbers = learned_from(&images);
            if !numbers.is_empty() {
                record.lock().unwrap().push(numbers);
            }
            model.forward(images * 1e-6)
        };
        let steps = AtomicUsize::new(0);
        let seconds = move |samples: usize, _measured: f64| {
            let step = steps.fetch_add(1, Ordering::Relaxed) + 1;
            samples as f64 * per_sample(rank, step)
        };
        let trainer = Trainer {
            resume,
            compute_seconds: Some(Arc::new(seconds)),
            ..trainer
        };
        let model = Classifier::<_, 4>::new(model.clone(), forward);
        trainer.fit(model, &data).unwrap();
        std::mem::take(&mut *read.lock().unwrap())
    })
}

fn sizes(passes: &[Vec<usize>]) -> Vec<usize> {
    passes.iter().map(Vec::len).collect()
}

/// `count` times the same number.
fn times(count: usize, size: usize) -> impl Iterator<Item = usize> {
    std::iter::repeat_n(size, count)
}

/// Checks that each sample is among these passes once.
fn assert_each_once<'a>(passes: impl IntoIterator<Item = &'a Vec<usize>>) {
    let mut read: Vec<usize> = passes.into_iter().flatten().copied().collect();
    read.sort_unstable();
    assert_eq!(read, (0..SAMPLES).collect::<Vec<_>>());
}

fn losses(folder: &Path) -> Vec<f64> {
    let lines = step_lines(folder).into_iter();
    lines.map(|MetricLine { loss, .. }| loss).collect()
}

/// Rank 1 takes three times as long; later rank 0 does.
fn slow_in_turn(rank: usize, step: usize) -> f64 {
    let slow = if step <= 30 { 1 } else { 0 };
    if rank == slow { 3e-3 } else { 1e-3 }
}

#[test]
fn shares_follow_the_speed_within_an_epoch_and_after_it_and_each_sample_is_learned_from_once() {
    for workers in [0, 2] {
        let (folder, equal) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let input = InputConfig {
            workers: Some(workers),
            prefetch: 3,
            ..InputConfig::default()
        };
        let with_workers = |balance: &str| changed(config(balance), |it| it.input = input.clone());
        let model = model();
        let (auto, run) = (with_workers("auto"), folder.path().join("run"));
        let ranks = train(&model, &auto, &run, false, slow_in_turn);
        // Each rank takes a pass a step. In the last of an epoch there are 5 samples.
        let first_epoch = times(FIRST, 4).chain(times(21, 6)).chain(times(1, 4));
        let expected = first_epoch.chain(times(41, 2)).chain(times(1, 1));
        assert_eq!(sizes(&ranks[0]), expected.collect::<Vec<_>>());
        for (of_0, of_1) in ranks[0].iter().zip(&ranks[1]) {
            let all = of_0.len() + of_1.len();
            assert!(all == BATCH || all == SAMPLES % BATCH, "{all}");
        }
        for epoch in [0..STEPS, STEPS..2 * STEPS] {
            assert_each_once(ranks.iter().flat_map(|passes| &passes[epoch.clone()]));
        }
        let other = equal.path().join("run");
        let plain = train(&model, &with_workers("equal"), &other, false, slow_in_turn);
        assert!(
            sizes(&plain[0])
                .into_iter()
                .all(|size| size == 4 || size == 3)
        );
        let (ours, theirs) = (losses(&run), losses(&other));
        assert_eq!(ours.len(), 2 * STEPS);
        for (step, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            let difference = (ours - theirs).abs();
            assert!(
                difference <= 1e-5 * theirs.abs(),
                "step {}: {ours} {theirs}",
                step + 1
            );
        }
    }
}

#[test]
fn a_run_is_resumed_within_an_epoch_whose_shares_had_changed() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let (model, last) = (model(), 33);
    let epoch = changed(config("auto"), |config| config.epochs = 1);
    let cut = changed(epoch.clone(), |config| config.steps = Some(last));
    let first = train(&model, &cut, &run, false, slow_in_turn);
    assert_eq!(first[0].len(), last);
    assert_eq!(first[0][last - 1].len(), 6);
    let second = train(&model, &epoch, &run, true, slow_in_turn);
    assert_eq!(second[0][0].len(), 4, "ranks measure anew");
    assert_each_once(first.iter().chain(&second).flatten());
}

#[test]
fn whole_logical_shards_follow_the_speed_and_the_bits_stay_the_same() {
    let model = model();
    let train = |balance: &str| {
        let folder = tempfile::tempdir().unwrap();
        let config = TrainingConfig {
            epochs: 1,
            virtual_ranks: Some(4),
            hash_every: Some(1),
            ..config(balance)
        };
        let ranks = train(&model, &config, folder.path(), false, slow_in_turn);
        assert_each_once(ranks.iter().flatten());
        (ranks[0].len(), hashes(folder.path()))
    };
    let (passes, equal) = train("equal");
    assert_eq!(passes, 2 * STEPS);
    assert_eq!(equal.len(), STEPS);
    let (passes, auto) = train("auto");
    assert_eq!(passes, 2 * FIRST + 3 * (STEPS - FIRST), "a pass a shard");
    assert_eq!(auto, equal);
    let (passes, weighted) = train("1,3");
    assert_eq!(passes, STEPS);
    assert_eq!(weighted, equal);
}

#[test]
fn weights_hold_from_the_first_step() {
    let folder = tempfile::tempdir().unwrap();
    let ranks = train(&model(), &config("3,1"), folder.path(), false, slow_in_turn);
    let sizes = sizes(&ranks[0]);
    assert!(
        sizes
            .chunks(STEPS)
            .all(|epoch| epoch[..STEPS - 1].iter().all(|size| *size == 6))
    );
    for epoch in [0..STEPS, STEPS..2 * STEPS] {
        assert_each_once(ranks.iter().flat_map(|passes| &passes[epoch.clone()]));
    }
}
