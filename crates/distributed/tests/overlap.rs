//! Gradients that leave during the backward pass equal one device on the same global batch.

mod models;

use burn::module::Param;
use burn::nn::Linear;
use burn::optim::{GradientsParams, SgdConfig};
use burn::prelude::*;
use everburn_collectives::group::{CollectiveError, ProcessGroup};
use everburn_distributed::{
    CommunicationHook, Ddp, DdpConfig, DdpError, GradientBucket, SyncedGradients, share_of,
};

use models::{Branchy, assert_close, gradient, on_ranks, rows};

/// Small buckets, so that several are under way.
fn small_buckets() -> DdpConfig {
    DdpConfig {
        bucket_bytes: 40,
        first_bucket_bytes: 16,
        ..DdpConfig::default()
    }
}

fn start(group: ProcessGroup, config: DdpConfig) -> (Ddp, Branchy, Device) {
    let device = Device::flex().autodiff();
    let (ddp, model) = Ddp::new(Branchy::new(&device), group, config).unwrap();
    (ddp, model, device)
}

/// One step over this rank's share of `samples` rows, in `parts` micro-batches.
fn overlapped(
    ddp: &Ddp,
    model: &Branchy,
    samples: usize,
    parts: usize,
    take_branch: bool,
) -> Result<SyncedGradients, DdpError> {
    let device = Device::flex().autodiff();
    let group = ddp.group();
    let share = share_of(samples, group.rank(), group.world_size());
    let step = ddp.begin(share.len())?;
    let parts = parts.min(share.len());
    for part in 0..parts {
        let within = share_of(share.len(), part, parts);
        let range = share.start + within.start..share.start + within.end;
        let watched = if part + 1 == parts {
            step.watch_last(model, range.len())
        } else {
            step.watch(model, range.len())
        };
        let mine = rows(samples, &device).slice([range]);
        drop(watched.loss(mine, take_branch).mean().backward());
    }
    step.finish(model)
}

fn whole(model: &Branchy, samples: usize, take_branch: bool) -> GradientsParams {
    let device = Device::flex().autodiff();
    let loss = model.loss(rows(samples, &device), take_branch).mean();
    GradientsParams::from_grads(loss.backward(), model)
}

fn all_values(model: &Branchy, gradients: &GradientsParams) -> Vec<Option<Vec<f32>>> {
    let layers = [&model.always, &model.sometimes];
    let mut values: Vec<_> = layers
        .iter()
        .map(|layer| gradient(gradients, &layer.weight))
        .collect();
    let bias = |layer: &Linear| -> Param<Tensor<1>> { layer.bias.clone().unwrap() };
    values.extend(layers.iter().map(|layer| gradient(gradients, &bias(layer))));
    values.push(gradient(gradients, &model.never));
    values
}

fn assert_equal_within_rounding(left: &[Option<Vec<f32>>], right: &[Option<Vec<f32>>]) {
    for (left, right) in left.iter().zip(right) {
        match (left, right) {
            (Some(left), Some(right)) => assert_close(left, right),
            (left, right) => assert_eq!(left, right),
        }
    }
}

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
        let (ddp, model, device) = start(group, small_buckets());
        let together = overlapped(&ddp, &model, 10, 1, true).unwrap();
        let share = share_of(10, ddp.group().rank(), 3);
        let samples = share.len();
        let loss = model.loss(rows(10, &device).slice([share]), true).mean();
        let local = GradientsParams::from_grads(loss.backward(), &model);
        let after = ddp.sync_gradients(&model, local, samples).unwrap();
        assert_eq!(
            all_values(&model, &together.gradients),
            all_values(&model, &after.gradients)
        );
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

#[test]
fn a_branch_taken_on_some_ranks_only_gives_the_mean_and_no_hang() {
    on_ranks(3, |group| {
        let (ddp, model, device) = start(group, small_buckets());
        for taker in 0..3 {
            let take_branch = ddp.group().rank() == taker;
            let synced = overlapped(&ddp, &model, 6, 1, take_branch).unwrap();
            let found = gradient(&synced.gradients, &model.sometimes.weight).unwrap();
            // The taker's two of the six rows, and nothing of what an earlier step left.
            let share = share_of(6, taker, 3);
            let theirs = model.loss(rows(6, &device).slice([share]), true).mean();
            let theirs = GradientsParams::from_grads(theirs.backward(), &model);
            let expected = gradient(&theirs, &model.sometimes.weight).unwrap();
            let expected: Vec<f32> = expected.into_iter().map(|g| g / 3.0).collect();
            assert_close(&found, &expected);
            assert_eq!(gradient(&synced.gradients, &model.never), None);
        }
        let synced = overlapped(&ddp, &model, 6, 1, false).unwrap();
        let found = gradient(&synced.gradients, &model.sometimes.weight);
        assert_eq!(found, None, "used by nobody: its gradient stays absent");
    });
}

#[test]
fn the_branch_of_one_rank_weighs_as_much_as_its_samples() {
    on_ranks(2, |group| {
        let (ddp, model, device) = start(group, small_buckets());
        let take_branch = ddp.group().rank() == 1;
        let share = share_of(5, 1, 2);
        let mine = rows(5, &device).slice([share.clone()]);
        let theirs = model.loss(mine, true).mean();
        let theirs = GradientsParams::from_grads(theirs.backward(), &model);
        let expected = gradient(&theirs, &model.sometimes.weight).unwrap();
        let weight = share.len() as f32 / 5.0;
        let expected = expected.into_iter().map(|g| g * weight).collect::<Vec<_>>();
        let synced = overlapped(&ddp, &model, 5, 1, take_branch).unwrap();
        let found = gradient(&synced.gradients, &model.sometimes.weight).unwrap();
        assert_close(&found, &expected);
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
fn a_static_model_may_not_change_what_it_uses() {
    let config = DdpConfig {
        static_graph: true,
        ..small_buckets()
    };
    let errors = on_ranks(2, move |group| {
        let (ddp, model, _) = start(group, config);
        for _ in 0..3 {
            let synced = overlapped(&ddp, &model, 4, 1, true).unwrap();
            assert_eq!(gradient(&synced.gradients, &model.never), None);
        }
        let take_branch = ddp.group().rank() != 1;
        overlapped(&ddp, &model, 4, 1, take_branch)
            .unwrap_err()
            .to_string()
    });
    assert!(
        errors[1].contains("was not used, unlike on other ranks or in the first step"),
        "{}",
        errors[1]
    );
    assert!(errors[1].contains("`sometimes."), "{}", errors[1]);
    assert!(errors[0].contains("rank 1"), "{}", errors[0]);
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
            let plain = all_values(&model, &whole(&model, 8, true));
            let squares = plain.iter().flatten().flatten();
            let norm = squares.map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
            let factor = (f64::from(max) / norm).min(1.0) as f32;
            let scale = |values: Vec<f32>| values.into_iter().map(|g| g * factor).collect();
            let expected: Vec<_> = plain.into_iter().map(|values| values.map(scale)).collect();

            let synced = overlapped(&ddp, &model, 8, 1, true).unwrap();
            let found = synced.norm.unwrap();
            assert!((found - norm).abs() < 1e-5 * norm, "{found} and {norm}");
            assert_equal_within_rounding(&all_values(&model, &synced.gradients), &expected);
        });
    }
}

#[test]
fn misuse_is_refused_on_all_ranks() {
    let errors = on_ranks(2, |group| {
        let (ddp, model, device) = start(group, small_buckets());
        let step = ddp.begin(4).unwrap();
        for part in 0..2 {
            let last = part == 1 || ddp.group().rank() == 0;
            let watched = if last {
                step.watch_last(&model, 2)
            } else {
                step.watch(&model, 2)
            };
            drop(watched.loss(rows(2, &device), true).mean().backward());
        }
        step.finish(&model).unwrap_err().to_string()
    });
    assert!(
        errors[0].contains("got a second gradient in one pass"),
        "{}",
        errors[0]
    );
    assert!(errors[1].contains("rank 0"), "{}", errors[1]);

    let errors = on_ranks(2, |group| {
        let (ddp, model, device) = start(group, small_buckets());
        let step = ddp.begin(3 + ddp.group().rank()).unwrap();
        let watched = step.watch_last(&model, 3);
        drop(watched.loss(rows(3, &device), true).mean().backward());
        step.finish(&model).unwrap_err().to_string()
    });
    let message = "was begun with 4 samples on this rank, but its micro-batches had 3";
    assert!(errors[1].contains(message), "{}", errors[1]);
    assert!(errors[0].contains("rank 1"), "{}", errors[0]);
}

#[test]
fn a_step_that_is_given_up_or_a_rank_that_is_lost_ends_the_others_step() {
    let results = on_ranks(3, |group| {
        let (ddp, model, _) = start(group, small_buckets());
        overlapped(&ddp, &model, 6, 1, true).unwrap();
        // An abort may overtake what others have still to read.
        ddp.group().barrier().wait().unwrap();
        if ddp.group().rank() == 2 {
            drop(ddp.begin(1).unwrap());
            return String::new();
        }
        overlapped(&ddp, &model, 6, 1, true)
            .unwrap_err()
            .to_string()
    });
    for error in &results[..2] {
        assert!(error.contains("rank 2 gave the step up"), "{error}");
    }
    let results = on_ranks(3, |group| {
        let (ddp, model, _) = start(group, small_buckets());
        overlapped(&ddp, &model, 6, 1, true).unwrap();
        ddp.group().barrier().wait().unwrap();
        if ddp.group().rank() == 1 {
            ddp.group().sever();
            return String::new();
        }
        overlapped(&ddp, &model, 6, 1, true)
            .unwrap_err()
            .to_string()
    });
    for error in [&results[0], &results[2]] {
        assert!(error.contains("rank 1"), "{error}");
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
                step.watch(&model, 2)
            } else {
                step.watch_last(&model, 2)
            };
            let loss = watched.loss(both.clone().slice([part]), take_branch);
            drop(loss.mean().backward());
        }
        let synced = step.finish(&model).unwrap();
        let first = model.loss(both.slice([0..2]), true).mean();
        let first = GradientsParams::from_grads(first.backward(), &model);
        let expected = gradient(&first, &model.sometimes.weight).unwrap();
        let expected: Vec<f32> = expected.into_iter().map(|g| g / 2.0).collect();
        let found = gradient(&synced.gradients, &model.sometimes.weight).unwrap();
        assert_close(&found, &expected);
    });
}

#[test]
fn ranks_whose_data_end_at_different_times_stop_together() {
    let steps = on_ranks(3, |group| {
        let (ddp, model, device) = start(group, small_buckets());
        // Rank 0 has no data at all: its first step shows no order of gradients.
        let batches = 2 * ddp.group().rank();
        let mut steps = 0;
        loop {
            let samples = if steps < batches { 3 } else { 0 };
            let step = ddp.begin(samples).unwrap();
            if samples > 0 {
                let watched = step.watch_last(&model, samples);
                drop(watched.loss(rows(3, &device), true).mean().backward());
            }
            match step.finish(&model) {
                Ok(synced) => {
                    let having = [1, 2].into_iter().filter(|rank| steps < 2 * rank).count();
                    assert_eq!(synced.samples, 3 * having as u64);
                    let expected = all_values(&model, &whole(&model, 3, true));
                    let found = all_values(&model, &synced.gradients);
                    assert_equal_within_rounding(&found, &expected);
                }
                Err(DdpError::NoSamples) => break,
                Err(error) => panic!("{error}"),
            }
            steps += 1;
        }
        ddp.group().barrier().wait().unwrap();
        steps
    });
    assert_eq!(steps, [4, 4, 4]);
}

#[test]
fn tied_weights_learn_as_one_parameter() {
    let train = |world_size: usize| {
        let device = Device::flex().autodiff();
        let layer = Branchy::new(&device).sometimes;
        let weights = layer.weight.val().into_data();
        let ranks = on_ranks(world_size, move |group| {
            let device = Device::flex().autodiff();
            let mut layer = Branchy::new(&device).sometimes;
            layer.weight = Param::from_data(weights.clone(), &device);
            let (ddp, mut model) =
                Ddp::new(vec![layer.clone(), layer], group, small_buckets()).unwrap();
            let share = share_of(4, ddp.group().rank(), ddp.group().world_size());
            let mut optimizer = SgdConfig::new().init();
            for _ in 0..3 {
                let step = ddp.begin(share.len()).unwrap();
                let watched = step.watch_last(&model, share.len());
                let mine = rows(4, &device).slice([share.clone(), 0..3]);
                let output = watched[1].forward(watched[0].forward(mine).tanh());
                drop(output.powf_scalar(2.0).mean().backward());
                let synced = step.finish(&model).unwrap();
                model = ddp.tie(optimizer.step(0.1, model, synced.gradients));
            }
            ddp.verify_replicas(&model).unwrap();
            let both = [0, 1].map(|layer: usize| -> Vec<f32> {
                model[layer]
                    .weight
                    .val()
                    .into_data()
                    .try_into_vec()
                    .unwrap()
            });
            assert_eq!(both[0], both[1], "both places hold what was learnt");
            both[0].clone()
        });
        ranks[0].clone()
    };
    assert_close(&train(1), &train(2));
}

#[test]
fn gradients_without_a_norm_are_refused_by_all_ranks_and_the_next_step_is_made() {
    on_ranks(2, |group| {
        let config = DdpConfig {
            max_gradient_norm: Some(1.0),
            ..small_buckets()
        };
        let (ddp, model, device) = start(group, config);
        let step = ddp.begin(2).unwrap();
        let bad = f32::from(u8::from(ddp.group().rank() == 1)) * f32::INFINITY;
        let mine = rows(2, &device) + bad;
        drop(
            step.watch_last(&model, 2)
                .loss(mine, true)
                .mean()
                .backward(),
        );
        let error = step.finish(&model).unwrap_err();
        assert!(
            matches!(error, DdpError::GradientNotFinite { .. }),
            "{error}"
        );
        overlapped(&ddp, &model, 4, 1, true).unwrap();
    });
}

#[test]
fn a_model_that_ddp_does_not_know_and_a_missing_backward_pass_are_refused() {
    let errors = on_ranks(2, |group| {
        let (ddp, model, device) = start(group, small_buckets());
        let step = ddp.begin(2).unwrap();
        let other = Branchy::new(&device);
        drop(
            step.watch_last(&other, 2)
                .loss(rows(2, &device), true)
                .mean()
                .backward(),
        );
        step.finish(&model).unwrap_err().to_string()
    });
    assert!(
        errors
            .iter()
            .any(|error| error.contains("has lost the parameter")),
        "{errors:?}"
    );
    let errors = on_ranks(2, |group| {
        let (ddp, model, device) = start(group, small_buckets());
        let step = ddp.begin(2).unwrap();
        drop(step.watch_last(&model, 2).loss(rows(2, &device), true));
        step.finish(&model).unwrap_err().to_string()
    });
    assert!(
        errors
            .iter()
            .any(|error| error.contains("brought no gradient")),
        "{errors:?}"
    );
    on_ranks(1, |group| {
        let (ddp, _, _) = start(group, small_buckets());
        let open = ddp.begin(1).unwrap();
        assert!(matches!(ddp.begin(1), Err(DdpError::StepOpen)));
        drop(open);
        drop(ddp.begin(1).unwrap());
    });
}

#[test]
fn different_configurations_are_named_on_every_rank() {
    let errors = on_ranks(3, |group| {
        let device = Device::flex().autodiff();
        let config = DdpConfig {
            static_graph: group.rank() == 2,
            ..small_buckets()
        };
        Ddp::new(Branchy::new(&device), group, config)
            .unwrap_err()
            .to_string()
    });
    for error in errors {
        assert!(
            error.contains("rank 2") && error.contains("static_graph: true"),
            "{error}"
        );
    }
}

/// A hook that fails as no hook should.
#[derive(Debug)]
struct Panics;

impl CommunicationHook for Panics {
    fn name(&self) -> String {
        "panics".to_string()
    }

    fn reduce(
        &mut self,
        _: GradientBucket<'_>,
        group: &ProcessGroup,
    ) -> Result<u64, CollectiveError> {
        assert!(group.rank() != 1, "on purpose");
        group.barrier().wait()?;
        Ok(0)
    }
}

#[test]
fn a_hook_that_panics_ends_the_step_on_all_ranks() {
    let errors = on_ranks(2, |group| {
        let device = Device::flex().autodiff();
        let model = Branchy::new(&device);
        let (ddp, model) = Ddp::with_hook(model, group, small_buckets(), Box::new(Panics)).unwrap();
        overlapped(&ddp, &model, 4, 1, true)
            .unwrap_err()
            .to_string()
    });
    assert!(
        errors[1].contains("it panicked: on purpose"),
        "{}",
        errors[1]
    );
    assert!(
        errors[0].contains("the gradient reducer of rank 1"),
        "{}",
        errors[0]
    );
}
