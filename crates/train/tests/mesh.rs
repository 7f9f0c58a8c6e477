//! A model over the ranks of a mesh trains as it does on one device.

use std::ops::Range;
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_datasets::{
    DataChoice, ImageBatcher, ImageItem, Split, Surroundings, SyntheticDigits, TextBatcher,
    TextItem, TextRequest, load_text_in,
};
use everburn_models::gpt::GptConfig;
use everburn_models::mnist::MnistConfig;
use everburn_models::resnet50::{ResNet50Config, Stem};
use everburn_nn::{Activation, InBlocks, TensorParallel};
use everburn_pipeline::Stages;
use everburn_schedules::ScheduleKind;
use everburn_train::{
    Classification, Mesh, MeshParallel, MeshParallelConfig, MetricKind, MetricLine, ModelOverRanks,
    NextToken, Objective, OptimizerConfig, OptimizerKind, RunDirectory, Supervised, Trainer,
    TrainingConfig, TrainingData,
};

type Images = TrainingData<ImageItem, (Tensor<4>, Tensor<1, Int>)>;
type Texts = TrainingData<TextItem, (Tensor<2, Int>, Tensor<2, Int>)>;

/// Every parameter, flat, in visiting order.
fn parameters<M: Module>(model: &M) -> Vec<f32> {
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

/// The model with weights that are the same in every run.
fn drawn<M: Module>(model: M) -> M {
    struct Draw(u64);
    impl ModuleMapper for Draw {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let (id, old, mapper) = param.consume();
            if D == 1 {
                return Param::from_mapped_value(id, old, mapper);
            }
            let shape = old.dims();
            let inputs: usize = match D {
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

fn images(samples: usize) -> Images {
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

const CONTEXT: usize = 12;

fn texts() -> (Texts, usize) {
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

fn config(steps: usize, kind: OptimizerKind) -> TrainingConfig {
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
struct Cut {
    mesh: Mesh,
    chunks: usize,
    kind: ScheduleKind,
    micro_batches: usize,
}

fn mesh(data: usize, pipeline: usize, tensor: usize) -> Mesh {
    Mesh {
        data,
        pipeline,
        tensor,
    }
}

fn cut(ranks: usize, kind: ScheduleKind, micro_batches: usize) -> Cut {
    Cut {
        mesh: mesh(1, ranks, 1),
        chunks: 1,
        kind,
        micro_batches,
    }
}

/// What a training leaves behind.
#[derive(Debug, Clone, PartialEq)]
struct Trained {
    losses: Vec<f64>,
    parameters: Vec<f32>,
    test_loss: f64,
}

fn train<M, O, I>(
    model: &M,
    data: &TrainingData<I, (O::Input, O::Targets)>,
    config: &TrainingConfig,
    cut: Option<&Cut>,
) -> Trained
where
    M: InBlocks<Input = O::Input, Output = O::Output>
        + TensorParallel
        + std::fmt::Display
        + Sync
        + 'static,
    O: Objective<Input: Activation, Output: Activation>,
    I: Send + Sync + Clone + 'static,
{
    let folder = tempfile::tempdir().unwrap();
    train_in::<M, O, I>(model, data, config, cut, folder.path(), false)
}

fn train_in<M, O, I>(
    model: &M,
    data: &TrainingData<I, (O::Input, O::Targets)>,
    config: &TrainingConfig,
    cut: Option<&Cut>,
    folder: &std::path::Path,
    resume: bool,
) -> Trained
where
    M: InBlocks<Input = O::Input, Output = O::Output>
        + TensorParallel
        + std::fmt::Display
        + Sync
        + 'static,
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
                trainer.fit_over_ranks(model, data, &over).unwrap()
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
    let steps = lines.map(|line| serde_json::from_str::<MetricLine>(line).unwrap());
    let (model, report) = &results[0];
    Trained {
        losses: steps
            .filter(|line| line.kind == MetricKind::Step)
            .map(|line| line.loss)
            .collect(),
        parameters: parameters(model),
        test_loss: report.test_loss.unwrap(),
    }
}

fn assert_close(alone: &Trained, cut: &Trained, about: &Cut) {
    assert_eq!(alone.losses.len(), cut.losses.len(), "{about:?}");
    for (a, b) in alone.losses.iter().zip(&cut.losses) {
        assert!(
            (a - b).abs() <= 1e-5 * a.abs().max(1.0),
            "{a} {b} {about:?}"
        );
    }
    assert_eq!(alone.parameters.len(), cut.parameters.len(), "{about:?}");
    let pairs = alone.parameters.iter().zip(&cut.parameters);
    let largest = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(largest <= 1e-4, "parameters differ by {largest} {about:?}");
    let test = (alone.test_loss - cut.test_loss).abs();
    assert!(test <= 1e-4, "the test losses differ by {test} {about:?}");
}

fn each_schedule(ranks: Range<usize>, micro_batches: &[usize]) -> Vec<Cut> {
    let kinds = [
        ScheduleKind::GPipe,
        ScheduleKind::OneForwardOneBackward,
        ScheduleKind::ZeroBubbleH1,
    ];
    let mut cuts = Vec::new();
    for ranks in ranks.step_by(2) {
        for kind in kinds {
            for count in micro_batches {
                cuts.push(cut(ranks, kind, *count));
            }
        }
    }
    cuts
}

/// Two ranks that share each layer, and two by two along each pair of axes.
fn meshes_of_four(kind: ScheduleKind, micro_batches: usize) -> Vec<Cut> {
    let meshes = [mesh(1, 1, 2), mesh(2, 2, 1), mesh(2, 1, 2), mesh(1, 2, 2)];
    let cuts = meshes.map(|mesh| Cut {
        mesh,
        ..cut(1, kind, micro_batches)
    });
    cuts.into()
}

#[test]
fn the_two_convolution_net_in_two_and_four_stages_by_every_schedule() {
    let model = drawn(MnistConfig::new().init(&Device::flex()));
    let data = images(200);
    let config = config(20, OptimizerKind::Sgd);
    let alone = train::<_, Classification<4>, _>(&model, &data, &config, None);
    assert_eq!(alone.losses.len(), 12, "an epoch of 180 samples");
    let mut cuts = each_schedule(2..5, &[1, 2, 8]);
    cuts.push(Cut {
        chunks: 2,
        ..cut(2, ScheduleKind::Interleaved1F1B, 4)
    });
    cuts.extend(meshes_of_four(ScheduleKind::OneForwardOneBackward, 4));
    for about in cuts {
        let trained = train::<_, Classification<4>, _>(&model, &data, &config, Some(&about));
        assert_close(&alone, &trained, &about);
    }
}

#[test]
fn a_decoder_whose_head_is_its_embedding_in_stages_with_clipping() {
    let (data, vocabulary) = texts();
    let gpt = GptConfig::new(vocabulary)
        .with_context(CONTEXT)
        .with_width(16)
        .with_layers(3)
        .with_heads(2);
    let model = drawn(gpt.init(&Device::flex()));
    let mut config = config(20, OptimizerKind::Sgd);
    config.ddp.max_gradient_norm = Some(0.5);
    let alone = train::<_, NextToken, _>(&model, &data, &config, None);
    let mut cuts = each_schedule(2..3, &[2, 8]);
    cuts.push(cut(4, ScheduleKind::OneForwardOneBackward, 4));
    cuts.push(Cut {
        chunks: 2,
        ..cut(2, ScheduleKind::Interleaved1F1B, 4)
    });
    cuts.extend(meshes_of_four(ScheduleKind::ZeroBubbleH1, 2));
    for about in cuts {
        let trained = train::<_, NextToken, _>(&model, &data, &config, Some(&about));
        assert_close(&alone, &trained, &about);
    }
}

#[test]
fn stages_that_compute_activations_again_give_the_same_bits() {
    let (data, vocabulary) = texts();
    let gpt = GptConfig::new(vocabulary)
        .with_context(CONTEXT)
        .with_width(16)
        .with_layers(3)
        .with_heads(2);
    let model = drawn(gpt.init(&Device::flex()));
    for kind in [
        ScheduleKind::OneForwardOneBackward,
        ScheduleKind::ZeroBubbleH1,
    ] {
        let [kept, blocks, burn] = ["none", "blocks", "burn"].map(|how| {
            let config = TrainingConfig {
                activation_checkpointing: how.parse().unwrap(),
                ..config(6, OptimizerKind::Sgd)
            };
            train::<_, NextToken, _>(&model, &data, &config, Some(&cut(2, kind, 4)))
        });
        assert_eq!(kept, blocks, "{kind:?}");
        assert_eq!(kept, burn, "{kind:?}");
    }
}

#[test]
fn a_residual_net_in_stages_equals_the_same_micro_batches_on_one_device() {
    let config_of_model = ResNet50Config::new()
        .with_stem(Stem::Mnist)
        .with_blocks([1, 1, 1, 1])
        .with_width(4)
        .with_classes(10);
    let model = drawn(config_of_model.init(&Device::flex()));
    let data = images(68);
    // Batch norm works on a micro-batch, on one device too.
    let mut config = config(3, OptimizerKind::Sgd);
    config.accumulate = 2;
    let alone = train::<_, Classification<4>, _>(&model, &data, &config, None);
    config.accumulate = 1;
    for kind in [
        ScheduleKind::OneForwardOneBackward,
        ScheduleKind::ZeroBubbleH1,
    ] {
        let about = cut(2, kind, 2);
        let trained = train::<_, Classification<4>, _>(&model, &data, &config, Some(&about));
        assert_close(&alone, &trained, &about);
    }
}

#[test]
fn a_checkpoint_of_one_cut_goes_on_in_any_other() {
    let model = drawn(MnistConfig::new().init(&Device::flex()));
    let data = images(116);
    let mut config = config(usize::MAX, OptimizerKind::Adam);
    (config.steps, config.epochs) = (None, 1);
    let two = cut(2, ScheduleKind::OneForwardOneBackward, 4);
    let four = cut(4, ScheduleKind::GPipe, 2);
    let [shared, _, replicas, stages] = meshes_of_four(two.kind, 2).try_into().unwrap();
    // Each way of going on starts from the same checkpoint, made in two stages.
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("first");
    train_in::<_, Classification<4>, _>(&model, &data, &config, Some(&two), &first, false);
    config.epochs = 2;
    let go_on = |cut: Option<&Cut>, name: &str| {
        let run = folder.path().join(name);
        copy(&first, &run);
        train_in::<_, Classification<4>, _>(&model, &data, &config, cut, &run, true)
    };
    let alone = go_on(None, "alone");
    assert_eq!(alone.losses.len(), 12, "two epochs of 96 samples");
    for (about, name) in [
        (&two, "two"),
        (&four, "four"),
        (&shared, "shared"),
        (&replicas, "replicas"),
        (&stages, "stages"),
    ] {
        assert_close(&alone, &go_on(Some(about), name), about);
    }
    // And one that was made of parts of layers.
    config.epochs = 1;
    let parts = folder.path().join("parts");
    train_in::<_, Classification<4>, _>(&model, &data, &config, Some(&stages), &parts, false);
    config.epochs = 2;
    let gone_on = train_in::<_, Classification<4>, _>(&model, &data, &config, None, &parts, true);
    assert_close(&alone, &gone_on, &stages);
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
