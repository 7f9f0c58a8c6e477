//! A training whose gradients stay on their devices learns what one through host memory does. Devices are
//! made up: the processor's tensors, and a stand-in for NCCL between them.

use std::sync::Arc;

use burn::module::Module;
use burn::prelude::*;
use everburn_distributed::{Connector, GradientBackend, NcclWait, ShardStage};
use everburn_models::mnist_bn::{MnistBn, MnistBnConfig};
use everburn_nccl_fake::FakeCluster;
use everburn_train::{Classifier, Trainer, TrainingConfig};

use crate::harness::config::changed;
use crate::harness::data::digits;
use crate::harness::parameters::{filled, parameters};
use crate::harness::ranks::{connector, on_ranks};
use crate::replicas::in_common;

fn weights<M: Module>(model: M) -> M {
    let mut count: usize = 0;
    filled(model, |_| {
        count += 1;
        ((count * 7919 % 1009) as f32 / 504.5 - 1.0) / 8.0
    })
}

/// The connectors of ranks with a GPU each.
fn connectors(world_size: usize, waits: NcclWait) -> Vec<Option<Arc<Connector>>> {
    let cluster = Arc::new(FakeCluster::new(world_size));
    let connector = |rank| connector(&cluster, rank, GradientBackend::Nccl, waits);
    (0..world_size).map(connector).map(Some).collect()
}

/// The parameters after a training on ranks that are threads.
fn train(config: &TrainingConfig, connectors: &[Option<Arc<Connector>>]) -> Vec<f32> {
    // Ranks that are threads share one generator of random numbers, and draw from it in any order.
    let config_of_model = MnistBnConfig::new().with_dropout(0.0);
    let model = weights(config_of_model.init(&Device::flex()));
    let data = digits(3, 150, 40);
    in_common(on_ranks(connectors.len(), config, None, |trainer| {
        let connector = connectors[trainer.group.rank()].clone();
        let by = connector.as_ref().map(|_| "nccl (2.21.5)".to_string());
        let trainer = Trainer {
            connector,
            ..trainer
        };
        // Not a clone, which would share the running statistics.
        let model = Classifier::new(model.valid(), MnistBn::forward);
        let (model, report) = trainer.fit(model, &data).unwrap();
        assert_eq!(report.gradients_by, by);
        parameters(&model).concat()
    }))
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
    let host = train(config, &[None, None]);
    for waits in [NcclWait::Device, NcclWait::Host] {
        let device = train(config, &connectors(2, waits));
        assert!(device == host, "{waits:?}");
    }
}

#[test]
fn a_training_by_nccl_has_the_bits_of_one_through_host_memory() {
    let changes: [fn(&mut TrainingConfig); 4] = [
        |_| {},
        |config| config.accumulate = 3,
        |config| config.overlap = false,
        |config| config.sync_batch_norm = true,
    ];
    for change in changes {
        equal(&changed(config(), change));
    }
}

#[test]
fn gradients_and_parameters_are_sharded_by_nccl() {
    for stage in [ShardStage::Optimizer, ShardStage::Gradients] {
        let sharded = |sync_batch_norm, accumulate| {
            changed(config(), |config| {
                config.sync_batch_norm = sync_batch_norm;
                config.accumulate = accumulate;
                config.ddp.shard = Some(stage);
            })
        };
        equal(&sharded(false, 1));
        equal(&sharded(true, 2));
    }
}

#[test]
fn one_rank_by_nccl_learns_what_one_alone_does() {
    let alone = train(&config(), &[None]);
    assert!(train(&config(), &connectors(1, NcclWait::Device)) == alone);
}

#[test]
fn clipping_on_the_device_is_clipping() {
    let mut config = config();
    config.ddp.max_gradient_norm = Some(0.3);
    config.log_every = 1;
    let host = train(&config, &[None, None]);
    let device = train(&config, &connectors(2, NcclWait::Device));
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
