//! Ranks that take many steps by themselves: local SGD and DiLoCo.

mod fragments;

use std::path::Path;
use std::time::Duration;

use burn::prelude::*;
use everburn_distributed::{OuterCompression, OuterOptimizer};
use everburn_models::mlp::{Mlp, MlpConfig};
use everburn_models::mnist_bn::{MnistBn, MnistBnConfig};
use everburn_train::checkpoint::{CheckpointFolder, Place};
use everburn_train::{
    Classifier, MetricLine, OptimizerKind, TrainError, Trainer, TrainingConfig, TrainingReport,
    compute_on_this_thread,
};

use crate::harness::config::{changed, optimizer};
use crate::harness::data::{Images, digits};
use crate::harness::parameters::{drawn_within, inputs, parameters};
use crate::harness::ranks::on_ranks;
use crate::harness::run::step_lines;
use crate::samples::{in_bytes, slow};

fn model() -> Mlp {
    let model = MlpConfig::new().init(&Device::flex());
    drawn_within(model, 7, |shape| inputs(shape).sqrt().recip())
}

/// What a rank is left with.
type Outcome = Result<(Vec<f32>, TrainingReport), TrainError>;

/// Trains `mlp` on this many ranks, on `data` of each; rank 0 records in `folder`.
fn train_on<'a>(
    world_size: usize,
    config: &TrainingConfig,
    folder: Option<&Path>,
    resume: bool,
    data: impl Fn(usize) -> &'a Images + Sync,
) -> Vec<Outcome> {
    on_ranks(world_size, config, folder, |trainer| {
        // How long a step takes is not to depend on other tests, which rayon's threads work for.
        compute_on_this_thread(1)?;
        let trainer = Trainer { resume, ..trainer };
        let data = data(trainer.group.rank());
        let model = Classifier::<Mlp, 4>::of_blocks(model());
        let (model, report) = trainer.fit(model, data)?;
        Ok((parameters(&model).concat(), report))
    })
}

/// As [`train_on`], where nothing fails: what rank 0 is left with, which all others are too.
fn train(
    world_size: usize,
    config: &TrainingConfig,
    folder: Option<&Path>,
) -> (Vec<f32>, TrainingReport) {
    let data = digits(3, 500, 200);
    let outcomes = train_on(world_size, config, folder, false, |_| &data);
    let mut outcomes = outcomes.into_iter().map(Result::unwrap).collect::<Vec<_>>();
    for (numbers, report) in &outcomes {
        assert_eq!(bits(numbers), bits(&outcomes[0].0), "ranks differ");
        assert_eq!(report.test_loss, outcomes[0].1.test_loss);
    }
    outcomes.swap_remove(0)
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

fn config(sync: &str) -> TrainingConfig {
    TrainingConfig {
        epochs: 1,
        // 440 samples to train on: the tail is of 8, and shares are unequal.
        batch_size: 48,
        validation_samples: Some(60),
        log_every: 1,
        sync: sync.parse().unwrap(),
        ..TrainingConfig::default()
    }
}

#[test]
fn one_step_of_sgd_and_an_average_are_a_step_of_ddp() {
    for world_size in [2, 3, 4] {
        let folder = tempfile::tempdir().unwrap();
        let [ddp, rounds] = ["step", "every=1"].map(|sync| {
            let config = changed(config(sync), |config| {
                config.optimizer = optimizer(OptimizerKind::Sgd, 0.05);
                config.outer.optimizer = OuterOptimizer::Average;
            });
            let folder = folder.path().join(sync);
            let (numbers, report) = train(world_size, &config, Some(&folder));
            (numbers, report, step_lines(&folder))
        });
        assert_eq!(rounds.1.outer.unwrap().steps, 10);
        assert_eq!(rounds.1.steps, ddp.1.steps);
        let pairs = ddp.0.iter().zip(&rounds.0);
        let largest = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(largest <= 1e-6, "{world_size} ranks: {largest:e}");
        assert_eq!(ddp.2.len(), rounds.2.len());
        for (theirs, ours) in ddp.2.iter().zip(&rounds.2) {
            assert_eq!((theirs.step, theirs.samples), (ours.step, ours.samples));
            let apart = (theirs.loss - ours.loss).abs() / theirs.loss;
            assert!(apart <= 1e-5, "step {}: {apart:e}", ours.step);
            assert_eq!(theirs.learning_rate, ours.learning_rate);
        }
    }
}

#[test]
fn rounds_end_with_the_epoch_and_every_step_is_told_of_once() {
    let folder = tempfile::tempdir().unwrap();
    let config = changed(config("every=4"), |config| config.epochs = 2);
    let (_, report) = train(3, &config, Some(folder.path()));
    // Rounds of 4, 4 and 2 steps.
    assert_eq!((report.steps, report.outer.unwrap().steps), (20, 6));
    let lines = step_lines(folder.path());
    assert!(lines.iter().map(|line| line.step).eq(1..=20));
    let samples = lines.iter().map(|line| line.samples).sum::<u64>();
    assert_eq!(samples, 2 * 440, "each sample of each epoch once");
    let exchanged = |line: &&MetricLine| line.cost.gradient_bytes > 0;
    let exchanges = lines.iter().filter(exchanged).map(|line| line.step);
    assert_eq!(exchanges.collect::<Vec<_>>(), [4, 8, 10, 14, 18, 20]);
    let outer = report.outer.unwrap();
    assert_eq!(outer.bytes, report.gradient_bytes);
    assert_eq!(outer.bytes_of_gradients / 20, outer.bytes / 6);
}

#[test]
fn a_resumed_run_has_the_bits_of_one_that_was_not_stopped() {
    let cases = [
        (OuterCompression::None, None),
        (OuterCompression::Int8, None),
        (OuterCompression::Int2, Some(2)),
    ];
    for (compression, fragments) in cases {
        let folder = tempfile::tempdir().unwrap();
        let of = |epochs: usize| {
            changed(config("every=4"), |config| {
                config.epochs = epochs;
                config.outer.compression = compression;
                config.outer.fragments = fragments;
                config.optimizer.kind = OptimizerKind::AdamW;
                config.checkpoint_every = "7steps".parse().unwrap();
            })
        };
        let path = |name: &str| folder.path().join(name);
        let (expected, _) = train(3, &of(2), Some(&path("at-once")));
        // After the outer step of step 18, in the middle of the second epoch.
        let part = changed(of(2), |config| config.steps = Some(18));
        train(3, &part, Some(&path("in-two")));
        let data = digits(3, 500, 200);
        let resumed = train_on(3, &of(2), Some(&path("in-two")), true, |_| &data);
        for outcome in resumed {
            let (numbers, report) = outcome.unwrap();
            assert_eq!(report.steps, 20);
            assert_eq!(bits(&numbers), bits(&expected), "{compression:?}");
        }
        let losses = |name: &str| {
            let lines = step_lines(&path(name)).into_iter();
            lines.map(|line| (line.step, line.loss)).collect::<Vec<_>>()
        };
        assert_eq!(losses("in-two"), losses("at-once"));
        // Another number of ranks continues from it too; and ranks that become equal in each step.
        for (world_size, sync) in [(2, "every=4"), (1, "every=4"), (2, "step")] {
            let config = changed(of(3), |config| config.sync = sync.parse().unwrap());
            let folder = path("in-two");
            let outcomes = train_on(world_size, &config, Some(&folder), true, |_| &data);
            assert!(outcomes.into_iter().all(|outcome| outcome.is_ok()));
            std::fs::remove_dir_all(path("in-two/checkpoints/epoch-0003")).unwrap();
        }
    }
}

#[test]
fn a_stop_on_request_leaves_a_checkpoint_of_the_steps_so_far() {
    for fragments in [None, Some(2)] {
        let folder = tempfile::tempdir().unwrap();
        let config = changed(config("every=4"), |config| {
            config.epochs = 2;
            config.outer.fragments = fragments;
        });
        let data = digits(3, 500, 200);
        let stopped = on_ranks(3, &config, Some(folder.path()), |trainer| {
            compute_on_this_thread(1)?;
            // The others learn of it from its vote.
            if trainer.group.rank() == 1 {
                trainer.stop.set();
            }
            let model = Classifier::<Mlp, 4>::of_blocks(model());
            let (_, report) = trainer.fit(model, &data)?;
            Ok::<_, TrainError>(report)
        });
        for report in stopped {
            let report = report.unwrap();
            let on_request = report
                .stopped
                .is_some_and(|why| why.starts_with("on request"));
            assert!(on_request, "with fragments: {fragments:?}");
            assert_eq!(report.steps, 4);
        }
        let checkpoints = CheckpointFolder::new(folder.path().join("checkpoints"), 2);
        let last = Place {
            epoch: 0,
            batches: 4,
        };
        assert_eq!(checkpoints.places().unwrap(), [last]);
        for resumed in train_on(3, &config, Some(folder.path()), true, |_| &data) {
            assert_eq!(resumed.unwrap().1.steps, 20);
        }
        let lines = step_lines(folder.path());
        assert!(lines.iter().map(|line| line.step).eq(1..=20));
    }
}

#[test]
fn steps_that_end_within_an_epoch_leave_a_checkpoint_if_there_is_none() {
    let within = |epoch, batches| Place { epoch, batches };
    for (every, steps, newest) in [
        ("7steps", 6, within(0, 6)),
        ("4steps", 6, within(0, 4)),
        // An epoch has 11 steps, and none is due at the end of the first.
        ("2epoch", 14, within(1, 3)),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let config = TrainingConfig {
            epochs: 2,
            steps: Some(steps),
            // No epoch is the best.
            validation_samples: Some(0),
            checkpoint_every: every.parse().unwrap(),
            ..config("every=4")
        };
        train(2, &config, Some(folder.path()));
        let checkpoints = CheckpointFolder::new(folder.path().join("checkpoints"), 2);
        assert_eq!(checkpoints.places().unwrap(), [newest], "{every}");
    }
}

#[test]
fn differences_of_8_bits_teach_as_much_in_a_third_of_the_bytes() {
    let of = |compression| {
        let config = changed(config("every=5"), |config| {
            config.epochs = 6;
            config.outer.compression = compression;
        });
        let (_, report) = train(4, &config, None);
        let loss = report.best_epoch.unwrap().validation_loss;
        (loss, report.outer.unwrap())
    };
    let (plain, in_full) = of(OuterCompression::None);
    let (rounded, in_bytes) = of(OuterCompression::Int8);
    assert!(plain < 2.0, "it learns: {plain}");
    assert!(
        (rounded - plain).abs() <= 0.05 * plain,
        "{rounded} with 8 bits, {plain} without"
    );
    assert!(3 * in_bytes.bytes < in_full.bytes);
    assert!(in_bytes.saved() > in_full.saved());
}

#[test]
fn a_rank_whose_common_parameters_change_is_found_at_the_outer_step() {
    let mut config = config("every=5");
    config.chaos = "corrupt=1@step:10".parse().unwrap();
    let data = digits(3, 500, 200);
    let outcomes = train_on(3, &config, None, false, |_| &data);
    for outcome in outcomes {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("after step 10"), "{error}");
        assert!(error.contains("of rank 1 differs"), "{error}");
    }
    config.on_divergence = everburn_train::OnDivergence::Repair;
    let outcomes = train_on(3, &config, None, false, |_| &data);
    let all = outcomes.into_iter().map(|outcome| outcome.unwrap().0);
    let all = all.map(|numbers| bits(&numbers)).collect::<Vec<_>>();
    assert!(all.iter().all(|rank| *rank == all[0]));
}

#[test]
fn running_statistics_are_averaged_at_the_outer_steps() {
    let data = in_bytes(digits(3, 1_200, 200));
    let config = TrainingConfig {
        epochs: 4,
        validation_samples: Some(200),
        // At the end weights stand still for the statistics to catch up.
        schedule: everburn_train::LrSchedule::Cosine,
        ..config("every=7")
    };
    let device = Device::flex();
    device.seed(7);
    let drawn = MnistBnConfig::new().with_momentum(0.1).init(&device);
    // Weights are drawn when they are read; threads that drew them together would share the generator.
    parameters(&drawn);
    let ranks = on_ranks(3, &config, None, |trainer| {
        let model = Classifier::new(drawn.clone(), MnistBn::forward);
        // After each epoch it compares all parameters and buffers of all ranks.
        let (model, report) = trainer.fit(model, &data).unwrap();
        (parameters(&model), report.test_accuracy.unwrap())
    });
    assert!(ranks.iter().all(|rank| rank == &ranks[0]));
    // Wrong statistics would leave what chance gives, a tenth.
    assert!(ranks[0].1 > 0.2, "accuracy {}", ranks[0].1);
}

#[test]
fn a_slow_rank_joins_with_the_steps_that_it_has_made_where_others_have_no_patience() {
    let data = [Duration::ZERO, Duration::from_millis(20)];
    let data = data.map(|each| slow(digits(3, 260, 200), each));
    let samples = |outer_patience| {
        let folder = tempfile::tempdir().unwrap();
        let config = TrainingConfig {
            outer_patience,
            batch_size: 20,
            ..config("every=3")
        };
        let outcomes = train_on(2, &config, Some(folder.path()), false, |rank| &data[rank]);
        let all = outcomes.into_iter().map(Result::unwrap).collect::<Vec<_>>();
        assert_eq!(bits(&all[0].0), bits(&all[1].0));
        assert_eq!(all[0].1.steps, 10, "no step is waited for");
        let lines = step_lines(folder.path());
        lines.iter().map(|line| line.samples).sum::<u64>()
    };
    assert_eq!(samples(None), 200, "the others wait");
    // Who is quick is as slow as the other in a round in which it stands without a core: then nobody is late. That
    // does not happen in all of three runs.
    let learnt = [(); 3].map(|()| samples(Some(1.5)));
    // Rank 0's samples, those of the first round, which knows no pace yet, and one step of each other.
    assert!(learnt.iter().all(|samples| *samples >= 100), "{learnt:?}");
    assert!(learnt.iter().any(|samples| *samples < 200), "{learnt:?}");
}
