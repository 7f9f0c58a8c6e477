//! What steps yield.

use burn::module::Param;
use burn::optim::SgdConfig;
use burn::prelude::*;
use everburn_distributed::{Ddp, DdpConfig, DdpError, share_of};
use everburn_nn::checkpoint;

use crate::models::{Branchy, assert_close, gradient, gradients_over, rows, values};
use crate::ranks::on_ranks;
use crate::steps::{
    all_values, assert_branch_is_averaged, assert_clipped, assert_equal_within_rounding,
    assert_handed_in_is_overlapped, overlapped, small_buckets, start, steps_until_all_end, whole,
};

#[test]
fn a_step_equals_one_device_for_every_share_and_number_of_micro_batches() {
    for world_size in [1, 2, 3, 4, 7] {
        for (samples, parts) in [(1, 1), (5, 2), (8, 1), (8, 3), (13, 4)] {
            let ranks = on_ranks(world_size, move |group| {
                let (ddp, model, _) = start(group, small_buckets());
                let expected = all_values(&model, &whole(&model, samples, true));
                let mut results = Vec::new();
                // The second step uses the buckets that were packed anew after the first.
                for _ in 0..3 {
                    let synced = overlapped(&ddp, &model, samples, parts, true).unwrap();
                    assert_eq!(synced.samples, samples as u64);
                    let values = all_values(&model, &synced.gradients);
                    assert_equal_within_rounding(&values, &expected);
                    results.push(values);
                }
                results
            });
            let equal = ranks.iter().all(|rank| *rank == ranks[0]);
            assert!(equal, "equal to the bit on all ranks");
        }
    }
}

#[test]
fn overlapped_and_sequential_steps_give_the_same_bits() {
    on_ranks(3, |group| {
        let (ddp, model, _) = start(group, small_buckets());
        assert_handed_in_is_overlapped(&ddp, &model);
    });
}

#[test]
fn buckets_are_packed_once_in_the_order_of_the_backward_pass() {
    let orders = on_ranks(2, |group| {
        let (ddp, model, _) = start(group, small_buckets());
        let numbers = |ddp: &Ddp| {
            let plan = ddp.plan();
            let numbers = plan.buckets().iter().flat_map(|b| b.parameters().to_vec());
            numbers.collect::<Vec<_>>()
        };
        let paths: Vec<_> = ddp.parameters().iter().map(|p| p.path.clone()).collect();
        let before = numbers(&ddp);
        overlapped(&ddp, &model, 4, 1, true).unwrap();
        let after = numbers(&ddp);
        overlapped(&ddp, &model, 4, 1, false).unwrap();
        assert_eq!(numbers(&ddp), after, "packed anew once only");
        let named = |numbers: Vec<usize>| -> Vec<String> {
            numbers.into_iter().map(|n| paths[n].clone()).collect()
        };
        (named(before), named(after))
    });
    assert_eq!(orders[0], orders[1]);
    let (before, after) = &orders[0];
    assert_eq!(before[0], "never", "reverse order of registration at first");
    assert_eq!(
        after[4], "never",
        "what no backward pass reached comes last"
    );
    assert!(after[..2].iter().all(|path| path.starts_with("sometimes")));
}

/// Two segments, each of which uses one layer.
fn by_layers(model: &Branchy, rows: Tensor<2>) -> Tensor<1> {
    let hidden = checkpoint(model, rows, |model: &Branchy, rows| {
        model.always.forward(rows)
    });
    checkpoint(model, hidden, |model: &Branchy, hidden| {
        let output: Tensor<2> = model.sometimes.forward(hidden);
        output.powf_scalar(2.0).sum_dim(1).squeeze_dim(1)
    })
}

#[test]
fn gradients_of_checkpointed_segments_leave_segment_by_segment() {
    on_ranks(2, |group| {
        let (ddp, model, device) = start(group, small_buckets());
        let step = ddp.begin(4).unwrap();
        let watched = step.with_hooks(&model, 4);
        drop(by_layers(&watched, rows(4, &device)).mean().backward());
        step.finish(&model).unwrap();
        // The buckets are packed in the order in which the first step's gradients came.
        let plan = ddp.plan();
        let numbers = plan.buckets().iter().flat_map(|b| b.parameters().to_vec());
        let paths = numbers.map(|number| ddp.parameters()[number].path.clone());
        let paths = paths.collect::<Vec<_>>();
        let of = |range: std::ops::Range<usize>, layer: &str| {
            paths[range].iter().all(|path| path.starts_with(layer))
        };
        assert!(of(0..2, "sometimes") && of(2..4, "always"), "{paths:?}");
    });
}

#[test]
fn a_branch_taken_on_some_ranks_only_gives_the_mean_and_no_hang() {
    on_ranks(3, |group| {
        let (ddp, model, _) = start(group, small_buckets());
        assert_branch_is_averaged(&ddp, &model);
    });
}

#[test]
fn micro_batches_are_exchanged_once() {
    let bytes = |parts: usize| {
        let ranks = on_ranks(2, move |group| {
            let (ddp, model, _) = start(group, small_buckets());
            let synced = overlapped(&ddp, &model, 8, parts, true).unwrap();
            synced.communication.bytes
        });
        ranks[0]
    };
    assert_eq!(bytes(4), bytes(1));
    let (elements, parameters) = (4 * 3 + 3 + 3 * 3 + 3 + 5, 5);
    assert_eq!(bytes(1), 4 * (elements + parameters), "gradients and flags");
}

#[test]
fn gradients_are_clipped_by_the_norm_of_all_of_them_together() {
    for (max, world_size) in [(0.5, 1), (0.5, 3), (1e6, 2)] {
        on_ranks(world_size, move |group| {
            let config = DdpConfig {
                max_gradient_norm: Some(max),
                ..small_buckets()
            };
            let (ddp, model, _) = start(group, config);
            assert_clipped(&ddp, &model, max);
        });
    }
}

#[test]
fn a_branch_in_an_earlier_micro_batch_only_counts() {
    on_ranks(2, |group| {
        let (ddp, model, device) = start(group, small_buckets());
        let both = rows(4, &device);
        let share = share_of(8, ddp.group().rank(), 2);
        assert_eq!(share.len(), 4);
        let step = ddp.begin(4).unwrap();
        for (part, take_branch) in [(0..2, true), (2..4, false)] {
            let watched = if take_branch {
                step.with_hooks_no_sync(&model, 2)
            } else {
                step.with_hooks(&model, 2)
            };
            let loss = watched.loss(both.clone().slice([part]), take_branch);
            drop(loss.mean().backward());
        }
        let synced = step.finish(&model).unwrap();
        let first = gradients_over(&model, rows(2, &device), true);
        let expected = gradient(&first, &model.sometimes.weight).unwrap();
        let expected: Vec<f32> = expected.into_iter().map(|g| g / 2.0).collect();
        let found = gradient(&synced.gradients, &model.sometimes.weight).unwrap();
        assert_close(&found, &expected);
    });
}

#[test]
fn ranks_whose_data_end_at_different_times_stop_together() {
    let steps = on_ranks(3, |group| {
        let (ddp, model, _) = start(group, small_buckets());
        steps_until_all_end(&ddp, &model)
    });
    assert_eq!(steps, [4, 4, 4]);
}

#[test]
fn a_loop_that_does_not_tie_its_weights_is_refused() {
    let errors = on_ranks(2, |group| {
        let device = Device::flex().autodiff();
        let layer = Branchy::new(&device).sometimes;
        let tied = vec![layer.clone(), layer];
        let (ddp, mut model) = Ddp::new(tied, group, small_buckets()).unwrap();
        let mut optimizer = SgdConfig::new().init();
        let mut step = || {
            let step = ddp.begin(4).unwrap();
            let watched = step.with_hooks(&model, 4);
            let mine = rows(4, &device).slice([0..4, 0..3]);
            let output = watched[1].forward(watched[0].forward(mine).tanh());
            drop(output.powf_scalar(2.0).mean().backward());
            let synced = step.finish(&model)?;
            model = optimizer.step(0.1, model.clone(), synced.gradients);
            Ok::<(), DdpError>(())
        };
        step().unwrap();
        let error = step().unwrap_err();
        assert!(matches!(error, DdpError::Untied { .. }), "{error}");
        error.to_string()
    });
    assert!(errors[0].contains("`1.weight`"), "{}", errors[0]);
    assert!(errors[0].contains("ddp.tie(optimizer.step(..))"));
}

#[test]
fn tied_weights_learn_as_one_parameter() {
    // Drawn once: tests beside this one draw from the same generator.
    let drawn = Branchy::new(&Device::flex()).sometimes;
    let (weight, bias) = (drawn.weight.val(), drawn.bias.unwrap().val());
    let (weight, bias) = (weight.into_data(), bias.into_data());
    let train = |world_size: usize| {
        let (weight, bias) = (weight.clone(), bias.clone());
        let ranks = on_ranks(world_size, move |group| {
            let device = Device::flex().autodiff();
            let mut layer = Branchy::new(&device).sometimes;
            layer.weight = Param::from_data(weight.clone(), &device);
            layer.bias = Some(Param::from_data(bias.clone(), &device));
            let (ddp, mut model) =
                Ddp::new(vec![layer.clone(), layer], group, small_buckets()).unwrap();
            let share = share_of(4, ddp.group().rank(), ddp.group().world_size());
            let mut optimizer = SgdConfig::new().init();
            for _ in 0..3 {
                let step = ddp.begin(share.len()).unwrap();
                let watched = step.with_hooks(&model, share.len());
                let mine = rows(4, &device).slice([share.clone(), 0..3]);
                let output = watched[1].forward(watched[0].forward(mine).tanh());
                drop(output.powf_scalar(2.0).mean().backward());
                let synced = step.finish(&model).unwrap();
                model = ddp.tie(optimizer.step(0.1, model, synced.gradients));
            }
            ddp.verify_replicas(&model).unwrap();
            let both = [0, 1].map(|layer: usize| values(model[layer].weight.val()));
            assert_eq!(both[0], both[1], "both places hold what was learnt");
            both[0].clone()
        });
        ranks[0].clone()
    };
    assert_close(&train(1), &train(2));
}
