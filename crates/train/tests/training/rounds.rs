//! Ranks that take many steps by themselves: local SGD and DiLoCo.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use burn::data::dataset::{Dataset, DatasetError};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::prelude::*;
use burn::store::ModuleRecord;
use burn::tensor::Bytes;
use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_datasets::{ImageBatcher, ImageDataset, ImageItem, Split, SyntheticDigits};
use everburn_distributed::{OuterCompression, OuterConfig, OuterOptimizer};
use everburn_models::mlp::{Mlp, MlpConfig};
use everburn_models::mnist_bn::{MnistBn, MnistBnConfig};
use everburn_train::{
    Classifier, MetricKind, MetricLine, OptimizerConfig, OptimizerKind, RunDirectory, TrainError,
    Trainer, TrainingConfig, TrainingData, TrainingReport,
};

type Images = TrainingData<ImageItem, (Tensor<4>, Tensor<1, Int>)>;

fn digits(split: Split, samples: usize) -> ImageDataset {
    SyntheticDigits::new(3).generate(split, samples).unwrap()
}

fn images(train: Arc<dyn Dataset<ImageItem>>, batcher: ImageBatcher) -> Images {
    TrainingData {
        train,
        test: Arc::new(digits(Split::Test, 200)),
        batcher: Arc::new(batcher),
        name: "digits".to_string(),
        fingerprint: String::new(),
        origin: "generated".to_string(),
    }
}

/// Numbers that look random and are the same in each run of these tests (Knuth's generator).
struct Uniform(u64);

impl ModuleMapper for Uniform {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| {
            let (shape, device) = (tensor.dims(), tensor.device());
            let most = (shape[0] as f32).sqrt().recip();
            let values = (0..shape.iter().product::<usize>()).map(|_| {
                let next = self.0.wrapping_mul(6_364_136_223_846_793_005);
                self.0 = next.wrapping_add(1_442_695_040_888_963_407);
                most * ((self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0)
            });
            let values = TensorData::new(values.collect::<Vec<_>>(), shape);
            Tensor::from_data(values, &device)
        })
    }
}

/// Always of the same numbers.
fn model() -> Mlp {
    static WEIGHTS: OnceLock<Vec<u8>> = OnceLock::new();
    let model = MlpConfig::new().init(&Device::flex());
    let weights = WEIGHTS.get_or_init(|| {
        let record = model.clone().map(&mut Uniform(7)).into_record();
        record.into_bytes().unwrap().to_vec()
    });
    let record = ModuleRecord::from_bytes(Bytes::from_bytes_vec(weights.clone()));
    model.try_load_record(record.unwrap()).unwrap()
}

fn numbers<M: Module>(model: &M) -> Vec<f32> {
    struct Collect(Vec<f32>);
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend(param.val().into_data().iter::<f32>());
        }
    }
    let mut collect = Collect(Vec::new());
    model.visit(&mut collect);
    collect.0
}

/// A folder that another training can go on with.
fn run_directory(folder: &Path, config: &TrainingConfig) -> RunDirectory {
    let run = RunDirectory::create(folder).unwrap();
    run.write_config(config).unwrap();
    run
}

/// What a rank is left with.
type Outcome = Result<(Vec<f32>, TrainingReport), TrainError>;

/// Trains `mlp` on so many ranks; rank 0 records in `folder`.
fn train_on(
    world_size: usize,
    config: &TrainingConfig,
    folder: Option<&Path>,
    resume: bool,
    data: impl Fn(usize) -> Images + Sync,
) -> Vec<Outcome> {
    let groups = ProcessGroup::over_threads(world_size, GroupOptions::default());
    let data = &data;
    std::thread::scope(|scope| {
        let ranks = groups.into_iter().map(|group| {
            let run = folder.filter(|_| group.rank() == 0);
            let run = run.map(|folder| run_directory(folder, config));
            scope.spawn(move || {
                let data = data(group.rank());
                let trainer = Trainer {
                    run,
                    resume,
                    ..Trainer::new(config.clone(), group)
                };
                let model = Classifier::<Mlp, 4>::of_blocks(model());
                let (model, report) = trainer.fit(model, &data)?;
                Ok((numbers(&model), report))
            })
        });
        let ranks = ranks.collect::<Vec<_>>();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn same_digits(samples: usize) -> impl Fn(usize) -> Images + Sync {
    let train = Arc::new(digits(Split::Train, samples));
    move |_| images(train.clone(), ImageBatcher::unit())
}

/// As [`train_on`], where nothing fails: what rank 0 is left with, which all others are too.
fn train(
    world_size: usize,
    config: &TrainingConfig,
    folder: Option<&Path>,
) -> (Vec<f32>, TrainingReport) {
    let outcomes = train_on(world_size, config, folder, false, same_digits(500));
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

fn steps(folder: &Path) -> Vec<MetricLine> {
    let text = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let lines = text
        .lines()
        .map(|line| serde_json::from_str::<MetricLine>(line).unwrap());
    lines.filter(|line| line.kind == MetricKind::Step).collect()
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

fn sgd() -> OptimizerConfig {
    OptimizerConfig {
        kind: OptimizerKind::Sgd,
        learning_rate: 0.05,
        ..OptimizerConfig::default()
    }
}

fn average() -> OuterConfig {
    OuterConfig {
        optimizer: OuterOptimizer::Average,
        ..OuterConfig::default()
    }
}

#[test]
fn one_step_of_sgd_and_an_average_are_a_step_of_ddp() {
    for world_size in [2, 3, 4] {
        let folder = tempfile::tempdir().unwrap();
        let [ddp, rounds] = ["step", "every=1"].map(|sync| {
            let config = TrainingConfig {
                optimizer: sgd(),
                outer: average(),
                ..config(sync)
            };
            let folder = folder.path().join(sync);
            let (numbers, report) = train(world_size, &config, Some(&folder));
            (numbers, report, steps(&folder))
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
    let config = TrainingConfig {
        epochs: 2,
        ..config("every=4")
    };
    let (_, report) = train(3, &config, Some(folder.path()));
    // Rounds of 4, 4 and 2 steps.
    assert_eq!((report.steps, report.outer.unwrap().steps), (20, 6));
    let lines = steps(folder.path());
    assert_eq!(
        lines.iter().map(|line| line.step).collect::<Vec<_>>(),
        (1..=20).collect::<Vec<_>>()
    );
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
    for compression in [OuterCompression::None, OuterCompression::Int8] {
        let folder = tempfile::tempdir().unwrap();
        let of = |epochs: usize| TrainingConfig {
            epochs,
            outer: OuterConfig {
                compression,
                ..OuterConfig::default()
            },
            optimizer: OptimizerConfig {
                kind: OptimizerKind::AdamW,
                ..OptimizerConfig::default()
            },
            checkpoint_every: "7steps".parse().unwrap(),
            ..config("every=4")
        };
        let path = |name: &str| folder.path().join(name);
        let (expected, _) = train(3, &of(2), Some(&path("at-once")));
        // Behind the outer step of step 18, in the middle of the second epoch.
        let part = TrainingConfig {
            steps: Some(18),
            ..of(2)
        };
        train(3, &part, Some(&path("in-two")));
        let resumed = train_on(3, &of(2), Some(&path("in-two")), true, same_digits(500));
        for outcome in resumed {
            let (numbers, report) = outcome.unwrap();
            assert_eq!(report.steps, 20);
            assert_eq!(bits(&numbers), bits(&expected), "{compression:?}");
        }
        let losses = |name: &str| {
            let lines = steps(&path(name)).into_iter();
            lines.map(|line| (line.step, line.loss)).collect::<Vec<_>>()
        };
        assert_eq!(losses("in-two"), losses("at-once"));
        // Another number of ranks goes on from it too; and ranks that become equal in each step.
        for (world_size, sync) in [(2, "every=4"), (1, "every=4"), (2, "step")] {
            let config = TrainingConfig {
                sync: sync.parse().unwrap(),
                epochs: 3,
                ..of(3)
            };
            let data = same_digits(500);
            let outcomes = train_on(world_size, &config, Some(&path("in-two")), true, data);
            assert!(outcomes.into_iter().all(|outcome| outcome.is_ok()));
            std::fs::remove_dir_all(path("in-two/checkpoints/epoch-0003")).unwrap();
        }
    }
}

#[test]
fn differences_of_8_bits_teach_as_much_in_a_third_of_the_bytes() {
    let of = |compression| {
        let config = TrainingConfig {
            epochs: 6,
            outer: OuterConfig {
                compression,
                ..OuterConfig::default()
            },
            ..config("every=5")
        };
        let (_, report) = train(4, &config, None);
        (
            report.best_epoch.unwrap().validation_loss,
            report.outer.unwrap(),
        )
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
    let outcomes = train_on(3, &config, None, false, same_digits(500));
    for outcome in outcomes {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("after step 10"), "{error}");
        assert!(error.contains("of rank 1 differs"), "{error}");
    }
    config.on_divergence = everburn_train::OnDivergence::Repair;
    let outcomes = train_on(3, &config, None, false, same_digits(500));
    let all = outcomes.into_iter().map(|outcome| outcome.unwrap().0);
    let all = all.map(|numbers| bits(&numbers)).collect::<Vec<_>>();
    assert!(all.iter().all(|rank| *rank == all[0]));
}

#[test]
fn running_statistics_are_averaged_at_the_outer_steps() {
    let train = Arc::new(digits(Split::Train, 1_200));
    let groups = ProcessGroup::over_threads(3, GroupOptions::default());
    let ranks = groups.into_iter().map(|group| {
        let data = images(train.clone(), ImageBatcher::bytes());
        std::thread::spawn(move || {
            let config = TrainingConfig {
                epochs: 4,
                validation_samples: Some(200),
                // At the end weights stand still for the statistics to catch up.
                schedule: everburn_train::Schedule::Cosine,
                ..config("every=7")
            };
            let trainer = Trainer::new(config, group);
            let model = MnistBnConfig::new()
                .with_momentum(0.1)
                .init(&trainer.device);
            let model = Classifier::new(model, MnistBn::forward);
            // After each epoch it compares all parameters and buffers of all ranks.
            let (model, report) = trainer.fit(model, &data).unwrap();
            (numbers(&model), report.test_accuracy.unwrap())
        })
    });
    let ranks = ranks.collect::<Vec<_>>().into_iter();
    let ranks = ranks.map(|rank| rank.join().unwrap()).collect::<Vec<_>>();
    assert!(ranks.iter().all(|rank| rank == &ranks[0]));
    // Wrong statistics would leave what chance gives, a tenth.
    assert!(ranks[0].1 > 0.2, "accuracy {}", ranks[0].1);
}

/// Samples of which each takes a while.
struct Slow(Arc<ImageDataset>);

impl Dataset<ImageItem> for Slow {
    fn get(&self, index: usize) -> Result<ImageItem, DatasetError> {
        std::thread::sleep(Duration::from_millis(20));
        self.0.get(index)
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

#[test]
fn a_slow_rank_joins_with_the_steps_that_it_has_made_where_others_have_no_patience() {
    let train = Arc::new(digits(Split::Train, 260));
    let data = |rank: usize| {
        let train: Arc<dyn Dataset<ImageItem>> = match rank {
            1 => Arc::new(Slow(train.clone())),
            _ => train.clone(),
        };
        images(train, ImageBatcher::unit())
    };
    let samples = |outer_patience| {
        let folder = tempfile::tempdir().unwrap();
        let config = TrainingConfig {
            outer_patience,
            batch_size: 20,
            ..config("every=3")
        };
        let outcomes = train_on(2, &config, Some(folder.path()), false, data);
        let all = outcomes.into_iter().map(Result::unwrap).collect::<Vec<_>>();
        assert_eq!(bits(&all[0].0), bits(&all[1].0));
        assert_eq!(all[0].1.steps, 10, "no step is waited for");
        steps(folder.path())
            .iter()
            .map(|line| line.samples)
            .sum::<u64>()
    };
    assert_eq!(samples(None), 200, "the others wait");
    let learnt = samples(Some(1.5));
    // Rank 0's samples, those of the first round, which knows no pace yet, and one step of each other.
    assert!((100..200).contains(&learnt), "{learnt} samples");
}
