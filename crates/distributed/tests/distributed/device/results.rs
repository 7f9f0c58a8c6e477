//! What steps yield.

use burn::prelude::*;
use everburn_distributed::{Ddp, DdpConfig, DdpError, VirtualRanks};

use super::ways::{WAYS, Way, model, on_ranks};
use crate::models::{gradient, rows};
use crate::steps::{
    all_values, assert_branch_is_averaged, assert_clipped, assert_equal_within_rounding,
    assert_handed_in_is_overlapped, overlapped, small_buckets, steps_until_all_end, whole,
};

#[test]
fn a_step_has_the_bits_of_the_step_through_host_memory() {
    for way in WAYS {
        for (samples, parts) in [(1, 1), (5, 2), (8, 1), (13, 4)] {
            // A sum of two numbers is rounded alike everywhere.
            on_ranks(2, move |rank| {
                let device = Device::flex().autodiff();
                let (host, own) =
                    Ddp::new(model(&device), rank.group.clone(), small_buckets()).unwrap();
                let (ddp, other) = rank.ddp(way, small_buckets()).unwrap();
                // From the second step on the buckets are packed in the order of the backward pass.
                for _ in 0..3 {
                    let expected = overlapped(&host, &own, samples, parts, true).unwrap();
                    let found = overlapped(&ddp, &other, samples, parts, true).unwrap();
                    assert_eq!(found.samples, expected.samples);
                    assert_eq!(
                        all_values(&other, &found.gradients),
                        all_values(&own, &expected.gradients),
                        "{way:?}, {samples} samples in {parts} parts"
                    );
                    let packed = |ddp: &Ddp| -> Vec<Vec<usize>> {
                        let plan = ddp.plan();
                        plan.buckets()
                            .iter()
                            .map(|b| b.parameters().to_vec())
                            .collect()
                    };
                    assert_eq!(packed(&ddp), packed(&host));
                }
                ddp.settle().unwrap();
            });
        }
    }
}

#[test]
fn a_step_equals_one_device_on_any_number_of_ranks() {
    for way in [Way::Nccl, Way::Staged] {
        for world_size in [1, 3, 4] {
            let ranks = on_ranks(world_size, move |rank| {
                let (ddp, model) = rank.ddp(way, small_buckets()).unwrap();
                assert!(ddp.synchronizes_gradients());
                let expected = all_values(&model, &whole(&model, 7, true));
                let mut found = Vec::new();
                for _ in 0..2 {
                    let synced = overlapped(&ddp, &model, 7, 2, true).unwrap();
                    found = all_values(&model, &synced.gradients);
                    assert_equal_within_rounding(&found, &expected);
                }
                found
            });
            let equal = ranks.iter().all(|rank| *rank == ranks[0]);
            assert!(equal, "equal to the bit on all ranks");
        }
    }
}

#[test]
fn gradients_that_are_handed_in_travel_too() {
    on_ranks(2, |rank| {
        let (ddp, model) = rank.ddp(Way::Nccl, small_buckets()).unwrap();
        assert_handed_in_is_overlapped(&ddp, &model);
    });
}

#[test]
fn a_branch_taken_on_some_ranks_only_gives_the_mean_and_one_taken_by_nobody_no_gradient() {
    for way in [Way::Nccl, Way::Staged] {
        on_ranks(3, move |rank| {
            let (ddp, model) = rank.ddp(way, small_buckets()).unwrap();
            assert_branch_is_averaged(&ddp, &model);
        });
    }
}

#[test]
fn gradients_are_clipped_on_their_device_and_the_norm_can_be_asked_for() {
    for (way, world_size, max) in [
        (Way::Nccl, 2, 0.5),
        (Way::Staged, 2, 1e6),
        (Way::Nccl, 1, 0.5),
    ] {
        on_ranks(world_size, move |rank| {
            let config = DdpConfig {
                max_gradient_norm: Some(max),
                ..small_buckets()
            };
            let (ddp, model) = rank.ddp(way, config).unwrap();
            assert_clipped(&ddp, &model, max);
        });
    }
}

#[test]
fn a_norm_that_is_no_number_is_found_when_it_is_asked_for_on_all_ranks() {
    on_ranks(2, |rank| {
        let config = DdpConfig {
            max_gradient_norm: Some(1.0),
            ..small_buckets()
        };
        let device = Device::flex().autodiff();
        let (ddp, model) = rank.ddp(Way::Nccl, config).unwrap();
        rank.group.set_step(9);
        let step = ddp.begin(2).unwrap();
        let bad = [0.0, f32::INFINITY][rank.number()];
        let watched = step.with_hooks(&model, 2);
        drop(watched.loss(rows(2, &device) + bad, true).mean().backward());
        let synced = step.finish(&model).unwrap();
        let error = synced.norm.unwrap().read().unwrap_err();
        assert!(
            matches!(error, DdpError::NormNotFinite { step: 9, .. }),
            "{error}"
        );
    });
}

#[test]
fn ranks_whose_data_end_at_different_times_stop_together() {
    for way in [Way::Nccl, Way::Staged] {
        let steps = on_ranks(3, move |rank| {
            let (ddp, model) = rank.ddp(way, small_buckets()).unwrap();
            steps_until_all_end(&ddp, &model)
        });
        assert_eq!(steps, [4, 4, 4]);
    }
}

#[test]
fn a_static_model_tells_once_what_it_uses() {
    let errors = on_ranks(2, |rank| {
        let config = DdpConfig {
            static_graph: true,
            ..small_buckets()
        };
        let (ddp, model) = rank.ddp(Way::Nccl, config).unwrap();
        // Rank 1 may be a step ahead of rank 0, and end the group while that one is in its third step.
        let mut steps = [true, true, true, rank.number() != 1].into_iter();
        let error = steps.find_map(|take_branch| {
            let synced =
                overlapped(&ddp, &model, 4, 1, take_branch).map_err(|error| error.to_string());
            let gradients = synced.map(|synced| gradient(&synced.gradients, &model.never));
            gradients.map(|never| assert_eq!(never, None)).err()
        });
        assert!(
            steps.len() <= 1 - rank.number(),
            "three steps are well: {error:?}"
        );
        error.expect("the last step is refused")
    });
    let expected = "was not used, unlike on other ranks or in the first step";
    assert!(errors[1].contains(expected), "{}", errors[1]);
    assert!(errors[0].contains("rank 1"), "{}", errors[0]);
}

#[test]
fn virtual_ranks_are_added_up_in_host_memory_with_the_same_bits() {
    on_ranks(2, |rank| {
        let device = Device::flex().autodiff();
        let (host, own) = Ddp::new(model(&device), rank.group.clone(), small_buckets()).unwrap();
        let (ddp, other) = rank.ddp(Way::Nccl, small_buckets()).unwrap();
        let run = |ddp: &Ddp, model: &crate::models::Branchy| {
            let ranks = VirtualRanks::new(4, rank.number(), 2).unwrap();
            let step = ddp.begin_virtual(ranks, &[2, 2], 8).unwrap();
            for own in 0..2 {
                let watched = step.with_hooks_virtual(model, own);
                let from = 4 * rank.number() + 2 * own;
                let mine = rows(8, &device).slice([from..from + 2, 0..4]);
                drop(watched.loss(mine, true).mean().backward());
            }
            all_values(model, &step.finish(model).unwrap().gradients)
        };
        assert_eq!(run(&ddp, &other), run(&host, &own));
    });
}
