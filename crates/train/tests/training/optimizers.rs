//! Optimizers by name, and parameters that learn otherwise than the rest.

use burn::prelude::*;
use everburn_distributed::ShardStage;
use everburn_models::mnist::{Mnist, MnistConfig};
use everburn_train::{
    Classification, OptimizerConfig, OptimizerKind, ParameterGroup, TrainingConfig,
};

use crate::harness::data::{Images, digits};
use crate::harness::parameters::{drawn, parameters};
use crate::sharding::training::{STAGES, assert_close, train, try_train, with};

fn net() -> Mnist {
    drawn(MnistConfig::new().init(&Device::flex()))
}

/// Six steps an epoch.
fn images() -> Images {
    digits(3, 116, 20)
}

fn config(epochs: usize, optimizer: OptimizerConfig) -> TrainingConfig {
    TrainingConfig {
        epochs,
        batch_size: 16,
        validation_samples: Some(20),
        log_every: 1,
        optimizer,
        ..TrainingConfig::default()
    }
}

fn group(pattern: &str) -> ParameterGroup {
    ParameterGroup {
        matches: pattern.into(),
        ..ParameterGroup::default()
    }
}

/// The last layer learns faster, biases are not pulled to zero.
fn groups() -> Vec<ParameterGroup> {
    let faster = ParameterGroup {
        learning_rate_factor: Some(4.0),
        ..group("fc2.*")
    };
    let without = ParameterGroup {
        weight_decay: Some(0.0),
        ..group("*.bias")
    };
    vec![faster, without]
}

fn of(kind: OptimizerKind) -> OptimizerConfig {
    OptimizerConfig {
        kind,
        learning_rate: 1e-3,
        weight_decay: 0.1,
        groups: groups(),
        ..OptimizerConfig::default()
    }
}

#[test]
fn each_optimizer_trains_on_ranks_and_goes_on_from_a_checkpoint_to_the_bit() {
    let (model, data) = (net(), images());
    for kind in OptimizerKind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let whole = train::<_, Classification<4>, _>(&model, &data, &config(2, of(kind)), 2);
        let part = |epochs, resume| {
            let config = config(epochs, of(kind));
            let path = folder.path();
            try_train::<_, Classification<4>, _>(&model, &data, &config, 2, path, resume).unwrap()
        };
        part(1, false);
        let resumed = part(2, true);
        assert_eq!(resumed.parameters, whole.parameters, "{kind}");
        assert_eq!(resumed.losses, whole.losses, "{kind}");
        assert_ne!(resumed.parameters, parameters(&model).concat(), "{kind}");
    }
}

#[test]
fn groups_count_and_learn_alike_whether_each_rank_has_slices_or_all() {
    let (model, data) = (net(), images());
    let grouped = config(2, of(OptimizerKind::AdamW));
    let plain = train::<_, Classification<4>, _>(&model, &data, &grouped, 2);
    for count in [0, 1] {
        let mut fewer = grouped.clone();
        fewer.optimizer.groups.remove(count);
        let other = train::<_, Classification<4>, _>(&model, &data, &fewer, 2);
        assert_ne!(other.parameters, plain.parameters, "without group {count}");
    }
    for stage in STAGES {
        let cut = with(&grouped, Some(stage));
        let cut = train::<_, Classification<4>, _>(&model, &data, &cut, 2);
        assert_close(&cut, &plain, &stage.to_string());
    }
}

#[test]
fn what_is_frozen_keeps_its_bits_and_the_rest_learns_on_ranks_and_after_a_checkpoint() {
    let (model, data) = (net(), images());
    let frozen = ParameterGroup {
        frozen: Some(true),
        ..group("conv*")
    };
    let optimizer = OptimizerConfig {
        groups: vec![frozen],
        ..of(OptimizerKind::AdamW)
    };
    let first = parameters(&model);
    let paths = everburn_nn::parameter_paths(&model);
    for shard in [
        None,
        Some(ShardStage::Optimizer),
        Some(ShardStage::Parameters),
    ] {
        let folder = tempfile::tempdir().unwrap();
        for (epochs, resume) in [(1, false), (2, true)] {
            let config = with(&config(epochs, optimizer.clone()), shard);
            let path = folder.path();
            let trained =
                try_train::<_, Classification<4>, _>(&model, &data, &config, 3, path, resume);
            let mut rest = trained.unwrap().parameters.into_iter();
            for (path, before) in paths.iter().zip(&first) {
                let after = rest.by_ref().take(before.len()).collect::<Vec<_>>();
                let stays = path.path.starts_with("conv");
                assert_eq!(after == *before, stays, "{shard:?} {epochs} {}", path.path);
            }
        }
    }
}

#[test]
fn a_group_of_no_parameter_is_refused_before_the_first_step() {
    let (model, data) = (net(), images());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mut none = config(1, of(OptimizerKind::Adam));
    none.optimizer.groups.push(ParameterGroup {
        frozen: Some(true),
        ..group("fc3.*")
    });
    let trained = try_train::<_, Classification<4>, _>(&model, &data, &none, 2, path, false);
    let error = trained.err().unwrap().to_string();
    let lines = std::fs::read_to_string(path.join("metrics.jsonl"));
    assert!(lines.unwrap_or_default().is_empty(), "a step was made");
    assert!(error.contains("`match = \"fc3.*\"`"), "{error}");
    assert!(error.contains("matches no parameter"), "{error}");
}

#[test]
fn a_checkpoint_of_other_groups_is_refused() {
    let (model, data) = (net(), images());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mut config = config(1, of(OptimizerKind::Adam));
    try_train::<_, Classification<4>, _>(&model, &data, &config, 1, path, false).unwrap();
    config.epochs = 2;
    config.optimizer.groups.pop();
    let resumed = try_train::<_, Classification<4>, _>(&model, &data, &config, 1, path, true);
    let error = resumed.err().unwrap().to_string();
    assert!(error.contains("parameter groups `fc2.*`"), "{error}");
}
