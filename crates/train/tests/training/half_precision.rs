//! Training in half precision: as good as in `f32`, and a step that overflows on one rank is skipped by all.

use std::path::Path;

use burn::module::Module;
use burn::prelude::*;
use burn_train::{InferenceStep, TrainOutput, TrainStep};
use everburn_models::mnist::{Mnist, MnistConfig};
use everburn_tests::AssertContains;
use everburn_train::{
    Classification, Classifier, LrSchedule, MetricLine, Objective, OptimizerKind, Precision,
    StepReport, TrainError, Trainer, TrainingConfig, TrainingReport,
};

use crate::alone;
use crate::harness::config::{changed, optimizer};
use crate::harness::data::{Images, digits};
use crate::harness::parameters::{drawn_within, inputs};
use crate::harness::ranks::on_ranks;
use crate::harness::run::step_lines;
use crate::replicas::bits;

fn images() -> Images {
    digits(5, 600, 200)
}

fn config(precision: Precision) -> TrainingConfig {
    let mut config = TrainingConfig {
        epochs: 1,
        batch_size: 50,
        precision,
        log_every: 1,
        validation_samples: Some(100),
        optimizer: optimizer(OptimizerKind::AdamW, 0.005),
        ..TrainingConfig::default()
    };
    config.ddp.max_gradient_norm = Some(2.0);
    config
}

struct Trained {
    report: TrainingReport,
    parameters: Vec<Vec<u32>>,
    /// Of the steps.
    lines: Vec<MetricLine>,
}

/// Trains on ranks that are threads, from weights drawn of the same seed, in `folder`.
fn train_in(
    folder: &Path,
    config: &TrainingConfig,
    world_size: usize,
    resume: bool,
) -> Result<Trained, TrainError> {
    let (model, data) = (model_of_ours(), images());
    let results = on_ranks(world_size, config, Some(folder), |trainer| {
        let trainer = Trainer { resume, ..trainer };
        trainer.fit(Classifier::<Mnist, 4>::of_blocks(model.clone()), &data)
    });
    let results = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    let parameters = results.iter().map(|(model, _)| bits(model)).collect();
    let (_, report) = results.into_iter().next().unwrap();
    Ok(Trained {
        report,
        parameters,
        lines: step_lines(folder),
    })
}

fn train(config: &TrainingConfig, world_size: usize) -> Trained {
    let folder = tempfile::tempdir().unwrap();
    train_in(folder.path(), config, world_size, false).unwrap()
}

fn model_of_ours() -> Mnist {
    let model = MnistConfig::new().init(&Device::flex());
    drawn_within(model, 7, |shape| inputs(shape).sqrt().recip())
}

#[test]
fn bf16_and_f16_learn_what_f32_learns_on_one_rank_and_on_two() {
    for world_size in [1, 2] {
        let [exact, bf16, f16] =
            [Precision::F32, Precision::Bf16, Precision::F16].map(|precision| {
                let config = changed(config(precision), |config| config.epochs = 4);
                train(&config, world_size)
            });
        let loss = |trained: &Trained| trained.report.test_loss.unwrap();
        assert!(loss(&exact) < 2.0, "{}", loss(&exact));
        for (low, name) in [(&bf16, "bf16"), (&f16, "f16")] {
            assert_ne!(low.parameters, exact.parameters, "{name} has no effect");
            // Losses still fall steeply: a few steps ahead or after make such a difference. What whole
            // trainings come to is told in docs/mixed-precision.md.
            let apart = (loss(low) - loss(&exact)).abs();
            assert!(apart < 0.4, "{name}: {} and {}", loss(low), loss(&exact));
            assert!(low.parameters.iter().all(|rank| *rank == low.parameters[0]));
        }
        // The scale begins where a gradient may overflow; then it is halved.
        let skipped = f16.report.skipped_steps;
        assert!(skipped.is_some_and(|steps| steps <= 4), "{skipped:?}");
        assert_eq!(
            (exact.report.skipped_steps, bf16.report.skipped_steps),
            (None, None)
        );
        assert_eq!(f16.lines[0].loss_scale, Some(65_536.0));
        assert_eq!(bf16.lines[0].loss_scale, None);
    }
}

#[test]
fn nothing_is_learnt_in_a_step_that_is_skipped_and_no_schedule_goes_on() {
    let trained = |schedule, steps, chaos: &str| {
        let mut config = config(Precision::F16);
        config.steps = Some(steps);
        config.chaos = chaos.parse().unwrap();
        config.schedule = schedule;
        train(&config, 2)
    };
    let three = trained(LrSchedule::Constant, 3, "");
    let skipped = trained(LrSchedule::Constant, 4, "overflow=0@step:4");
    assert_eq!(three.parameters, skipped.parameters);
    let four = trained(LrSchedule::Constant, 4, "");
    assert_ne!(three.parameters, four.parameters);

    let rates = |trained: &Trained| {
        let rates = trained.lines.iter().map(|line| line.learning_rate.unwrap());
        rates.collect::<Vec<_>>()
    };
    let whole = rates(&trained(LrSchedule::Cosine, 4, ""));
    assert!(whole[1] < whole[0], "{whole:?}");
    let faults = "overflow=0@step:2,overflow=1@step:3";
    let late = rates(&trained(LrSchedule::Cosine, 4, faults));
    assert_eq!(late, [whole[0], whole[1], whole[1], whole[1]]);
}

#[test]
fn a_run_that_is_resumed_goes_on_with_its_loss_scale() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(Precision::F16);
    config.epochs = 2;
    config.steps = Some(10);
    config.chaos = "overflow=1@step:3,overflow=0@step:5".parse().unwrap();
    let begun = train_in(folder.path(), &config, 2, false).unwrap();
    assert_eq!(begun.report.skipped_steps, Some(2));
    config.steps = None;
    config.chaos = Default::default();
    let resumed = train_in(folder.path(), &config, 2, true).unwrap();
    assert_eq!(resumed.report.steps, 20);
    assert_eq!(resumed.report.skipped_steps, Some(2));
    assert_eq!(resumed.lines.last().unwrap().loss_scale, Some(16_384.0));
}

#[test]
fn a_scale_that_helps_nobody_ends_the_run_with_what_to_do() {
    let mut config = config(Precision::F16);
    config.epochs = 4;
    let faults = (1..=40).map(|step| format!("overflow=1@step:{step}"));
    config.chaos = faults.collect::<Vec<_>>().join(",").parse().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let error = train_in(folder.path(), &config, 2, false).err().unwrap();
    assert!(
        matches!(error, TrainError::LossScaleTooLow { step: 30, .. }),
        "{error}"
    );
    let error = error.to_string();
    error.assert_contains(["try `training.precision = bf16`"]);
}

#[test]
fn micro_batches_and_virtual_ranks_are_scaled_as_whole_batches_are() {
    for change in [
        (|config: &mut TrainingConfig| config.accumulate = 2) as fn(&mut TrainingConfig),
        |config| config.virtual_ranks = Some(4),
    ] {
        let mut config = config(Precision::F16);
        change(&mut config);
        let plain = train(&config, 2);
        assert_eq!(plain.report.skipped_steps, Some(0));
        config.chaos = "overflow=1@step:4".parse().unwrap();
        let trained = train(&config, 2);
        assert_eq!(trained.report.skipped_steps, Some(1));
        assert_eq!(trained.parameters[0], trained.parameters[1]);
        let [before, after] = [&plain, &trained].map(|run| run.lines[3].loss);
        assert_eq!(before, after, "until then, the same was learnt");
    }
}

/// A model that this crate knows nothing of: either none of its layers is ours, or its loss is its own.
#[derive(Module, Debug)]
struct Own {
    burns: Option<nn::Linear>,
    ours: Option<everburn_nn::Linear>,
}

impl Own {
    fn scores(&self, images: Tensor<4>) -> Tensor<2> {
        let rows = images.flatten::<2>(1, 3);
        match (&self.burns, &self.ours) {
            (Some(burns), _) => burns.forward(rows),
            (None, Some(ours)) => ours.forward(rows),
            (None, None) => rows,
        }
    }
}

impl TrainStep for Own {
    type Input = (Tensor<4>, Tensor<1, Int>);
    type Output = StepReport;

    fn step(&self, (images, classes): Self::Input) -> TrainOutput<StepReport> {
        let loss = Classification::<4>::loss(self.scores(images), classes);
        let report = loss.report();
        TrainOutput::new(self, loss.mean.backward(), report)
    }
}

impl InferenceStep for Own {
    type Input = (Tensor<4>, Tensor<1, Int>);
    type Output = StepReport;

    fn step(&self, (images, classes): Self::Input) -> StepReport {
        Classification::<4>::loss(self.scores(images), classes).report()
    }
}

#[test]
fn a_model_that_cannot_be_reached_is_told_what_it_lacks() {
    let device = Device::flex();
    let linear = || nn::LinearConfig::new(28 * 28, 10).init(&device);
    let failure = |model: Own, precision| {
        // Also after another training on this thread, which computed in half precision.
        let mut config = config(precision);
        config.steps = Some(2);
        let trainer = alone(config);
        let reached = Classifier::<Mnist, 4>::of_blocks(model_of_ours());
        trainer.fit(reached, &images()).unwrap();
        let error = trainer.fit(model, &images()).err();
        error.unwrap().to_string()
    };
    let burns = Own {
        burns: Some(linear()),
        ours: None,
    };
    let error = failure(burns, Precision::Bf16);
    error.assert_contains(["reaches no layer", "everburn::nn"]);
    let unscaled = Own {
        burns: None,
        ours: Some(linear().into()),
    };
    let error = failure(unscaled, Precision::F16);
    assert!(error.contains("everburn_train::scaled_loss"), "{error}");
}
