//! A training over virtual ranks has the same bits on any number of ranks.
//!
//! Ranks are threads here, which share a generator of random numbers, so nothing draws any; what draws is
//! tested with processes, in `tests/tests/virtual_ranks.rs`.

use std::sync::{Arc, OnceLock};

use burn::module::{Module, ModuleVisitor, Param};
use burn::prelude::*;
use burn::store::ModuleRecord;
use burn::tensor::Bytes;
use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_datasets::{ImageBatcher, ImageItem, Split, SyntheticDigits};
use everburn_models::resnet50::{ResNet50, ResNet50Config, Stem};
use everburn_train::{
    Classifier, OptimizerConfig, OptimizerKind, RunDirectory, StateHashes, Trainer, TrainingConfig,
    TrainingData,
};

type Images = TrainingData<ImageItem, (Tensor<4>, Tensor<1, Int>)>;

fn images() -> Images {
    let digits = SyntheticDigits::new(5);
    TrainingData {
        // The last batches of an epoch are small: some virtual ranks have no sample of them.
        train: Arc::new(digits.generate(Split::Train, 63).unwrap()),
        test: Arc::new(digits.generate(Split::Test, 37).unwrap()),
        batcher: Arc::new(ImageBatcher::unit()),
        name: "digits".to_string(),
        fingerprint: String::new(),
        origin: "generated".to_string(),
    }
}

fn config(virtual_ranks: Option<usize>) -> TrainingConfig {
    let mut config = TrainingConfig {
        epochs: 2,
        batch_size: 20,
        virtual_ranks,
        hash_every: Some(1),
        validation_samples: Some(21),
        optimizer: OptimizerConfig {
            kind: OptimizerKind::Sgd,
            learning_rate: 0.05,
            momentum: 0.9,
            ..OptimizerConfig::default()
        },
        ..TrainingConfig::default()
    };
    config.ddp.max_gradient_norm = Some(1.0);
    // Several buckets, in the order in which a backward pass has filled them.
    config.ddp.bucket_bytes = 4096;
    config.ddp.first_bucket_bytes = 1024;
    config
}

/// What a training leaves behind, to the bit.
#[derive(Debug, Clone, PartialEq)]
struct Trained {
    hashes: Vec<StateHashes>,
    parameters: Vec<u32>,
    validation_loss: u64,
    test_loss: u64,
}

fn train(config: &TrainingConfig, world_size: usize) -> Trained {
    let folder = tempfile::tempdir().unwrap();
    let data = images();
    let groups = ProcessGroup::over_threads(world_size, GroupOptions::default());
    let mut results = std::thread::scope(|scope| {
        let ranks = groups.into_iter().map(|group| {
            let run = (group.rank() == 0).then(|| RunDirectory::create(folder.path()).unwrap());
            // Clones would share their running statistics.
            let (model, data) = (model(), &data);
            let trainer = Trainer {
                run,
                ..Trainer::new(config.clone(), group)
            };
            scope.spawn(move || {
                let model = Classifier::<ResNet50, 4>::of_blocks(model);
                trainer.fit(model, data).unwrap()
            })
        });
        let ranks = ranks.collect::<Vec<_>>();
        let results = ranks.into_iter().map(|rank| rank.join().unwrap());
        results.collect::<Vec<_>>()
    });
    let (model, report) = results.swap_remove(0);
    let text = std::fs::read_to_string(folder.path().join("hashes.jsonl")).unwrap();
    let hashes = text.lines().map(|line| serde_json::from_str(line).unwrap());
    Trained {
        hashes: hashes.collect(),
        parameters: bits(&model),
        validation_loss: report.best_epoch.unwrap().validation_loss.to_bits(),
        test_loss: report.test_loss.unwrap().to_bits(),
    }
}

fn bits<M: Module>(model: &M) -> Vec<u32> {
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

/// A net with batch norms, always of the same numbers: they are drawn once, for other tests draw too.
fn model() -> ResNet50 {
    static WEIGHTS: OnceLock<Vec<u8>> = OnceLock::new();
    let config = ResNet50Config::new()
        .with_stem(Stem::Mnist)
        .with_blocks([1, 1, 1, 1])
        .with_width(4)
        .with_classes(10);
    let model = config.init(&Device::flex());
    let weights = WEIGHTS.get_or_init(|| {
        let record = model.clone().into_record().into_bytes();
        record.unwrap().to_vec()
    });
    let record = ModuleRecord::from_bytes(Bytes::from_bytes_vec(weights.clone()));
    config
        .init(&Device::flex())
        .try_load_record(record.unwrap())
        .unwrap()
}

#[test]
fn parameters_statistics_and_losses_have_the_same_bits_on_any_number_of_ranks() {
    for virtual_ranks in [4, 5] {
        let config = config(Some(virtual_ranks));
        let alone = train(&config, 1);
        assert_eq!(alone.hashes.len(), 6, "two epochs of 42 samples");
        for world_size in 2..=4 {
            let over_ranks = train(&config, world_size);
            for (ours, theirs) in alone.hashes.iter().zip(&over_ranks.hashes) {
                let (step, difference) = (ours.step, ours.first_difference(theirs));
                assert_eq!(
                    difference, None,
                    "step {step}, {virtual_ranks} on {world_size}"
                );
            }
            assert_eq!(alone, over_ranks, "{virtual_ranks} on {world_size} ranks");
        }
    }
}

#[test]
fn the_number_of_virtual_ranks_does_change_the_bits() {
    let [four, five] = [4, 5].map(|count| train(&config(Some(count)), 1));
    assert_ne!(four.parameters, five.parameters);
}

#[test]
fn what_does_not_go_together_is_refused() {
    let refused = |change: fn(&mut TrainingConfig), world_size| {
        let mut config = config(Some(4));
        change(&mut config);
        config.validate(world_size).unwrap_err().to_string()
    };
    assert!(refused(|_| {}, 5).contains("4 virtual ranks"));
    assert!(refused(|config| config.batch_size = 3, 2).contains("--batch-size 4"));
    assert!(refused(|config| config.accumulate = 2, 2).contains("--accumulate"));
    assert!(refused(|config| config.sync_batch_norm = true, 2).contains("--sync-batch-norm"));
    assert!(refused(|config| config.hash_every = Some(0), 2).contains("--hash-every"));
}
