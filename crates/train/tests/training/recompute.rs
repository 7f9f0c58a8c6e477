//! The same training, whichever activations are kept.

use std::sync::Arc;

use burn::module::{Module, ModuleVisitor, Param};
use burn::prelude::*;
use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_datasets::{ImageBatcher, ImageItem, Split, SyntheticDigits};
use everburn_models::mnist_bn::{MnistBn, MnistBnConfig};
use everburn_train::{
    ActivationCheckpointing, Classifier, MetricLine, RunDirectory, Trainer, TrainingConfig,
    TrainingData,
};

type Images = TrainingData<ImageItem, (Tensor<4>, Tensor<1, Int>)>;

fn images() -> Images {
    let digits = SyntheticDigits::new(1);
    let train = digits.generate(Split::Train, 50).unwrap();
    TrainingData {
        fingerprint: train.fingerprint(),
        train: Arc::new(train),
        test: Arc::new(digits.generate(Split::Test, 10).unwrap()),
        batcher: Arc::new(ImageBatcher::bytes()),
        name: "synthetic-digits".to_string(),
        origin: "generated".to_string(),
    }
}

/// The bits of every parameter and running statistic, in visiting order.
fn numbers<M: Module>(model: &M) -> Vec<u32> {
    struct Collect(Vec<u32>);
    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let data = param.val().into_data();
            self.0.extend(data.iter::<f32>().map(f32::to_bits));
        }
    }
    let mut collect = Collect(Vec::new());
    model.visit(&mut collect);
    collect.0
}

fn net(dropout: f64) -> MnistBn {
    let model = MnistBnConfig::new()
        .with_dropout(dropout)
        .with_momentum(0.1)
        .init(&Device::flex());
    drop(numbers(&model)); // lazily initialised parameters are drawn now
    model
}

/// Trains on ranks that are threads.
fn train(model: &MnistBn, world_size: usize, how: &str, run: Option<&RunDirectory>) -> Vec<u32> {
    let checkpointing: ActivationCheckpointing = how.parse().unwrap();
    let config = TrainingConfig {
        epochs: 1,
        batch_size: 12,
        // 38 samples to train on: the last global batch has two.
        validation_samples: Some(12),
        log_every: 1,
        sync_batch_norm: world_size > 1,
        activation_checkpointing: checkpointing,
        ..TrainingConfig::default()
    };
    let ranks = ProcessGroup::over_threads(world_size, GroupOptions::default())
        .into_iter()
        .map(|group| {
            // Not a clone, which would share the running statistics.
            let (config, model) = (config.clone(), model.valid());
            let run = run.filter(|_| group.rank() == 0).cloned();
            std::thread::spawn(move || {
                let trainer = Trainer {
                    run,
                    ..Trainer::new(config, group)
                };
                let model = Classifier::of_checkpointed_blocks(model, checkpointing);
                let (model, report) = trainer.fit(model, &images()).unwrap();
                assert!(report.test_accuracy.is_some());
                numbers(&model)
            })
        })
        .collect::<Vec<_>>();
    let replicas = ranks.into_iter().map(|rank| rank.join().unwrap());
    let replicas = replicas.collect::<Vec<_>>();
    assert!(replicas.iter().all(|replica| *replica == replicas[0]));
    replicas[0].clone()
}

#[test]
fn all_ways_give_the_same_bits_on_one_rank() {
    let model = net(0.0);
    let expected = train(&model, 1, "none", None);
    for how in ["blocks", "2", "99", "burn"] {
        assert_eq!(train(&model, 1, how, None), expected, "{how}");
    }
}

#[test]
fn batch_norms_over_ranks_exchange_once_more_and_give_the_same_bits() {
    let model = net(0.0);
    let expected = train(&model, 2, "none", None);
    for how in ["blocks", "burn"] {
        assert_eq!(train(&model, 2, how, None), expected, "{how}");
    }
}

#[test]
fn steps_tell_how_much_memory_they_took() {
    let folder = tempfile::tempdir().unwrap();
    let run = RunDirectory::create(folder.path().join("run")).unwrap();
    train(&net(0.0), 2, "blocks", Some(&run));
    let lines = std::fs::read_to_string(run.path().join("metrics.jsonl")).unwrap();
    let lines = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let peaks: Vec<_> = lines
        .map(|line: MetricLine| line.cost.peak_memory)
        .collect();
    let report = run.read_report().unwrap();
    if cfg!(target_os = "linux") {
        let most = peaks.iter().max().copied().flatten();
        assert!(most.is_some_and(|bytes| bytes > 1 << 20), "{peaks:?}");
        assert_eq!(report.peak_memory, most);
    }
}
