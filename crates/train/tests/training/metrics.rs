//! Metrics that an objective names: they are those of all ranks' samples, whatever the number of ranks.

mod missing_gradients;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::prelude::*;
use everburn_tests::AssertContains;
use everburn_train::{
    EarlyStopping, Loss, MetricKind, MetricLine, Objective, OptimizerKind, ReadMetrics, Supervised,
    TrainError, TrainingConfig, TrainingData, TrainingReport,
};

use crate::harness::config::{changed, optimizer};
use crate::harness::parameters::parameters;
use crate::harness::ranks::on_ranks;
use crate::harness::run::metric_lines;

thread_local! {
    /// A metric more that this thread's rank reports.
    static MORE: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// The mean squared error, and two means of absolute errors, of which one is over some samples only.
#[derive(Debug, Clone, Copy)]
struct Regression;

impl Objective for Regression {
    type Input = Tensor<2>;
    type Output = Tensor<2>;
    type Targets = Tensor<2>;

    fn loss(output: Tensor<2>, targets: Tensor<2>) -> Loss {
        let [samples, _] = targets.dims();
        let off = output - targets.clone();
        let absolute = off.clone().abs();
        let large = targets.greater_elem(LARGE).float();
        let loss = Loss::new(off.powi_scalar(2).mean(), samples)
            .with_metric("mae", absolute.clone().sum(), samples)
            .with_metric("mae_large", (absolute * large.clone()).sum(), large.sum());
        match MORE.get() {
            Some("accuracy") => loss.with_metric("accuracy", 2.0 * samples as f64, samples),
            Some(name) => loss.with_metric(name, 1.0, samples),
            None => loss,
        }
    }
}

/// From here on a target is large.
const LARGE: f32 = 0.5;

/// What is measured of a sample, and what it should be.
type Sample = ([f32; 3], f32);

struct Rows;

impl Batcher<Sample, (Tensor<2>, Tensor<2>)> for Rows {
    fn batch(&self, items: Vec<Sample>, device: &Device) -> (Tensor<2>, Tensor<2>) {
        let count = items.len();
        let (inputs, targets): (Vec<_>, Vec<_>) = items.into_iter().unzip();
        let inputs = TensorData::new(inputs.concat(), [count, 3]);
        let targets = TensorData::new(targets, [count, 1]);
        (
            Tensor::from_data(inputs, device),
            Tensor::from_data(targets, device),
        )
    }
}

/// This many samples of a plane that is a little bent.
fn samples(count: usize, phase: f32) -> Vec<Sample> {
    let samples = (0..count).map(|number| {
        let at = phase + number as f32;
        let inputs = [at.sin(), (1.7 * at).cos(), (0.3 * at).sin()];
        let [x, y, z] = inputs;
        (inputs, 0.5 * x - 0.25 * y + 0.75 * z + 0.1 * x * y)
    });
    samples.collect()
}

fn data(train: usize) -> TrainingData<Sample, (Tensor<2>, Tensor<2>)> {
    let train = InMemDataset::new(samples(train, 0.0));
    let test = InMemDataset::new(samples(13, 100.0));
    TrainingData::new("plane", train, test, Rows)
}

fn config() -> TrainingConfig {
    TrainingConfig {
        epochs: 3,
        batch_size: 12,
        // Of 37 samples 25 are left: the last batch of an epoch has one, which all but one rank lack.
        validation_samples: Some(12),
        log_every: 1,
        optimizer: optimizer(OptimizerKind::Sgd, 0.2),
        ..TrainingConfig::default()
    }
}

struct Trained {
    model: Vec<Vec<f32>>,
    report: TrainingReport,
    lines: Vec<MetricLine>,
}

fn train(ranks: usize, config: &TrainingConfig, count: usize) -> Result<Trained, Vec<TrainError>> {
    train_reporting(ranks, config, count, |_| None)
}

/// Trains with ranks of which each reports a metric more, if `more` says so.
fn train_reporting(
    ranks: usize,
    config: &TrainingConfig,
    count: usize,
    more: impl Fn(usize) -> Option<&'static str> + Sync,
) -> Result<Trained, Vec<TrainError>> {
    let folder = tempfile::tempdir().unwrap();
    let data = data(count);
    let results = on_ranks(ranks, config, Some(folder.path()), |trainer| {
        MORE.set(more(trainer.group.rank()));
        // The same on each rank and in each training.
        let config = LinearConfig::new(3, 1).with_initializer(Initializer::Zeros);
        let model = config.init(&trainer.device);
        let model = Supervised::<_, Regression>::new(model, Linear::forward);
        let (model, report) = trainer.fit(model, &data)?;
        Ok((parameters(&model), report))
    });
    let (trained, failed): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    if !failed.is_empty() {
        return Err(failed.into_iter().filter_map(Result::err).collect());
    }
    let (model, report) = trained.into_iter().flatten().next().unwrap();
    Ok(Trained {
        model,
        report,
        lines: metric_lines(folder.path()),
    })
}

/// The means over the test samples, by the formula.
fn by_hand(model: &[Vec<f32>]) -> BTreeMap<&'static str, f64> {
    let (weight, bias) = (&model[0], model[1][0]);
    let errors = samples(13, 100.0).into_iter().map(|(inputs, target)| {
        let products = inputs
            .iter()
            .zip(weight)
            .map(|(input, weight)| input * weight);
        let output = products.sum::<f32>() + bias;
        (f64::from(output - target), target > LARGE)
    });
    let errors: Vec<(f64, bool)> = errors.collect();
    let mean = |errors: Vec<f64>| errors.iter().sum::<f64>() / errors.len() as f64;
    let large = errors.iter().filter(|(_, large)| *large);
    BTreeMap::from([
        (
            "loss",
            mean(errors.iter().map(|(error, _)| error * error).collect()),
        ),
        (
            "mae",
            mean(errors.iter().map(|(error, _)| error.abs()).collect()),
        ),
        (
            "mae_large",
            mean(large.map(|(error, _)| error.abs()).collect()),
        ),
    ])
}

#[track_caller]
fn close(one: f64, other: f64) {
    assert!(
        (one - other).abs() <= 1e-5 * other.abs(),
        "{one} and {other}"
    );
}

#[test]
fn metrics_are_the_weighted_means_over_all_ranks_samples() {
    let late = changed(config(), |config| config.read_metrics = ReadMetrics::Late);
    let alone = train(1, &config(), 37).unwrap();
    for (ranks, config) in [(1, &late), (2, &config()), (3, &config()), (3, &late)] {
        let trained = train(ranks, config, 37).unwrap();
        let report = &trained.report;
        assert!(report.finished && report.test_accuracy.is_none());
        let expected = by_hand(&trained.model);
        close(report.test_loss.unwrap(), expected["loss"]);
        assert_eq!(report.test_metrics.len(), 2);
        for (name, mean) in &report.test_metrics {
            close(*mean, expected[&**name]);
        }
        assert_eq!(trained.lines.len(), alone.lines.len());
        for (line, other) in trained.lines.iter().zip(&alone.lines) {
            assert_eq!((line.kind, line.step), (other.kind, other.step));
            assert_eq!((line.accuracy, line.samples), (None, other.samples));
            close(line.loss, other.loss);
            let names = |line: &MetricLine| line.metrics.keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(line), ["mae", "mae_large"]);
            close(line.metrics["mae"], other.metrics["mae"]);
            // A batch may have no large target.
            let [large, of_alone] = [line, other].map(|line| line.metrics["mae_large"]);
            match of_alone.is_nan() {
                true => assert!(large.is_nan()),
                false => close(large, of_alone),
            }
        }
    }
}

#[test]
fn over_virtual_ranks_metrics_have_the_same_bits_on_any_number_of_ranks() {
    let config = changed(config(), |config| config.virtual_ranks = Some(5));
    let measured = |ranks| {
        let trained = train(ranks, &config, 37).unwrap();
        let lines = trained.lines.into_iter().map(|line| {
            let metrics = line.metrics.into_values().map(f64::to_bits);
            (line.step, line.loss.to_bits(), metrics.collect::<Vec<_>>())
        });
        lines.collect::<Vec<_>>()
    };
    let alone = measured(1);
    assert_eq!(alone, measured(2));
    assert_eq!(alone, measured(3));
}

#[test]
fn ranks_that_take_steps_by_themselves_add_their_metrics_up() {
    let config = changed(config(), |config| config.sync = "every=2".parse().unwrap());
    let trained = train(2, &config, 37).unwrap();
    let expected = by_hand(&trained.model);
    close(trained.report.test_metrics["mae"], expected["mae"]);
    for line in &trained.lines {
        assert_eq!(line.metrics.len(), 2, "{line:?}");
    }
}

#[test]
fn a_rank_without_samples_in_the_very_first_step_learns_the_names_from_the_others() {
    let trained = train(3, &config(), 13).unwrap();
    let steps = trained.lines.iter();
    let steps = steps.filter(|line| line.kind == MetricKind::Step);
    for line in steps {
        assert_eq!((line.samples, line.metrics.len()), (1, 2), "{line:?}");
    }
}

#[test]
fn a_metric_that_some_ranks_report_and_others_do_not_is_named_by_all() {
    for (reports, expected) in [
        (
            &[false, true][..],
            "rank 1 reports the metric `iou`, rank 0 does not: ",
        ),
        (
            &[false, true, false],
            "rank 1 reports the metric `iou`, ranks 0, 2 do not: ",
        ),
        (
            &[true, false, true],
            "ranks 0, 2 report the metric `iou`, rank 1 does not: ",
        ),
    ] {
        let more = |rank: usize| reports[rank].then_some("iou");
        let failed = train_reporting(reports.len(), &config(), 37, more);
        let failed = failed.err().unwrap();
        assert_eq!(failed.len(), reports.len());
        for error in failed {
            // One that has not come so far hears it from the first that has.
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}

#[test]
fn the_best_epoch_and_an_early_stop_are_by_the_metric_that_is_named() {
    let config = TrainingConfig {
        epochs: 20,
        best_by: "max:mae_large".parse().unwrap(),
        early_stopping: Some(EarlyStopping { patience: 2 }),
        ..config()
    };
    let trained = train(2, &config, 37).unwrap();
    let validated = trained.lines.iter();
    let validated = validated.filter(|line| line.kind == MetricKind::Validation);
    let values: Vec<f64> = validated.map(|line| line.metrics["mae_large"]).collect();
    let highest = values.iter().copied().fold(f64::MIN, f64::max);
    let best = trained.report.best_epoch.unwrap();
    assert_eq!(best.value, Some(highest));
    assert_eq!(values[best.epoch - 1], highest);
    // The error becomes smaller, which is worse in this direction.
    assert_eq!(trained.report.epochs, best.epoch + 2);
    let stopped = trained.report.stopped.unwrap();
    let expected = format!(
        "early: no higher validation mae_large since epoch {}",
        best.epoch
    );
    assert_eq!(stopped, expected);
    assert!(trained.report.finished);
}

#[test]
fn an_empty_test_set_is_refused_before_a_training_and_a_test() {
    let folder = tempfile::tempdir().unwrap();
    let data = TrainingData {
        test: Arc::new(InMemDataset::new(Vec::new())),
        ..data(37)
    };
    let failed = on_ranks(2, &config(), Some(folder.path()), |trainer| {
        let model = LinearConfig::new(3, 1).init(&trainer.device);
        let model = Supervised::<_, Regression>::new(model, Linear::forward);
        let tested = trainer.evaluate(&model, &data).unwrap_err();
        let trained = trainer.fit(model, &data).err().unwrap();
        [tested, trained].map(|error| error.to_string())
    });
    for error in failed.into_iter().flatten() {
        assert!(error.contains("the test set is empty"), "{error}");
    }
    let metrics = std::fs::read_to_string(folder.path().join("metrics.jsonl"));
    assert_eq!(metrics.unwrap_or_default(), "", "a step was recorded");
}

/// What each of two ranks says of a training, and that it did so in the first step.
fn refused_at_once(config: &TrainingConfig, more: Option<&'static str>) -> Vec<String> {
    let (folder, data) = (tempfile::tempdir().unwrap(), data(37));
    let failed = on_ranks(2, config, Some(folder.path()), |trainer| {
        MORE.set(more);
        let model = LinearConfig::new(3, 1).init(&trainer.device);
        let model = Supervised::<_, Regression>::new(model, Linear::forward);
        trainer.fit(model, &data).err().unwrap().to_string()
    });
    let metrics = std::fs::read_to_string(folder.path().join("metrics.jsonl"));
    assert_eq!(metrics.unwrap_or_default(), "", "a step was recorded");
    failed
}

#[test]
fn a_metric_that_nobody_reports_is_refused_in_the_first_step_with_those_that_there_are() {
    let config = changed(config(), |it| it.best_by = "max:iou".parse().unwrap());
    for error in refused_at_once(&config, None) {
        error.assert_contains(["`iou`", "loss, mae, mae_large"]);
    }
}

#[test]
fn an_accuracy_above_one_is_refused_in_the_first_step() {
    for error in refused_at_once(&config(), Some("accuracy")) {
        assert!(error.contains("the accuracy is 2: "), "{error}");
    }
}
