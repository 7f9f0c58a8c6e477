//! Trainings of one model, alone and cut.

use std::sync::Arc;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_datasets::{
    DataChoice, ImageBatcher, ImageItem, Split, Surroundings, SyntheticDigits, TextBatcher,
    TextItem, TextRequest, load_text_in,
};
use everburn_nn::{Activation, Placement, TensorParallel};
use everburn_pipeline::Stages;
use everburn_schedules::ScheduleKind;
use everburn_train::{
    Mesh, MeshParallel, MeshParallelConfig, MetricKind, MetricLine, ModelOverRanks, Objective,
    OptimizerConfig, OptimizerKind, RunDirectory, Supervised, Trainer, TrainingConfig,
    TrainingData,
};

pub(crate) type Images = TrainingData<ImageItem, (Tensor<4>, Tensor<1, Int>)>;
pub(crate) type Texts = TrainingData<TextItem, (Tensor<2, Int>, Tensor<2, Int>)>;

/// Every parameter, each flat, in visiting order.
pub(crate) fn parameters<M: Module>(model: &M) -> Vec<Vec<f32>> {
    struct Collect(Vec<Vec<f32>>);
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.val().into_data().iter::<f32>().collect());
        }
    }
    let mut collect = Collect(Vec::new());
    model.visit(&mut collect);
    collect.0
}

/// The model with weights that are the same in every run.
pub(crate) fn drawn<M: Module>(model: M) -> M {
    struct Draw(u64);
    impl ModuleMapper for Draw {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let (id, old, mapper) = param.consume();
            let given: Vec<f32> = old.to_data().iter().collect();
            if given.iter().all(|value| *value == given[0]) {
                // The gain or the bias of a norm.
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

pub(crate) fn config(steps: usize, kind: OptimizerKind) -> TrainingConfig {
    TrainingConfig {
        epochs: 1,
        steps: Some(steps),
        batch_size: 16,
        validation_samples: Some(20),
        log_every: 1,
        optimizer: OptimizerConfig {
            kind,
            learning_rate: if kind == OptimizerKind::Sgd {
                0.02
            } else {
                1e-3
            },
            ..OptimizerConfig::default()
        },
        ..TrainingConfig::default()
    }
}

/// How a model is cut.
#[derive(Debug, Clone)]
pub(crate) struct Cut {
    /// Over so many devices of one process; the mesh has one rank then.
    pub(crate) devices: usize,
    pub(crate) mesh: Mesh,
    pub(crate) chunks: usize,
    pub(crate) kind: ScheduleKind,
    pub(crate) micro_batches: usize,
}

pub(crate) fn mesh(data: usize, pipeline: usize, tensor: usize) -> Mesh {
    Mesh {
        data,
        pipeline,
        tensor,
    }
}

pub(crate) fn cut(ranks: usize, kind: ScheduleKind, micro_batches: usize) -> Cut {
    Cut {
        devices: 1,
        mesh: mesh(1, ranks, 1),
        chunks: 1,
        kind,
        micro_batches,
    }
}

/// What a training leaves behind.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Trained {
    pub(crate) losses: Vec<f64>,
    pub(crate) parameters: Vec<Vec<f32>>,
    /// Of each step, before clipping.
    pub(crate) norms: Vec<Option<f64>>,
    pub(crate) test_loss: f64,
}

pub(crate) fn train<M, O, I>(
    model: &M,
    data: &TrainingData<I, (O::Input, O::Targets)>,
    config: &TrainingConfig,
    cut: Option<&Cut>,
) -> Trained
where
    M: TensorParallel<Input = O::Input, Output = O::Output> + std::fmt::Display + Sync + 'static,
    O: Objective<Input: Activation, Output: Activation>,
    I: Send + Sync + Clone + 'static,
{
    let folder = tempfile::tempdir().unwrap();
    train_in::<M, O, I>(model, data, config, cut, folder.path(), false)
}

pub(crate) fn train_in<M, O, I>(
    model: &M,
    data: &TrainingData<I, (O::Input, O::Targets)>,
    config: &TrainingConfig,
    cut: Option<&Cut>,
    folder: &std::path::Path,
    resume: bool,
) -> Trained
where
    M: TensorParallel<Input = O::Input, Output = O::Output> + std::fmt::Display + Sync + 'static,
    O: Objective<Input: Activation, Output: Activation>,
    I: Send + Sync + Clone + 'static,
{
    let world = cut.map_or(1, |cut| cut.mesh.world_size());
    let groups = ProcessGroup::over_threads(world, GroupOptions::default());
    let results = std::thread::scope(|scope| {
        let ranks = groups.into_iter().map(|group| {
            let (config, model) = (config.clone(), model.clone());
            let run = (group.rank() == 0).then(|| match resume {
                true => RunDirectory::open(folder).unwrap(),
                false => {
                    let run = RunDirectory::create(folder).unwrap();
                    run.write_config(&config).unwrap();
                    run
                }
            });
            scope.spawn(move || {
                let trainer = Trainer {
                    run,
                    resume,
                    ..Trainer::new(config.clone(), group.clone())
                };
                let Some(cut) = cut else {
                    let model = Supervised::<M, O>::of_blocks(model);
                    return trainer.fit(model, data).unwrap();
                };
                if cut.devices > 1 {
                    let devices = vec![Device::flex(); cut.devices];
                    let split = Placement::even(&model, &devices).unwrap();
                    let split = split.split(&model).unwrap();
                    let model = Supervised::<M, O>::on_devices(model, split);
                    return trainer.fit(model, data).unwrap();
                }
                let blocks = model.blocks().len();
                let stages = Stages::even(blocks, cut.mesh.pipeline, cut.chunks).unwrap();
                let laid = MeshParallelConfig {
                    schedule: cut.kind,
                    micro_batches: cut.micro_batches,
                    tensor_rules: model.tensor_rules(),
                    max_gradient_norm: config.ddp.max_gradient_norm,
                    activation_checkpointing: config.activation_checkpointing,
                    ..MeshParallelConfig::new(cut.mesh, stages)
                };
                let over = MeshParallel::<M, O>::new(group, &model, laid, Device::flex()).unwrap();
                let over: Arc<dyn ModelOverRanks<_, _>> = Arc::new(over);
                let model = Supervised::<M, O>::of_blocks(model);
                trainer.fit_over_ranks(model, data, None, &over).unwrap()
            })
        });
        let ranks = ranks.collect::<Vec<_>>();
        ranks
            .into_iter()
            .map(|rank| rank.join().unwrap())
            .collect::<Vec<_>>()
    });
    let lines = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let lines = lines.lines();
    let lines = lines.map(|line| serde_json::from_str::<MetricLine>(line).unwrap());
    let steps = lines.filter(|line| line.kind == MetricKind::Step);
    let steps = steps.collect::<Vec<_>>();
    let (model, report) = &results[0];
    Trained {
        losses: steps.iter().map(|line| line.loss).collect(),
        norms: steps.iter().map(|line| line.gradient_norm).collect(),
        parameters: parameters(model),
        test_loss: report.test_loss.unwrap(),
    }
}
