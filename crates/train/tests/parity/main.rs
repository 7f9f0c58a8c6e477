//! Our loss curves are PyTorch's: each case of `tests/parity/make_golden.py`, on 1, 2 and 4 ranks.
//!
//! The trainer is the whole one, with its sampler, buckets and optimizers; only its data set is arranged so
//! that it reads PyTorch's samples in PyTorch's order. Ranks are threads.

mod exchange;
mod golden;
mod nets;

use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::module::Module;
use burn::prelude::*;
use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_datasets::{ImageBatcher, ImageItem, TextBatcher, TextItem};
use everburn_models::gpt::{Gpt, GptConfig};
use everburn_models::mnist_bn::{MnistBn, MnistBnConfig};
use everburn_models::two_part_resnet::{TwoPartResNet, TwoPartResNetConfig};
use everburn_train::{
    Classification, MetricKind, MetricLine, NextToken, Objective, OptimizerConfig, RunDirectory,
    Supervised, Trainer, TrainingConfig, TrainingData,
};

use golden::{Golden, STEPS, Samples, digit, text};
use nets::{SimpleCnn, TwoConvolutions};

/// The largest relative difference of a loss in the first 50 steps, and in the rest.
const ALLOWED: [f64; 2] = [1e-4, 1e-3];

/// The numbers of ranks of each case.
const RANKS: [usize; 3] = [1, 2, 4];

/// A case: what is trained, on which samples.
struct Case<M, O: Objective, I> {
    name: &'static str,
    model: M,
    forward: fn(&M, O::Input) -> O::Output,
    sample: fn(u64) -> I,
    batcher: Arc<dyn Batcher<I, (O::Input, O::Targets)>>,
    /// Batch norm spans the ranks.
    synchronize: bool,
}

type Images<M> = Case<M, Classification<4>, ImageItem>;

impl<M, O, I> Case<M, O, I>
where
    M: Module + std::fmt::Display + Sync + 'static,
    O: Objective,
    I: Clone + Send + Sync + 'static,
{
    /// Checks that all numbers of ranks follow PyTorch.
    fn follows(&self) {
        let golden = Golden::read(self.name);
        for ranks in RANKS {
            let (losses, _) = self.train(&golden, ranks, golden.optimizer(), STEPS);
            let apart = apart(&losses, golden.losses_of(ranks));
            // Shown with --nocapture.
            #[allow(clippy::print_stderr)]
            {
                eprintln!(
                    "{}, {ranks} ranks: {:.1e} {:.1e}",
                    self.name, apart[0], apart[1]
                );
            }
            assert!(
                apart[0] <= ALLOWED[0] && apart[1] <= ALLOWED[1],
                "{} on {ranks} ranks: a loss differs from PyTorch's by {:e} in the first 50 steps and \
                 by {:e} after them",
                self.name,
                apart[0],
                apart[1]
            );
        }
    }

    /// The loss of each step on ranks that are threads, and the model.
    fn train(
        &self,
        golden: &Golden,
        ranks: usize,
        optimizer: OptimizerConfig,
        steps: usize,
    ) -> (Vec<f64>, Supervised<M, O>) {
        let folder = tempfile::tempdir().unwrap();
        let config = TrainingConfig {
            epochs: 1,
            steps: Some(steps),
            batch_size: golden.batch,
            validation_samples: Some(0),
            log_every: 1,
            sync_batch_norm: self.synchronize,
            optimizer,
            ..TrainingConfig::default()
        };
        let train = golden.in_order_of(config.seed, self.sample);
        // The trainer ends with a test, of which nothing is asked here.
        let test = Arc::new(Samples((0..4).map(self.sample).collect()));
        // Each rank has a copy of its own: clones would share running statistics.
        let model = golden.initialised(self.model.valid());
        let threads = ProcessGroup::over_threads(ranks, GroupOptions::default())
            .into_iter()
            .map(|group| {
                let (config, model, forward) = (config.clone(), model.valid(), self.forward);
                let data = TrainingData {
                    train: Arc::clone(&train),
                    test: Arc::clone(&test) as _,
                    batcher: Arc::clone(&self.batcher),
                    name: self.name.to_string(),
                    origin: "made from integers".to_string(),
                    fingerprint: String::new(),
                };
                let run = (group.rank() == 0)
                    .then(|| RunDirectory::create(folder.path().join("run")).unwrap());
                std::thread::spawn(move || {
                    let trainer = Trainer {
                        run,
                        ..Trainer::new(config, group)
                    };
                    let model = Supervised::<M, O>::new(model, forward);
                    trainer.fit(model, &data).unwrap().0
                })
            })
            .collect::<Vec<_>>();
        let models = threads.into_iter().map(|rank| rank.join().unwrap());
        let model = models.collect::<Vec<_>>().remove(0);
        let lines = std::fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap();
        let lines = lines.lines();
        let lines = lines.map(|line| serde_json::from_str::<MetricLine>(line).unwrap());
        let steps = lines.filter(|line| line.kind == MetricKind::Step);
        (steps.map(|line| line.loss).collect(), model)
    }
}

/// The largest relative difference in the first 50 steps, and in the rest.
fn apart(ours: &[f64], theirs: &[f64]) -> [f64; 2] {
    assert_eq!(ours.len(), STEPS);
    assert_eq!(theirs.len(), STEPS);
    let relative = |(a, b): (&f64, &f64)| (a - b).abs() / a.abs().max(b.abs());
    let relative = ours.iter().zip(theirs).map(relative).collect::<Vec<_>>();
    // Not a number is apart from everything.
    let largest = |part: &[f64]| {
        part.iter()
            .fold(0.0, |most: f64, x| if *x <= most { most } else { *x })
    };
    [largest(&relative[..50]), largest(&relative[50..])]
}

fn images<M>(name: &'static str, model: M, forward: fn(&M, Tensor<4>) -> Tensor<2>) -> Images<M> {
    Case {
        name,
        model,
        forward,
        sample: digit,
        batcher: Arc::new(ImageBatcher::unit()),
        synchronize: false,
    }
}

fn simple_cnn() -> Images<SimpleCnn> {
    let model = SimpleCnn::init(&Device::flex());
    images("simple-cnn-adam", model, SimpleCnn::forward)
}

#[test]
fn a_simple_cnn_with_adam_follows_pytorch() {
    simple_cnn().follows();
}

fn mnist_bn() -> Images<MnistBn> {
    let model = MnistBnConfig::new().with_dropout(0.0).init(&Device::flex());
    Case {
        batcher: Arc::new(ImageBatcher::bytes()),
        synchronize: true,
        ..images("mnist-bn-adam", model, MnistBn::forward)
    }
}

fn two_part_resnet() -> Images<TwoPartResNet> {
    let model = TwoPartResNetConfig::new().init(&Device::flex());
    Case {
        synchronize: true,
        ..images("two-part-resnet-adam", model, TwoPartResNet::forward)
    }
}

fn gpt_nano() -> Case<Gpt, NextToken, TextItem> {
    const CONTEXT: usize = 16;
    const VOCABULARY: usize = 65;
    let config = GptConfig::nano(VOCABULARY).with_context(CONTEXT);
    Case {
        name: "gpt-nano-adam-w",
        model: config.init(&Device::flex()),
        forward: Gpt::forward,
        sample: |n| text(n, CONTEXT as u64, VOCABULARY as u64),
        batcher: Arc::new(TextBatcher),
        synchronize: false,
    }
}

#[test]
fn two_convolutions_with_sgd_and_momentum_follow_pytorch() {
    let model = TwoConvolutions::init(&Device::flex());
    images("two-convolutions-sgd", model, TwoConvolutions::forward).follows();
}

#[test]
fn batch_norm_over_all_ranks_with_adam_follows_pytorch() {
    mnist_bn().follows();
}

#[test]
fn the_two_part_resnet_with_adam_follows_pytorch() {
    two_part_resnet().follows();
}

#[test]
fn gpt_nano_with_adam_w_follows_pytorch() {
    gpt_nano().follows();
}

/// The comparison is sharp: what people get wrong when they rebuild an optimizer is seen.
#[test]
fn a_slightly_different_optimizer_does_not_follow() {
    let case = simple_cnn();
    let golden = Golden::read(case.name);
    let right = golden.optimizer();
    let wrong = [
        OptimizerConfig {
            epsilon: 1e-5, // Burn's default
            ..right.clone()
        },
        OptimizerConfig {
            beta_2: 0.998,
            ..right.clone()
        },
        OptimizerConfig {
            learning_rate: 1.001e-3,
            ..right.clone()
        },
    ];
    for optimizer in wrong {
        let described = format!("{optimizer:?}");
        let (losses, _) = case.train(&golden, 1, optimizer, STEPS);
        let apart = apart(&losses, golden.losses_of(1));
        assert!(
            apart[0] > ALLOWED[0] || apart[1] > ALLOWED[1],
            "{described} follows PyTorch as well: {apart:?}"
        );
    }
}
