//! However samples come to the device and losses from it, the training is the same.

use burn::prelude::*;
use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_models::mlp::{Mlp, MlpConfig};
use everburn_tests::AssertContains;
use everburn_train::{
    Classifier, MetricKind, OptimizerKind, ReadMetrics, RunDirectory, StopSignal, TrainError,
    Trainer, TrainingConfig,
};

use crate::alone;
use crate::harness::config::{changed, optimizer};
use crate::harness::data::{Images, digits};
use crate::harness::parameters::drawn;
use crate::harness::ranks::on_ranks;
use crate::harness::run::{metric_lines, step_lines};
use crate::replicas::bits;

fn data(samples: usize) -> Images {
    digits(5, samples, 37)
}

fn model() -> Classifier<Mlp, 4> {
    Classifier::of_blocks(drawn(MlpConfig::new().init(&Device::flex())))
}

fn config() -> TrainingConfig {
    TrainingConfig {
        epochs: 2,
        batch_size: 20,
        log_every: 1,
        compare_every: 5,
        validation_samples: Some(21),
        ..TrainingConfig::default()
    }
}

/// What a run has recorded, without times.
#[derive(Debug, PartialEq)]
struct Recorded {
    lines: Vec<(MetricKind, usize, usize, u64, u64)>,
    /// The bits of all parameters.
    weights: Vec<u32>,
    steps: usize,
}

fn train(ranks: usize, config: &TrainingConfig) -> Recorded {
    train_after(ranks, config, None)
}

/// The same, where each shape of batch is run before if `warm_up` says so.
fn train_after(ranks: usize, config: &TrainingConfig, warm_up: Option<bool>) -> Recorded {
    let folder = tempfile::tempdir().unwrap();
    let mut results = on_ranks(ranks, config, Some(folder.path()), |trainer| {
        let trainer = Trainer { warm_up, ..trainer };
        let (model, report) = match config.input.on_device {
            true => {
                let data = trainer.on_device(data(121), Some(1 << 40)).unwrap();
                trainer.fit(model(), &data).unwrap()
            }
            false => trainer.fit(model(), &data(121)).unwrap(),
        };
        (bits(&model), report.steps)
    });
    let (weights, steps) = results.swap_remove(0);
    let lines = metric_lines(folder.path()).into_iter();
    let lines = lines.map(|line| {
        let (loss, accuracy) = (line.loss.to_bits(), line.accuracy.unwrap().to_bits());
        (line.kind, line.epoch, line.step, loss, accuracy)
    });
    Recorded {
        lines: lines.collect(),
        weights,
        steps,
    }
}

#[test]
fn the_way_of_samples_and_losses_changes_no_bit() {
    for ranks in [1, 2] {
        let plain = train(ranks, &config());
        assert_eq!(plain.steps, 10);
        let steps = plain.lines.iter().filter(|line| line.0 == MetricKind::Step);
        assert_eq!(steps.count(), 10);
        let with = |change: fn(&mut TrainingConfig)| train(ranks, &changed(config(), change));
        let threads = with(|config| config.input.workers = Some(2));
        assert_eq!(threads, plain, "{ranks} ranks, threads");
        let on_device = with(|config| config.input.on_device = true);
        assert_eq!(on_device, plain, "{ranks} ranks, data on the device");
        let late = with(|config| config.read_metrics = ReadMetrics::Late);
        assert_eq!(late, plain, "{ranks} ranks, losses read late");
        let parts = with(|config| config.accumulate = 3);
        let late_parts = with(|config| {
            config.accumulate = 3;
            config.read_metrics = ReadMetrics::Late;
            config.input.workers = Some(1);
        });
        assert_eq!(late_parts, parts, "{ranks} ranks, micro-batches read late");
    }
}

#[test]
fn a_training_that_was_warmed_up_is_the_same_one() {
    for ranks in [1, 3] {
        let cold = train_after(ranks, &config(), Some(false));
        assert_eq!(
            train_after(ranks, &config(), Some(true)),
            cold,
            "{ranks} ranks"
        );
    }
}

#[test]
fn all_shapes_of_batches_are_run_once() {
    // Five batches of 20 and one of 7, each in shares of a third; validation in one batch of 21, the test in
    // one of 37.
    let group = ProcessGroup::over_threads(3, GroupOptions::default()).swap_remove(1);
    let trainer = Trainer::new(config(), group);
    let warm_up = trainer.warm_up(model(), &data(128)).unwrap();
    assert_eq!((warm_up.shapes, warm_up.kernels), (4, 0));
    assert!(warm_up.seconds > 0.0);
}

#[test]
fn a_run_whose_losses_are_read_late_stops_at_its_limit_and_goes_on_from_there() {
    let late = changed(config(), |config| config.read_metrics = ReadMetrics::Late);
    let whole = train(1, &late);
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = Trainer {
        run: Some(RunDirectory::create(folder.path().join("run")).unwrap()),
        ..alone(changed(late.clone(), |config| config.steps = Some(7)))
    };
    let (_, report) = trainer.fit(model(), &data(121)).unwrap();
    assert_eq!(report.steps, 7);
    trainer.config = late;
    trainer.resume = true;
    let (model, _) = trainer.fit(model(), &data(121)).unwrap();
    assert_eq!(bits(&model), whole.weights);
    let steps = step_lines(&folder.path().join("run")).into_iter();
    let steps: Vec<_> = steps.map(|line| (line.step, line.loss.to_bits())).collect();
    let expected = whole.lines.iter().filter(|line| line.0 == MetricKind::Step);
    assert_eq!(
        steps,
        expected.map(|line| (line.2, line.3)).collect::<Vec<_>>()
    );
}

#[test]
fn a_loss_that_is_no_number_is_found_with_its_step_though_it_is_read_late() {
    let config = TrainingConfig {
        read_metrics: ReadMetrics::Late,
        compare_every: 0,
        optimizer: optimizer(OptimizerKind::Sgd, 1e20),
        ..config()
    };
    let at_once = changed(config.clone(), |it| it.read_metrics = ReadMetrics::EachStep);
    let found = [config, at_once].map(|config| {
        let trainer = alone(config);
        match trainer.fit(model(), &data(121)).map(drop).unwrap_err() {
            error @ TrainError::LossNotFinite {
                step: Some(step),
                epoch,
                ..
            } => {
                let text = error.to_string();
                // Nothing was learnt before the first step: then only the data and the model can be at fault.
                assert_eq!(
                    text.contains("the training has diverged"),
                    step > 1,
                    "{text}"
                );
                (step, epoch)
            }
            error => panic!("{error}"),
        }
    });
    assert_eq!(found[0], found[1]);
}

#[test]
fn a_wish_to_stop_is_heard_though_losses_are_read_late() {
    let config = TrainingConfig {
        epochs: 1_000,
        read_metrics: ReadMetrics::Late,
        ..config()
    };
    let stop = StopSignal::default();
    let trainer = Trainer {
        stop: stop.clone(),
        ..alone(config)
    };
    stop.set();
    let (_, report) = trainer.fit(model(), &data(121)).unwrap();
    assert!(
        report
            .stopped
            .is_some_and(|why| why.starts_with("on request"))
    );
    assert_eq!(report.steps, 1);
}

#[test]
fn a_set_that_does_not_fit_is_refused_before_it_is_placed() {
    let config = changed(config(), |config| config.input.on_device = true);
    let trainer = alone(config);
    let error = trainer.on_device(data(121), Some(1 << 19)).err().unwrap();
    let error = error.to_string();
    error.assert_contains(["`training.input.on_device`"]);
    assert!(trainer.on_device(data(121), None).is_ok());
}
