//! What is trained, on which samples, and the training itself: the cases of `tests/parity/cases.py`.

use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::module::Module;
use burn::prelude::*;
use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_datasets::{ImageBatcher, ImageItem, TextBatcher, TextItem};
use everburn_models::gpt::{Gpt, GptConfig};
use everburn_models::mnist_bn::{MnistBn, MnistBnConfig};
use everburn_models::two_part_resnet::{TwoPartResNet, TwoPartResNetConfig};
use everburn_tests::in_parallel;
use everburn_train::{
    Classification, DataFingerprint, MetricKind, MetricLine, NextToken, Objective, OptimizerConfig,
    RunDirectory, Supervised, Trainer, TrainingConfig, TrainingData,
};

use crate::golden::{Golden, Samples, digit, text};
use crate::nets::{SimpleCnn, TwoConvolutions};
use crate::planted::Planted;

/// The numbers of ranks of each case. Ranks are threads.
pub const RANKS: [usize; 3] = [1, 2, 4];

/// A case: what is trained, on which samples.
pub struct Case<M, O: Objective, I> {
    /// That of its golden file.
    pub name: &'static str,
    pub model: M,
    pub forward: fn(&M, O::Input) -> O::Output,
    pub sample: fn(u64) -> I,
    pub batcher: Arc<dyn Batcher<I, (O::Input, O::Targets)>>,
    /// Batch norm spans the ranks.
    pub synchronize: bool,
}

/// A case of images.
pub type Images<M> = Case<M, Classification<4>, ImageItem>;

/// Where a training begins, and what is wrong with it.
pub struct Start<M> {
    pub model: M,
    /// How many global batches of the golden file's are passed over.
    pub step: usize,
    pub planted: Option<Planted>,
}

impl<M, O, I> Case<M, O, I>
where
    M: Module + std::fmt::Display + Sync + 'static,
    O: Objective,
    I: Clone + Send + Sync + 'static,
{
    /// The golden file's beginning.
    pub fn start(&self, golden: &Golden) -> Start<M> {
        Start {
            model: golden.initialised(self.model.valid()),
            step: 0,
            planted: None,
        }
    }

    /// The loss of each step, and the model.
    pub fn train(
        &self,
        golden: &Golden,
        ranks: usize,
        optimizer: OptimizerConfig,
        steps: usize,
    ) -> (Vec<f64>, Supervised<M, O>) {
        self.train_from(&self.start(golden), golden.batch, ranks, optimizer, steps)
    }

    /// The same from another start, with global batches of `batch` samples.
    pub fn train_from(
        &self,
        start: &Start<M>,
        batch: usize,
        ranks: usize,
        optimizer: OptimizerConfig,
        steps: usize,
    ) -> (Vec<f64>, Supervised<M, O>) {
        let folder = tempfile::tempdir().unwrap();
        let config = TrainingConfig {
            epochs: 1,
            steps: Some(steps),
            batch_size: batch,
            validation_samples: Some(0),
            log_every: 1,
            sync_batch_norm: self.synchronize,
            optimizer,
            ..TrainingConfig::default()
        };
        let passed = (start.step * batch) as u64;
        let sample = self.sample;
        let train = Arc::new(Samples::in_order_of(config.seed, batch, passed, sample));
        // The trainer ends with a test, of which nothing is asked here.
        let numbers = (0..4).collect();
        let test = Arc::new(Samples { sample, numbers });
        // Each rank has a copy of its own: clones would share running statistics.
        let ranks = ProcessGroup::over_threads(ranks, GroupOptions::default())
            .into_iter()
            .map(|group| (group, start.model.valid(), start.planted.clone()));
        let mut models = in_parallel(ranks, |(group, model, planted)| {
            let forward = self.forward;
            let data = TrainingData {
                augment: None,
                weigh: None,
                train: Arc::clone(&train) as _,
                test: Arc::clone(&test) as _,
                validation: None,
                batcher: Arc::clone(&self.batcher),
                name: self.name.to_string(),
                origin: "made from integers".to_string(),
                fingerprint: DataFingerprint::default(),
            };
            let run = (group.rank() == 0)
                .then(|| RunDirectory::create(folder.path().join("run")).unwrap());
            let trainer = Trainer {
                run,
                ..Trainer::new(config.clone(), group)
            };
            let forward = move |model: &M, inputs| match &planted {
                None => forward(model, inputs),
                Some(planted) => forward(&planted.in_model(model), inputs),
            };
            let model = Supervised::<M, O>::new(model, forward);
            trainer.fit(model, &data).unwrap().0
        });
        let model = models.swap_remove(0);
        let lines = std::fs::read_to_string(folder.path().join("run/metrics.jsonl")).unwrap();
        let lines = lines.lines();
        let lines = lines.map(|line| serde_json::from_str::<MetricLine>(line).unwrap());
        let steps = lines.filter(|line| line.kind == MetricKind::Step);
        (steps.map(|line| line.loss).collect(), model)
    }
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

pub fn simple_cnn(name: &'static str) -> Images<SimpleCnn> {
    let model = SimpleCnn::init(&Device::flex());
    images(name, model, SimpleCnn::forward)
}

pub fn two_convolutions(name: &'static str) -> Images<TwoConvolutions> {
    let model = TwoConvolutions::init(&Device::flex());
    images(name, model, TwoConvolutions::forward)
}

pub fn mnist_bn(name: &'static str) -> Images<MnistBn> {
    let model = MnistBnConfig::new().with_dropout(0.0).init(&Device::flex());
    Case {
        batcher: Arc::new(ImageBatcher::bytes()),
        synchronize: true,
        ..images(name, model, MnistBn::forward)
    }
}

pub fn two_part_resnet(name: &'static str) -> Images<TwoPartResNet> {
    let model = TwoPartResNetConfig::new().init(&Device::flex());
    Case {
        synchronize: true,
        ..images(name, model, TwoPartResNet::forward)
    }
}

pub fn gpt_nano(name: &'static str) -> Case<Gpt, NextToken, TextItem> {
    const CONTEXT: usize = 16;
    const VOCABULARY: usize = 65;
    let config = GptConfig::nano(VOCABULARY).with_context(CONTEXT);
    Case {
        name,
        model: config.init(&Device::flex()),
        forward: Gpt::forward,
        sample: |n| text(n, CONTEXT as u64, VOCABULARY as u64),
        batcher: Arc::new(TextBatcher),
        synchronize: false,
    }
}
