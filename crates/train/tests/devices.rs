//! A training whose gradients stay on their devices learns what one through host memory does. Devices are
//! made up: the processor's tensors, and a stand-in for NCCL between them.

use std::sync::Arc;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::prelude::*;
use burn::tensor::TensorData;
use everburn_collectives::group::{GroupOptions, ProcessGroup};
use everburn_collectives::store::{HashStore, SharedStore};
use everburn_datasets::{ImageBatcher, ImageItem, Split, SyntheticDigits};
use everburn_distributed::{ConnectExchange, Connector, GradientBackend, Waits};
use everburn_distributed_fake::{abilities, on_cluster};
use everburn_models::mnist_bn::{MnistBn, MnistBnConfig};
use everburn_nccl_fake::FakeCluster;
use everburn_train::{Classifier, Trainer, TrainingConfig, TrainingData};

type Images = TrainingData<ImageItem, (Tensor<4>, Tensor<1, Int>)>;

fn images() -> Images {
    let digits = SyntheticDigits::new(3);
    TrainingData {
        train: Arc::new(digits.generate(Split::Train, 150).unwrap()),
        test: Arc::new(digits.generate(Split::Test, 40).unwrap()),
        batcher: Arc::new(ImageBatcher::unit()),
        name: "digits".to_string(),
        fingerprint: String::new(),
        origin: "generated".to_string(),
    }
}

/// Weights that are the same each time: tests beside this one draw from the same generator.
fn weights<M: Module>(model: M) -> M {
    struct Made(usize);
    impl ModuleMapper for Made {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            // What is the same for all channels, of a norm, stays; a bias is drawn.
            if D == 1 && are_alike(&param.val()) {
                return param;
            }
            let (id, old, mapper) = param.consume();
            let shape = old.dims();
            let numbers = (0..old.shape().num_elements()).map(|_| {
                self.0 += 1;
                ((self.0 * 7919 % 1009) as f32 / 504.5 - 1.0) / 8.0
            });
            let data = TensorData::new(numbers.collect::<Vec<f32>>(), shape);
            Param::from_mapped_value(id, Tensor::from_data(data, &old.device()), mapper)
        }
    }
    fn are_alike<const D: usize>(tensor: &Tensor<D>) -> bool {
        let values = tensor.to_data();
        let mut values = values.iter::<f32>();
        let first = values.next();
        values.all(|value| Some(value) == first)
    }
    model.map(&mut Made(0))
}

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

/// The connectors of ranks with a GPU each.
fn connectors(world_size: usize, waits: Waits) -> Vec<Arc<dyn ConnectExchange>> {
    let cluster = Arc::new(FakeCluster::new(world_size));
    let store: SharedStore = Arc::new(HashStore::new());
    let connector = |rank: usize| -> Arc<dyn ConnectExchange> {
        let connector = Connector::new(GradientBackend::Nccl, abilities(rank), store.clone());
        Arc::new(on_cluster(connector, &cluster, rank, waits))
    };
    (0..world_size).map(connector).collect()
}

/// The parameters after a training on ranks that are threads.
fn train(config: &TrainingConfig, exchanges: Vec<Option<Arc<dyn ConnectExchange>>>) -> Vec<f32> {
    let groups = ProcessGroup::over_threads(exchanges.len(), GroupOptions::default());
    // Ranks that are threads share one generator of random numbers, and draw from it in any order.
    let config_of_model = MnistBnConfig::new().with_dropout(0.0);
    let model = weights(config_of_model.init(&Device::flex()));
    let ranks = groups.into_iter().zip(exchanges).map(|(group, exchange)| {
        let (config, model) = (config.clone(), model.clone());
        std::thread::spawn(move || {
            let by = exchange.as_ref().map(|_| "nccl (2.21.5)".to_string());
            let trainer = Trainer {
                exchange,
                ..Trainer::new(config, group)
            };
            let model = Classifier::new(model, MnistBn::forward);
            let (model, report) = trainer.fit(model, &images()).unwrap();
            assert_eq!(report.gradients_by, by);
            parameters(&model)
        })
    });
    let ranks: Vec<_> = ranks.collect();
    let mut replicas: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    let first = replicas.remove(0);
    assert!(
        replicas.iter().all(|replica| *replica == first),
        "replicas are equal"
    );
    first
}

fn config() -> TrainingConfig {
    TrainingConfig {
        epochs: 1,
        batch_size: 32,
        validation_samples: Some(22),
        compare_every: 2,
        ..TrainingConfig::default()
    }
}

/// The same bits with two ranks, however gradients travel.
fn equal(config: &TrainingConfig) {
    let host = train(config, vec![None, None]);
    for waits in [Waits::Device, Waits::Host] {
        let exchanges = connectors(2, waits).into_iter().map(Some).collect();
        assert!(train(config, exchanges) == host, "{waits:?}");
    }
}

#[test]
fn a_training_by_nccl_has_the_bits_of_one_through_host_memory() {
    equal(&config());
}

#[test]
fn micro_batches_are_added_up_on_the_device() {
    equal(&TrainingConfig {
        accumulate: 3,
        ..config()
    });
}

#[test]
fn gradients_may_be_exchanged_after_the_backward_pass() {
    equal(&TrainingConfig {
        overlap: false,
        ..config()
    });
}

#[test]
fn batch_norms_see_the_samples_of_all_ranks() {
    equal(&TrainingConfig {
        sync_batch_norm: true,
        ..config()
    });
}

#[test]
fn one_rank_by_nccl_learns_what_one_alone_does() {
    let alone = train(&config(), vec![None]);
    let exchanges = connectors(1, Waits::Device).into_iter().map(Some).collect();
    assert!(train(&config(), exchanges) == alone);
}

#[test]
fn clipping_on_the_device_is_clipping() {
    let mut config = config();
    config.ddp.max_gradient_norm = Some(0.3);
    config.log_every = 1;
    let host = train(&config, vec![None, None]);
    let exchanges = connectors(2, Waits::Device).into_iter().map(Some).collect();
    let device = train(&config, exchanges);
    let apart = host.iter().zip(&device).map(|(a, b)| (a - b).abs());
    // Adam makes steps of its learning rate whatever the gradients' size, so what is near zero is not compared
    // closely.
    let far = apart.filter(|apart| *apart > 1e-3).count();
    assert!(
        far * 100 <= host.len(),
        "{far} of {} numbers differ",
        host.len()
    );
}
