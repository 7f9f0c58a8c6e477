//! Tests of `conflicts`.

use everburn_tests::AssertContains;

use super::*;
use crate::config::optimizer::OptimizerKind;

#[test]
fn each_pair_is_there_once_with_what_to_say() {
    for (at, (first, second, why)) in CONFLICTS.iter().enumerate() {
        assert!(!why.is_empty() && first != second);
        let same = |other: &&(Feature, Feature, &str)| {
            (other.0, other.1) == (*first, *second) || (other.0, other.1) == (*second, *first)
        };
        assert_eq!(
            CONFLICTS[at + 1..].iter().find(same),
            None,
            "{first:?} {second:?}"
        );
    }
}

#[test]
fn two_that_exclude_each_other_are_named_and_each_alone_is_fine() {
    let shard = |stage| {
        let mut config = TrainingConfig::default();
        config.ddp.shard = Some(stage);
        config
    };
    let run = RunFeatures::default();
    let gradients = shard(ShardStage::Gradients);
    gradients.check_conflicts(run).unwrap();
    let late = TrainingConfig {
        overlap: false,
        ..gradients
    };
    let error = late.check_conflicts(run).unwrap_err().to_string();
    let pair = "`training.ddp.shard = gradients` and `training.overlap = false`";
    assert!(error.contains(pair), "{error}");
    let late = TrainingConfig {
        overlap: false,
        ..shard(ShardStage::Optimizer)
    };
    late.check_conflicts(run).unwrap();
    let elastic = RunFeatures {
        elastic: true,
        ..run
    };
    let error = late.check_conflicts(elastic).unwrap_err().to_string();
    error.assert_contains(["`ranks.elastic` and `training.ddp.shard = optimizer`"]);
}

#[test]
fn shares_by_speed_are_for_ranks_whose_times_are_their_own() {
    type Change = fn(&mut TrainingConfig);
    let refused = |balance: &str, change: Change, run: RunFeatures| {
        let mut config = TrainingConfig {
            balance: balance.parse().unwrap(),
            ..TrainingConfig::default()
        };
        change(&mut config);
        let error = config.check_conflicts(run).err();
        error.map(|error| error.to_string())
    };
    let run = RunFeatures::default();
    let elastic = RunFeatures {
        elastic: true,
        ..run
    };
    let mesh = RunFeatures {
        parallel_model: true,
        ..run
    };
    let nothing: Change = |_| {};
    let synced: Change = |config| config.sync_batch_norm = true;
    let local: Change = |config| config.sync = "4".parse().unwrap();
    for (balance, change, run) in [
        ("equal", local, run),
        ("equal", nothing, mesh),
        ("3,1", synced, run),
        ("auto", nothing, elastic),
    ] {
        assert_eq!(refused(balance, change, run), None, "{balance}");
    }
    for (balance, change, run, other) in [
        ("auto", synced, run, "`training.sync_batch_norm`"),
        ("auto", local, run, "`training.sync = 4`"),
        ("3,1", local, run, "`training.sync = 4`"),
        ("3,1", nothing, elastic, "`ranks.elastic`"),
        ("3,1", nothing, mesh, "`parallel.mesh`"),
    ] {
        let error = refused(balance, change, run).unwrap();
        let named = format!("`training.balance = {balance}`");
        assert!(error.contains(&named) && error.contains(other), "{error}");
    }
}

#[test]
fn an_optimizer_of_whole_parameters_is_for_ranks_that_have_them() {
    let run = RunFeatures::default();
    let tensor = RunFeatures {
        tensor: true,
        ..run
    };
    for kind in OptimizerKind::ALL {
        let mut config = TrainingConfig::default();
        config.optimizer.kind = kind;
        config.check_conflicts(run).unwrap();
        let on_mesh = config.check_conflicts(tensor);
        config.ddp.shard = Some(ShardStage::Optimizer);
        for checked in [on_mesh, config.check_conflicts(run)] {
            assert_eq!(checked.is_ok(), kind.is_elementwise(), "{kind}");
            if let Err(error) = checked {
                let named = format!("`training.optimizer.kind = {kind}` and ");
                let offered = "`training.optimizer.kind = adam-w`";
                error.to_string().assert_contains([&*named, offered]);
            }
        }
    }
    assert!(OptimizerKind::AdamW.is_elementwise());
}

#[test]
fn patience_and_fragments_are_for_different_local_steps() {
    let mut config = TrainingConfig {
        outer_patience: Some(2.0),
        ..TrainingConfig::default()
    };
    config.outer.fragments = Some(5);
    // Without local steps neither is used.
    config.check_conflicts(RunFeatures::default()).unwrap();
    config.sync = "50".parse().unwrap();
    let error = config.check_conflicts(RunFeatures::default()).unwrap_err();
    let pair = "`training.outer_patience` and `training.outer.fragments` do not go together";
    error.to_string().assert_contains([pair]);
}

#[test]
fn there_is_a_weight_for_each_rank() {
    let config = TrainingConfig {
        balance: "3,1".parse().unwrap(),
        ..TrainingConfig::default()
    };
    config.validate(2).unwrap();
    let error = config.validate(3).unwrap_err().to_string();
    error.assert_contains(["`training.balance = 3,1` is for 2 ranks, and there are 3"]);
}
