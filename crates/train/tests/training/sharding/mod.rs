//! Ranks that keep a part each of optimizer state, gradients and parameters train as ranks that keep all.

mod checkpoints;
mod first_values;
pub(crate) mod training;

use burn::prelude::*;
use everburn_distributed::{HeldBytes, ShardStage};
use everburn_models::gpt::{GptConfig, Positions};
use everburn_models::mnist::{Mnist, MnistConfig};
use everburn_models::mnist_bn::{MnistBn, MnistBnConfig};
use everburn_train::{Classification, NextToken, OptimizerKind, Precision};

use self::training::{STAGES, adam_w, assert_close, assert_within, train, with};
use crate::harness::config::changed;
use crate::harness::data::{Images, digits, texts};
use crate::harness::parameters::{drawn, parameters};

const CONTEXT: usize = 12;

fn images(samples: usize) -> Images {
    digits(3, samples, 50)
}

fn net() -> Mnist {
    drawn(MnistConfig::new().init(&Device::flex()))
}

/// A W-th of `whole`, within a tenth.
fn is_share(part: u64, whole: u64, world_size: usize) -> bool {
    let expected = whole as f64 / world_size as f64;
    (part as f64 - expected).abs() <= 0.1 * expected
}

#[test]
fn each_stage_on_two_and_four_ranks_has_the_losses_and_a_share_of_the_memory_of_plain_ddp() {
    let (model, data, config) = (net(), images(900), adam_w(50));
    let all = with(&config, Some(ShardStage::Parameters));
    let whole = train::<_, Classification<4>, _>(&model, &data, &all, 1).held()[0];
    let bytes = 4 * parameters(&model).concat().len() as u64;
    assert_eq!((whole.parameters, whole.gradients), (bytes, bytes));
    assert_eq!(whole.optimizer, 2 * bytes, "two moments");
    for world_size in [2, 4] {
        let plain = train::<_, Classification<4>, _>(&model, &data, &config, world_size);
        assert_eq!(plain.losses.len(), 50);
        assert!(plain.losses[49] < plain.losses[0], "{:?}", plain.losses);
        assert_eq!(plain.report.sharding, None);
        for stage in STAGES {
            let what = format!("{stage} on {world_size} ranks");
            let config = with(&config, Some(stage));
            let cut = train::<_, Classification<4>, _>(&model, &data, &config, world_size);
            assert_close(&cut, &plain, &what);
            assert_eq!(cut.held().len(), world_size, "{what}");
            for held in cut.held() {
                let share = |part, whole| is_share(part, whole, world_size);
                assert!(share(held.optimizer, whole.optimizer), "{what}: {held:?}");
                let expected = (stage.shards_gradients(), stage.shards_parameters());
                let is_cut = |part, whole| match part == whole {
                    true => false,
                    false => {
                        assert!(share(part, whole), "{what}: {held:?}");
                        true
                    }
                };
                let gradients = is_cut(held.gradients, whole.gradients);
                let parameters = is_cut(held.parameters, whole.parameters);
                assert_eq!((gradients, parameters), expected, "{what}: {held:?}");
            }
        }
    }
}

#[test]
fn clipping_uneven_shares_and_micro_batches_make_no_difference() {
    let (model, data) = (net(), images(205));
    // 13 samples on 3 ranks, and a tail; a rank has no micro-batch where others have one.
    let config = changed(adam_w(18), |config| {
        config.batch_size = 13;
        config.ddp.max_gradient_norm = Some(0.5);
        config.ddp.bucket_bytes = 40_000;
        config.ddp.first_bucket_bytes = 4_000;
    });
    let plain = train::<_, Classification<4>, _>(&model, &data, &config, 3);
    let mut norms = plain.norms.iter();
    assert!(norms.all(|norm| norm.is_some_and(|norm| norm > 0.0)));
    for stage in STAGES {
        for accumulate in [1, 3] {
            let config = changed(with(&config, Some(stage)), |it| it.accumulate = accumulate);
            let cut = train::<_, Classification<4>, _>(&model, &data, &config, 3);
            let what = format!("{stage}, {accumulate} micro-batches");
            assert_close(&cut, &plain, &what);
        }
    }
}

#[test]
fn every_optimizer_can_be_cut() {
    let (model, data) = (net(), images(200));
    let elementwise = |kind: &OptimizerKind| kind.is_elementwise();
    for kind in OptimizerKind::ALL.into_iter().filter(elementwise) {
        let momentum = (kind == OptimizerKind::Sgd).then_some(0.9);
        // The sign of a gradient that is next to nothing is anything.
        let small = [OptimizerKind::Lion, OptimizerKind::Adan].contains(&kind);
        let config = changed(adam_w(12), |config| {
            config.optimizer.kind = kind;
            config.optimizer.momentum = momentum;
            config.optimizer.learning_rate = if small { 1e-6 } else { 1e-3 };
        });
        let plain = train::<_, Classification<4>, _>(&model, &data, &config, 2);
        let config = with(&config, Some(ShardStage::Parameters));
        let cut = train::<_, Classification<4>, _>(&model, &data, &config, 2);
        assert_close(&cut, &plain, &format!("{kind:?}"));
    }
}

#[test]
fn an_optimizer_that_is_elsewhere_does_the_same() {
    let (model, data, config) = (net(), images(200), adam_w(12));
    for (stage, world_size) in STAGES.into_iter().zip([1, 2, 2]) {
        let plain = train::<_, Classification<4>, _>(&model, &data, &config, world_size);
        let config = changed(with(&config, Some(stage)), |it| it.offload_optimizer = true);
        let cut = train::<_, Classification<4>, _>(&model, &data, &config, world_size);
        assert_close(&cut, &plain, &format!("{stage}"));
        assert!(cut.report.sharding.unwrap().offloaded);
    }
}

#[test]
fn running_statistics_are_averaged_as_ever() {
    let model: MnistBn = drawn(MnistBnConfig::new().with_dropout(0.0).init(&Device::flex()));
    let (data, config) = (images(200), adam_w(15));
    for sync_batch_norm in [false, true] {
        let config = changed(config.clone(), |it| it.sync_batch_norm = sync_batch_norm);
        let plain = train::<_, Classification<4>, _>(&model, &data, &config, 2);
        for stage in STAGES {
            let config = with(&config, Some(stage));
            let cut = train::<_, Classification<4>, _>(&model, &data, &config, 2);
            assert_close(&cut, &plain, &format!("{stage}"));
        }
    }
}

#[test]
fn a_language_model_with_tied_weights_is_cut_too() {
    let (data, vocabulary) = texts(CONTEXT);
    let model = GptConfig::new(vocabulary)
        .with_context(CONTEXT)
        .with_width(24)
        .with_layers(2)
        .with_heads(2)
        .with_dropout(0.0)
        .with_positions(Positions::Learned);
    let model = drawn(model.init(&Device::flex()));
    let config = adam_w(10);
    let plain = train::<_, NextToken, _>(&model, &data, &config, 2);
    for stage in STAGES {
        let config = with(&config, Some(stage));
        let cut = train::<_, NextToken, _>(&model, &data, &config, 2);
        assert_close(&cut, &plain, &format!("{stage}"));
    }
}

#[test]
fn a_model_that_is_recomputed_in_blocks_never_has_all_its_parameters_during_a_step() {
    let (data, vocabulary) = texts(CONTEXT);
    let model = GptConfig::new(vocabulary)
        .with_context(CONTEXT)
        .with_width(32)
        .with_layers(8)
        .with_heads(2);
    let model = drawn(model.init(&Device::flex()));
    let config = changed(adam_w(10), |config| {
        config.activation_checkpointing = "blocks".parse().unwrap();
        config.ddp.bucket_bytes = 20_000;
        config.ddp.first_bucket_bytes = 20_000;
    });
    let plain = train::<_, NextToken, _>(&model, &data, &config, 2);
    let config = with(&config, Some(ShardStage::Parameters));
    let bytes = 4 * plain.parameters.len() as u64;
    for accumulate in [1, 2] {
        let config = changed(config.clone(), |config| config.accumulate = accumulate);
        let cut = train::<_, NextToken, _>(&model, &data, &config, 2);
        assert_close(&cut, &plain, &format!("{accumulate} micro-batches"));
        for held in cut.held() {
            assert!(
                held.gathered > 0 && held.gathered < bytes / 2,
                "{held:?} of {bytes}"
            );
            // How many buckets wait at once is a matter of the exchange's speed; padding is less than a bucket.
            let most = bytes + config.ddp.bucket_bytes as u64;
            assert!(held.gradient_buckets < most, "{held:?} of {bytes}");
        }
    }
    let without = changed(config, |config| {
        config.activation_checkpointing = "none".parse().unwrap();
    });
    let cut = train::<_, NextToken, _>(&model, &data, &without, 2);
    // They are in the graph until the backward pass is over.
    assert_eq!(cut.held()[0].gathered, bytes);
}

#[test]
fn a_step_that_overflows_f16_on_one_rank_updates_no_slices_of_any() {
    let (model, data) = (net(), images(200));
    let config = changed(adam_w(12), |config| {
        config.precision = Precision::F16;
        config.chaos = "overflow=1@step:4".parse().unwrap();
        config.ddp.max_gradient_norm = Some(0.5);
    });
    let plain = train::<_, Classification<4>, _>(&model, &data, &config, 2);
    assert_eq!(plain.report.skipped_steps, Some(1));
    assert_eq!(plain.norms[3], None);
    for stage in STAGES {
        for accumulate in [1, 2] {
            let what = format!("{stage}, {accumulate} micro-batches");
            let config = changed(with(&config, Some(stage)), |it| it.accumulate = accumulate);
            let cut = train::<_, Classification<4>, _>(&model, &data, &config, 2);
            assert_eq!(cut.report.skipped_steps, Some(1), "{what}");
            // Where a weight is rounded the other way, more differs than by a sum in another order.
            assert_within(1e-2, &cut, &plain, &what);
        }
    }
}

#[test]
fn nothing_is_reported_that_was_not_held() {
    let (model, data) = (net(), images(100));
    let config = with(&adam_w(4), Some(ShardStage::Optimizer));
    let held = train::<_, Classification<4>, _>(&model, &data, &config, 2).held()[1];
    let unknown = HeldBytes {
        parameters: held.parameters,
        gradients: held.gradients,
        optimizer: held.optimizer,
        ..HeldBytes::default()
    };
    assert_eq!(held, unknown);
}
