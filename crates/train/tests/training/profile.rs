//! Three planted faults, each of which a profile names first: a slow loader, a slow rank, a needless copy in a layer.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use burn::module::Module;
use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_models::mlp::{Mlp, MlpConfig};
use everburn_nn::conv::{Conv2d, Conv2dConfig};
use everburn_nn::tensor::activation::relu;
use everburn_nn::{Linear, LinearConfig};
use everburn_profile::{
    FOLDER, Facts, Finding, FindingKind, Layer, Phase, RankProfile, Recorder, Results, Sampler,
    write_results,
};
use everburn_tests::AssertContains;
use everburn_train::{Classifier, Trainer, TrainingConfig, compute_on_this_thread};

use crate::alone;
use crate::harness::data::{Images, digits};
use crate::harness::ranks::on_ranks;
use crate::samples::slow;

/// How long a planted fault holds a step up: much longer than a step of so small a model takes, and than a rank
/// loses that stands without a core for seconds, as a mean of the steps.
const HELD_UP: Duration = Duration::from_millis(600);

/// How many steps are made.
const STEPS: usize = 12;

/// Samples of which each takes so long.
fn data(each: Duration) -> Images {
    slow(digits(5, 300, 20), each)
}

fn config() -> TrainingConfig {
    TrainingConfig {
        epochs: 1,
        steps: Some(STEPS),
        batch_size: 20,
        validation_samples: Some(20),
        ..TrainingConfig::default()
    }
}

fn mlp() -> Mlp {
    MlpConfig::new().init(&Device::flex())
}

/// Trains on a recorder, which writes into `folder`.
fn profile<M: Module + std::fmt::Display + Sync + 'static>(
    trainer: Trainer,
    model: Classifier<M, 4>,
    data: &Images,
    recorder: &Recorder,
    folder: &Path,
) {
    // How long a step takes is not to depend on other tests, which rayon's threads work for.
    compute_on_this_thread(1).unwrap();
    let trainer = Trainer {
        recorder: Some(recorder.clone()),
        ..trainer
    };
    trainer.fit(model, data).unwrap();
    recorder.finish().write(&folder.join(FOLDER)).unwrap();
}

/// Two ranks, each with what it is given by its number.
fn two_ranks(
    model: fn(usize) -> Classifier<Mlp, 4>,
    data: fn(usize) -> Images,
) -> (tempfile::TempDir, Results) {
    let folder = tempfile::tempdir().unwrap();
    on_ranks(2, &config(), None, |trainer| {
        let rank = trainer.group.rank();
        let recorder = Recorder::new(Facts::default());
        profile(trainer, model(rank), &data(rank), &recorder, folder.path());
    });
    let results = write_results(folder.path(), &[]).unwrap();
    (folder, results)
}

fn told(findings: &[Finding]) -> String {
    findings
        .iter()
        .map(|finding| format!("{finding}\n"))
        .collect()
}

/// The first finding of what the training does: that other tests have the cores at the same time is none.
fn planted(findings: &[Finding]) -> &Finding {
    let own = findings
        .iter()
        .find(|finding| finding.kind != FindingKind::Cores);
    own.expect("something is found")
}

#[test]
fn a_slow_loader_is_named_first() {
    let (_folder, results) = two_ranks(
        |_| Classifier::of_blocks(mlp()),
        |rank| {
            // Ten samples per step.
            let each = HELD_UP / 10;
            data(if rank == 1 { each } else { Duration::ZERO })
        },
    );
    let first = planted(&results.findings);
    let all = told(&results.findings);
    assert_eq!(
        (first.kind, first.rank),
        (FindingKind::Data, Some(1)),
        "{all}"
    );
    let text = first.to_string();
    text.assert_contains([
        "of rank 1's step waits for data",
        "raise `training.input.workers`",
    ]);
}

#[test]
fn a_rank_that_works_longer_is_named_first() {
    let (_folder, results) = two_ranks(
        |rank| {
            Classifier::new(mlp(), move |model: &Mlp, images| {
                if rank == 1 {
                    thread::sleep(HELD_UP);
                }
                model.forward(images)
            })
        },
        |_| data(Duration::ZERO),
    );
    let first = planted(&results.findings);
    let all = told(&results.findings);
    assert_eq!(
        (first.kind, first.rank),
        (FindingKind::SlowRank, Some(1)),
        "{all}"
    );
    assert!(first.text.contains("mostly in its forward phase"), "{all}");
    // The other one is not found to communicate too much because it waits.
    let exchange = results
        .findings
        .iter()
        .find(|finding| finding.kind == FindingKind::Exchange);
    assert!(
        exchange.is_none_or(|finding| finding.share < first.share),
        "{all}"
    );
}

/// A network whose second layer looks at its numbers in host memory.
#[derive(Module, Debug)]
struct Looking {
    first: Linear,
    second: Linear,
    third: Linear,
}

impl Looking {
    fn new() -> Self {
        let device = Device::flex();
        let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(&device);
        Self {
            first: linear(28 * 28, 16),
            second: linear(16, 16),
            third: linear(16, 10),
        }
    }

    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let hidden = relu(self.first.forward(images.flatten::<2>(1, 3)));
        let hidden = relu(self.second.forward(hidden));
        let wide = hidden.clone().repeat_dim(1, 2048);
        for _ in 0..24 {
            look_at(&wide.clone().into_data());
        }
        self.third.forward(hidden)
    }
}

fn look_at(numbers: &TensorData) {
    std::hint::black_box(numbers.num_elements());
}

/// A program has one sampler at a time: a second would be refused.
static SAMPLER: Mutex<()> = Mutex::new(());

/// What is found in a training of which samples are taken, and its folder.
fn sampled<M: Module + std::fmt::Display + Sync + 'static>(
    model: Classifier<M, 4>,
) -> (tempfile::TempDir, Results) {
    let _alone = SAMPLER.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    let trainer = alone(config());
    let sampler = Sampler::start().unwrap();
    let recorder = Recorder::new(Facts::default()).sampling(sampler);
    profile(
        trainer,
        model,
        &data(Duration::ZERO),
        &recorder,
        folder.path(),
    );
    let results = write_results(folder.path(), &[]).unwrap();
    (folder, results)
}

#[test]
fn a_needless_copy_in_a_layer_is_named_first() {
    // Copies take milliseconds. Where the training stands without a core for longer, outside of them, it is that which
    // is told first: this happens seldom, and not in each of four trainings.
    let is_named_first = |(_, results): &(tempfile::TempDir, Results)| {
        let first = planted(&results.findings);
        first.kind == FindingKind::HostCopy && first.layer.as_deref() == Some("second")
    };
    let look = || sampled(Classifier::new(Looking::new(), Looking::forward));
    let (_folder, results) = (0..3)
        .map(|_| look())
        .find(is_named_first)
        .unwrap_or_else(look);
    let first = planted(&results.findings);
    let all = told(&results.findings);
    assert_eq!(
        first.kind,
        FindingKind::HostCopy,
        "{all}{:#?}",
        results.analysis.ranks[0].copies
    );
    assert_eq!(first.layer.as_deref(), Some("second"), "{all}");
    assert!(first.text.contains("Looking"), "{all}");
    assert!(results.flame_graph.is_some_and(|path| path.exists()));
}

/// Two convolutions, of Burn's type or of our type.
#[derive(Module, Debug)]
struct Convolving<C: Module> {
    first: C,
    second: C,
    head: Linear,
}

impl<C: Module> Convolving<C> {
    fn new(convolution: impl Fn([usize; 2]) -> C) -> Self {
        Self {
            first: convolution([1, 24]),
            second: convolution([24, 24]),
            head: LinearConfig::new(24, 10).init(&Device::flex()),
        }
    }

    fn head(&self, pixels: Tensor<4>) -> Tensor<2> {
        let means: Tensor<2> = pixels.flatten::<3>(2, 3).mean_dim(2).squeeze_dim(2);
        self.head.forward(means)
    }
}

#[test]
fn convolutions_of_burns_own_are_told_and_those_of_ours_are_not() {
    let device = Device::flex();
    let burns =
        Convolving::new(|channels| nn::conv::Conv2dConfig::new(channels, [5, 5]).init(&device));
    let (_folder, results) = sampled(Classifier::new(
        burns,
        |net: &Convolving<nn::conv::Conv2d>, images| {
            net.head(net.second.forward(net.first.forward(images)))
        },
    ));
    let layers = &results.analysis.ranks[0].burn_layers;
    assert!(!layers.is_empty(), "{}", told(&results.findings));
    assert_eq!(layers[0].kind, "convolution", "{layers:?}");
    let mut kinds = results.findings.iter().map(|finding| finding.kind);
    assert!(
        kinds.any(|kind| kind == FindingKind::BurnLayers),
        "{}{layers:?}",
        told(&results.findings)
    );
    let ours = Convolving::new(|channels| Conv2dConfig::new(channels, [5, 5]).init(&device));
    let (_folder, results) = sampled(Classifier::new(ours, |net: &Convolving<Conv2d>, images| {
        net.head(net.second.forward(net.first.forward(images)))
    }));
    assert_eq!(results.analysis.ranks[0].burn_layers, []);
}

#[test]
fn a_step_is_the_sum_of_its_phases_and_its_passes_that_of_its_layers() {
    let (folder, results) = two_ranks(|_| Classifier::of_blocks(mlp()), |_| data(Duration::ZERO));
    assert_eq!(results.analysis.steps + results.analysis.left_out, STEPS);
    for rank in &results.analysis.ranks {
        let sum: f64 = rank.phases.iter().map(|cost| cost.seconds).sum();
        assert!((sum / rank.step_seconds - 1.0).abs() < 1e-9, "{rank:#?}");
        let names: Vec<&str> = rank
            .layers
            .iter()
            .map(|layer| layer.name.as_str())
            .collect();
        assert!(names.len() >= 2, "{names:?}");
        let passes = [Phase::Forward, Phase::Backward].map(|phase| rank.phase(phase).seconds);
        let layers: fn(&RankProfile) -> f64 = |rank| rank.layers.iter().map(Layer::seconds).sum();
        assert!(
            (layers(rank) / (passes[0] + passes[1]) - 1.0).abs() < 1e-9,
            "{rank:#?}"
        );
    }
    let trace = std::fs::read_to_string(folder.path().join("trace.json")).unwrap();
    let trace: serde_json::Value = serde_json::from_str(&trace).unwrap();
    let rows = trace["traceEvents"].as_array().unwrap().iter();
    let rows: Vec<_> = rows
        .filter(|event| event["name"] == "thread_name")
        .collect();
    for name in ["training", "layers", "reducer 0"] {
        let of_name = rows.iter().filter(|event| event["args"]["name"] == name);
        assert_eq!(of_name.count(), 2, "{name}: {rows:?}");
    }
}
