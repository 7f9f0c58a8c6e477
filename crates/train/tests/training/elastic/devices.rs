//! Ranks whose gradients stay on their devices: a stand-in for GPUs, and for NCCL between them.

use std::sync::Arc;

use everburn_distributed::{GradientBackend, NcclWait};
use everburn_nccl_fake::FakeCluster;
use everburn_train::TrainingConfig;

use super::{Job, config, failed, folder, model, sound};
use crate::alone;
use crate::harness::ranks::connector;

/// Without logical shards, which are added up in host memory.
fn plain() -> TrainingConfig {
    TrainingConfig {
        virtual_ranks: None,
        hash_every: None,
        ..config()
    }
}

#[test]
fn ranks_that_exchange_by_nccl_connect_anew_without_one_that_fails() {
    let alone = {
        let trainer = alone(plain());
        let (_, report) = trainer.fit(model(), &sound()).unwrap();
        report.test_loss.unwrap()
    };
    for (failing, fails_at) in [(2, 1), (1, 9), (0, 20)] {
        let cluster = Arc::new(FakeCluster::new(3));
        let connect = |slot| connector(&cluster, slot, GradientBackend::Auto, NcclWait::Host);
        let folder = folder();
        let job = Job {
            connect: Some(&connect),
            ..Job::new(&folder, (2, 3), plain())
        };
        let results = job.three_ranks(failing, fails_at);
        for (slot, result) in results.iter().enumerate() {
            if slot == failing {
                assert!(failed(result).contains("the disk is broken"));
                continue;
            }
            let report = result.as_ref().unwrap();
            assert_eq!(report.world_size, 2);
            assert_eq!(report.gradients_by.as_deref(), Some("nccl (2.21.5)"));
            let loss = report.test_loss.unwrap();
            let apart = (loss - alone).abs() / alone;
            assert!(apart < 1e-3, "{loss} without rank {failing}, {alone} alone");
        }
    }
}
