//! A model over the ranks of a mesh, or over several devices, trains as it does on one device.

mod compare;
#[path = "../harness/mod.rs"]
mod harness;
mod training;

use std::ops::Range;

use burn::prelude::*;
use everburn_models::gpt::{GptConfig, Positions};
use everburn_models::mnist::MnistConfig;
use everburn_models::resnet50::{ResNet50Config, Stem};
use everburn_models::two_part_resnet::TwoPartResNetConfig;
use everburn_schedules::ScheduleKind;
use everburn_train::{Classification, NextToken, OptimizerKind};

use self::compare::{assert_close, compare};
use self::harness::config::changed;
use self::harness::data::{Images, digits, texts};
use self::harness::parameters::drawn;
use self::training::{Cut, config, cut, mesh, train, train_in};

const CONTEXT: usize = 12;

fn images(samples: usize) -> Images {
    digits(3, samples, 50)
}

fn decoder(vocabulary: usize) -> GptConfig {
    GptConfig::new(vocabulary)
        .with_context(CONTEXT)
        .with_width(16)
        .with_layers(3)
        .with_heads(2)
}

fn each_schedule(ranks: Range<usize>, micro_batches: &[usize]) -> Vec<Cut> {
    let kinds = [
        ScheduleKind::GPipe,
        ScheduleKind::OneForwardOneBackward,
        ScheduleKind::ZeroBubbleH1,
    ];
    let mut cuts = Vec::new();
    for ranks in ranks.step_by(2) {
        for kind in kinds {
            for count in micro_batches {
                cuts.push(cut(ranks, kind, *count));
            }
        }
    }
    cuts
}

/// Two stages a rank, on this many ranks.
fn interleaved(ranks: usize, micro_batches: &[usize]) -> Vec<Cut> {
    let of = |count: &usize| Cut {
        chunks: 2,
        ..cut(ranks, ScheduleKind::Interleaved1F1B, *count)
    };
    micro_batches.iter().map(of).collect()
}

/// One rank with a part of the model on each of this many devices.
fn split(devices: usize) -> Cut {
    Cut {
        devices,
        ..cut(1, ScheduleKind::OneForwardOneBackward, 1)
    }
}

/// Two ranks that share each layer, and two by two along each pair of axes.
fn meshes_of_four(kind: ScheduleKind, micro_batches: usize) -> Vec<Cut> {
    let meshes = [mesh(1, 1, 2), mesh(2, 2, 1), mesh(2, 1, 2), mesh(1, 2, 2)];
    let cuts = meshes.map(|mesh| Cut {
        mesh,
        ..cut(1, kind, micro_batches)
    });
    cuts.into()
}

#[test]
fn the_two_convolution_net_in_two_and_four_stages_by_every_schedule() {
    let model = drawn(MnistConfig::new().init(&Device::flex()));
    let data = images(340);
    let config = config(20, OptimizerKind::Sgd);
    let mut cuts = each_schedule(2..5, &[1, 2, 8]);
    cuts.extend(interleaved(2, &[1, 2, 4, 8]));
    cuts.extend([2, 3].map(split));
    cuts.extend(meshes_of_four(ScheduleKind::OneForwardOneBackward, 4));
    compare::<_, Classification<4>, _>(&model, &data, &config, &cuts);
}

#[test]
fn a_decoder_whose_head_is_its_embedding_in_stages_with_clipping() {
    let (data, vocabulary) = texts(CONTEXT);
    let gpt = decoder(vocabulary);
    let model = drawn(gpt.init(&Device::flex()));
    let mut config = config(20, OptimizerKind::Sgd);
    config.ddp.max_gradient_norm = Some(0.5);
    let mut cuts = each_schedule(2..5, &[1, 2, 8]);
    cuts.extend(interleaved(2, &[1, 2, 8]));
    cuts.extend([2, 3].map(split));
    cuts.extend(meshes_of_four(ScheduleKind::ZeroBubbleH1, 2));
    cuts.push(Cut {
        mesh: mesh(2, 2, 2),
        ..cut(1, ScheduleKind::OneForwardOneBackward, 2)
    });
    compare::<_, NextToken, _>(&model, &data, &config, &cuts);
}

#[test]
fn a_decoder_with_rotary_positions_in_eight_stages_on_four_ranks() {
    let (data, vocabulary) = texts(CONTEXT);
    let gpt = decoder(vocabulary)
        .with_layers(6)
        .with_positions(Positions::Rotary);
    let model = drawn(gpt.init(&Device::flex()));
    let config = config(20, OptimizerKind::Sgd);
    let mut cuts = interleaved(4, &[1, 2, 8]);
    cuts.extend([2, 3].map(split));
    cuts.extend(meshes_of_four(ScheduleKind::OneForwardOneBackward, 2));
    compare::<_, NextToken, _>(&model, &data, &config, &cuts);
}

#[test]
fn stages_that_compute_activations_again_give_the_same_bits() {
    let (data, vocabulary) = texts(CONTEXT);
    let gpt = decoder(vocabulary);
    let model = drawn(gpt.init(&Device::flex()));
    for kind in [
        ScheduleKind::OneForwardOneBackward,
        ScheduleKind::ZeroBubbleH1,
    ] {
        let [kept, blocks, burn] = ["none", "blocks", "burn"].map(|how| {
            let config = changed(config(6, OptimizerKind::Sgd), |config| {
                config.activation_checkpointing = how.parse().unwrap();
            });
            train::<_, NextToken, _>(&model, &data, &config, Some(&cut(2, kind, 4)))
        });
        assert_eq!(kept, blocks, "{kind:?}");
        assert_eq!(kept, burn, "{kind:?}");
    }
}

#[test]
fn layers_that_are_cut_sum_by_nccl_with_the_bits_of_host_memory() {
    let (data, vocabulary) = texts(CONTEXT);
    let gpt = decoder(vocabulary);
    let model = drawn(gpt.init(&Device::flex()));
    let config = config(6, OptimizerKind::Sgd);
    // A sum of two numbers is rounded alike everywhere.
    for mesh in [mesh(1, 1, 2), mesh(2, 1, 2), mesh(1, 2, 2)] {
        let host = Cut {
            mesh,
            ..cut(1, ScheduleKind::OneForwardOneBackward, 2)
        };
        let nccl = Cut {
            nccl: true,
            ..host.clone()
        };
        let [host, nccl] =
            [host, nccl].map(|cut| train::<_, NextToken, _>(&model, &data, &config, Some(&cut)));
        assert_eq!(nccl, host, "{mesh}");
    }
}

#[test]
fn a_residual_net_in_stages_equals_the_same_micro_batches_on_one_device() {
    let config_of_model = ResNet50Config::new()
        .with_stem(Stem::Mnist)
        .with_blocks([1, 1, 1, 1])
        .with_width(4)
        .with_classes(10);
    let model = drawn(config_of_model.init(&Device::flex()));
    let data = images(340);
    let mut config = config(20, OptimizerKind::Sgd);
    for count in [1, 2, 8] {
        // Batch norm works on a micro-batch, on one device too.
        config.accumulate = count;
        let mut cuts = each_schedule(2..5, &[count]);
        cuts.extend(interleaved(2, &[count]));
        if count == 1 {
            cuts.extend([2, 3].map(split));
        }
        compare::<_, Classification<4>, _>(&model, &data, &config, &cuts);
    }
    let two_parts = TwoPartResNetConfig::new().with_width(4);
    let two_parts = drawn(two_parts.init(&Device::flex()));
    config.accumulate = 1;
    compare::<_, Classification<4>, _>(&two_parts, &data, &config, &[split(2)]);
}

#[test]
fn stages_have_the_bits_of_one_device_that_accumulates_the_same_micro_batches() {
    let model = drawn(MnistConfig::new().init(&Device::flex()));
    let data = images(200);
    let config = config(12, OptimizerKind::Adam);
    for count in [1, 2, 8] {
        let accumulating = changed(config.clone(), |config| config.accumulate = count);
        let alone = train::<_, Classification<4>, _>(&model, &data, &accumulating, None);
        let cuts = each_schedule(2..5, &[count]).into_iter();
        for about in cuts.chain(interleaved(2, &[count])) {
            let stages = train::<_, Classification<4>, _>(&model, &data, &config, Some(&about));
            assert_eq!(alone, stages, "{about:?}");
        }
    }
}

#[test]
fn a_checkpoint_of_one_cut_goes_on_in_any_other() {
    let model = drawn(MnistConfig::new().init(&Device::flex()));
    let data = images(116);
    let mut config = config(usize::MAX, OptimizerKind::Adam);
    (config.steps, config.epochs) = (None, 1);
    // With Adam's own, a gradient that is nothing but rounding moves a parameter as far as any other.
    config.optimizer.epsilon = Some(1e-3);
    let two = cut(2, ScheduleKind::OneForwardOneBackward, 4);
    let four = cut(4, ScheduleKind::GPipe, 2);
    let [shared, _, replicas, stages] = meshes_of_four(two.kind, 2).try_into().unwrap();
    // Each way of continuing starts from the same checkpoint, made in two stages.
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("first");
    train_in::<_, Classification<4>, _>(&model, &data, &config, Some(&two), &first, false);
    config.epochs = 2;
    let go_on = |cut: Option<&Cut>, name: &str| {
        let run = folder.path().join(name);
        copy(&first, &run);
        train_in::<_, Classification<4>, _>(&model, &data, &config, cut, &run, true)
    };
    let alone = go_on(None, "alone");
    assert_eq!(alone.losses.len(), 12, "two epochs of 96 samples");
    let split = split(2);
    for (about, name) in [
        (&split, "split"),
        (&two, "two"),
        (&four, "four"),
        (&shared, "shared"),
        (&replicas, "replicas"),
        (&stages, "stages"),
    ] {
        let gone_on = go_on(Some(about), name);
        // The first batch after the checkpoint is the same one, before anything is learnt from it.
        let (ours, theirs) = (alone.losses[6], gone_on.losses[6]);
        assert!(
            (ours - theirs).abs() <= 1e-5 * ours,
            "{ours} {theirs} {about:?}"
        );
        assert_close(&alone, &gone_on, about);
    }
    // And one that was made of parts of layers, or on two devices.
    for (about, name) in [(&stages, "of-parts"), (&split, "of-two-devices")] {
        let run = folder.path().join(name);
        config.epochs = 1;
        train_in::<_, Classification<4>, _>(&model, &data, &config, Some(about), &run, false);
        config.epochs = 2;
        let gone_on = train_in::<_, Classification<4>, _>(&model, &data, &config, None, &run, true);
        assert_close(&alone, &gone_on, about);
    }
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
