//! Trainings of one model on ranks that are threads, whole and cut.

use std::path::Path;
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_datasets::{
    DataChoice, ImageBatcher, ImageItem, Split, Surroundings, SyntheticDigits, TextBatcher,
    TextItem, TextRequest, load_text_in,
};
use everburn_distributed::{DdpConfig, HeldBytes, ShardStage};
use everburn_nn::{Activation, InBlocks};
use everburn_train::{
    MetricKind, MetricLine, Objective, OptimizerConfig, OptimizerKind, RunDirectory, Supervised,
    TrainError, Trainer, TrainingConfig, TrainingData, TrainingReport,
};

pub(crate) const STAGES: [ShardStage; 3] = [
    ShardStage::Optimizer,
    ShardStage::Gradients,
    ShardStage::Parameters,
];

/// Every parameter and buffer, flat, in visiting order.
pub(crate) fn parameters<M: Module>(model: &M) -> Vec<f32> {
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

/// The model with weights that are the same in every run. What is the same everywhere, of a norm, stays.
pub(crate) fn drawn<M: Module>(model: M) -> M {
    struct Draw(u64);
    impl ModuleMapper for Draw {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let (id, old, mapper) = param.consume();
            let given: Vec<f32> = old.to_data().iter().collect();
            if given.iter().all(|value| *value == given[0]) {
                return Param::from_mapped_value(id, old, mapper);
            }
            let shape = old.dims();
            let inputs: usize = match D {
                1 => 64,
                2 => shape[0],
                _ => shape.iter().skip(1).product(),
            };
            let bound = 1.0 / (inputs as f32).sqrt();
            let values = (0..old.shape().num_elements()).map(|_| {
                let step = self.0.wrapping_mul(6_364_136_223_846_793_005);
                self.0 = step.wrapping_add(1_442_695_040_888_963_407);
                bound * ((self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0)
            });
            let data = TensorData::new(values.collect::<Vec<f32>>(), shape);
            Param::from_mapped_value(id, Tensor::from_data(data, &old.device()), mapper)
        }
    }
    model.map(&mut Draw(1))
}

pub(crate) type Images = TrainingData<ImageItem, (Tensor<4>, Tensor<1, Int>)>;
pub(crate) type Texts = TrainingData<TextItem, (Tensor<2, Int>, Tensor<2, Int>)>;

pub(crate) fn images(samples: usize) -> Images {
    let digits = SyntheticDigits::new(3);
    let train = digits.generate(Split::Train, samples).unwrap();
    TrainingData {
        fingerprint: train.fingerprint(),
        train: Arc::new(train),
        test: Arc::new(digits.generate(Split::Test, 50).unwrap()),
        batcher: Arc::new(ImageBatcher::unit()),
        name: "digits".to_string(),
        origin: "generated".to_string(),
    }
}

pub(crate) const CONTEXT: usize = 12;

pub(crate) fn texts() -> (Texts, usize) {
    let request = TextRequest {
        choice: DataChoice::Embedded,
        context: CONTEXT,
        ..TextRequest::default()
    };
    let text = load_text_in(&request, &Surroundings::new(|_| None, None)).unwrap();
    let data = TrainingData {
        fingerprint: text.train.fingerprint(),
        train: Arc::new(text.train.clone()) as _,
        test: Arc::new(text.test.clone()) as _,
        batcher: Arc::new(TextBatcher) as _,
        name: "text".to_string(),
        origin: "embedded".to_string(),
    };
    (data, text.tokenizer.vocabulary())
}

/// So many steps of AdamW.
pub(crate) fn adam_w(steps: usize) -> TrainingConfig {
    TrainingConfig {
        epochs: 2,
        steps: Some(steps),
        batch_size: 16,
        validation_samples: Some(20),
        log_every: 1,
        optimizer: OptimizerConfig {
            kind: OptimizerKind::AdamW,
            learning_rate: 1e-3,
            weight_decay: 0.01,
            ..OptimizerConfig::default()
        },
        ..TrainingConfig::default()
    }
}

pub(crate) fn with(config: &TrainingConfig, shard: Option<ShardStage>) -> TrainingConfig {
    TrainingConfig {
        ddp: DdpConfig {
            shard,
            ..config.ddp
        },
        ..config.clone()
    }
}

/// What a training leaves behind.
pub(crate) struct Trained {
    pub(crate) losses: Vec<f64>,
    /// Of each step, before clipping.
    pub(crate) norms: Vec<Option<f64>>,
    pub(crate) parameters: Vec<f32>,
    pub(crate) report: TrainingReport,
}

impl Trained {
    /// What each rank has held.
    pub(crate) fn held(&self) -> &[HeldBytes] {
        &self.report.sharding.as_ref().unwrap().ranks
    }
}

pub(crate) fn train<M, O, I>(
    model: &M,
    data: &TrainingData<I, (O::Input, O::Targets)>,
    config: &TrainingConfig,
    world_size: usize,
) -> Trained
where
    M: InBlocks<Input = O::Input, Output = O::Output> + std::fmt::Display + Sync + 'static,
    O: Objective<Input: Activation, Output: Activation>,
    I: Send + Sync + Clone + 'static,
{
    let folder = tempfile::tempdir().unwrap();
    let trained = try_train::<M, O, I>(model, data, config, world_size, folder.path(), false);
    trained.unwrap()
}

/// Trains in `folder`; or goes on there.
pub(crate) fn try_train<M, O, I>(
    model: &M,
    data: &TrainingData<I, (O::Input, O::Targets)>,
    config: &TrainingConfig,
    world_size: usize,
    folder: &Path,
    resume: bool,
) -> Result<Trained, TrainError>
where
    M: InBlocks<Input = O::Input, Output = O::Output> + std::fmt::Display + Sync + 'static,
    O: Objective<Input: Activation, Output: Activation>,
    I: Send + Sync + Clone + 'static,
{
    let groups = ProcessGroup::over_threads(world_size, GroupOptions::default());
    let results = std::thread::scope(|scope| {
        let ranks = groups.into_iter().map(|group| {
            // Not a clone, which would share the running statistics.
            let (config, model) = (config.clone(), model.valid());
            let run = (group.rank() == 0).then(|| match resume {
                true => RunDirectory::open(folder).unwrap(),
                false => {
                    let run = RunDirectory::create(folder).unwrap();
                    run.write_config(&config).unwrap();
                    run
                }
            });
            scope.spawn(move || {
                let checkpointing = config.activation_checkpointing;
                let trainer = Trainer {
                    run,
                    resume,
                    ..Trainer::new(config, group)
                };
                let model = Supervised::<M, O>::of_checkpointed_blocks(model, checkpointing);
                trainer.fit(model, data)
            })
        });
        let ranks = ranks.collect::<Vec<_>>();
        let results = ranks.into_iter().map(|rank| rank.join().unwrap());
        results.collect::<Result<Vec<_>, _>>()
    })?;
    let replicas = results.iter().map(|(model, _)| parameters(model));
    let mut replicas = replicas.collect::<Vec<_>>();
    for replica in &replicas {
        assert_eq!(*replica, replicas[0], "replicas are equal to the bit");
    }
    let lines = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let lines = lines.lines();
    let lines = lines.map(|line| serde_json::from_str::<MetricLine>(line).unwrap());
    let steps = lines.filter(|line| line.kind == MetricKind::Step);
    let steps = steps.collect::<Vec<_>>();
    Ok(Trained {
        losses: steps.iter().map(|line| line.loss).collect(),
        norms: steps.iter().map(|line| line.gradient_norm).collect(),
        parameters: replicas.swap_remove(0),
        report: results[0].1.clone(),
    })
}

/// Losses, norms and parameters are the same but for rounding, on the same number of ranks.
pub(crate) fn assert_close(found: &Trained, expected: &Trained, what: &str) {
    assert_within(1e-5, found, expected, what);
}

/// As [`assert_close`]. Another number of ranks adds gradients up in another order, and where one is next to
/// nothing, Adam's step follows its sign.
pub(crate) fn assert_within(tolerance: f64, found: &Trained, expected: &Trained, what: &str) {
    let relative = |a: f64, b: f64| (a - b).abs() / a.abs().max(b.abs()).max(1e-3);
    assert_eq!(found.losses.len(), expected.losses.len(), "{what}");
    let pairs = found.losses.iter().zip(&expected.losses);
    let loss = pairs.map(|(a, b)| relative(*a, *b)).fold(0.0, f64::max);
    assert!(loss <= tolerance, "{what}: losses differ by {loss:e}");
    for pair in found.norms.iter().zip(&expected.norms) {
        match pair {
            (Some(a), Some(b)) => {
                assert!(
                    relative(*a, *b) <= 10.0 * tolerance,
                    "{what}: norms {a} {b}"
                );
            }
            (a, b) => assert_eq!(a, b, "{what}"),
        }
    }
    let pairs = found.parameters.iter().zip(&expected.parameters);
    let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(
        f64::from(worst) <= 20.0 * tolerance,
        "{what}: parameters differ by {worst:e}"
    );
}
