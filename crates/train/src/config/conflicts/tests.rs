//! Tests of `conflicts`.

use super::*;

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
    assert!(
        error.contains("`ranks.elastic` and `training.ddp.shard = optimizer`"),
        "{error}"
    );
}
