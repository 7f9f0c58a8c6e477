//! What ends a step, and the errors of its ranks.

use burn::prelude::*;
use everburn_collectives::group::{CollectiveError, ProcessGroup};
use everburn_distributed::{CommunicationHook, Ddp, DdpConfig, DdpError, GradientBucket};

use crate::models::{Branchy, gradient, rows};
use crate::ranks::on_ranks;
use crate::steps::{overlapped, small_buckets, start};

/// Why a step is refused.
fn refusal(ddp: &Ddp, model: &Branchy, samples: usize, take_branch: bool) -> String {
    let error = overlapped(ddp, model, samples, 1, take_branch).unwrap_err();
    error.to_string()
}

#[track_caller]
fn assert_each_contains<const N: usize>(errors: &[String], parts: [&str; N]) {
    assert_eq!(errors.len(), N);
    for (error, part) in errors.iter().zip(parts) {
        assert!(error.contains(part), "{part} not in {errors:?}");
    }
}

#[track_caller]
fn assert_one_contains(errors: &[String], part: &str) {
    let is_there = errors.iter().any(|error| error.contains(part));
    assert!(is_there, "{part} not in {errors:?}");
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
        refusal(&ddp, &model, 4, ddp.group().rank() != 1)
    });
    let message = "was not used, unlike on other ranks or in the first step";
    assert_each_contains(&errors, ["rank 1", message]);
    assert!(errors[1].contains("`sometimes."), "{}", errors[1]);
}

#[test]
fn misuse_is_refused_on_all_ranks() {
    let errors = on_ranks(2, |group| {
        let (ddp, model, device) = start(group, small_buckets());
        let step = ddp.begin(4).unwrap();
        for part in 0..2 {
            let last = part == 1 || ddp.group().rank() == 0;
            let watched = if last {
                step.with_hooks(&model, 2)
            } else {
                step.with_hooks_no_sync(&model, 2)
            };
            drop(watched.loss(rows(2, &device), true).mean().backward());
        }
        step.finish(&model).unwrap_err().to_string()
    });
    assert_each_contains(&errors, ["got a second gradient in one pass", "rank 0"]);

    let errors = on_ranks(2, |group| {
        let (ddp, model, device) = start(group, small_buckets());
        let step = ddp.begin(3 + ddp.group().rank()).unwrap();
        let watched = step.with_hooks(&model, 3);
        drop(watched.loss(rows(3, &device), true).mean().backward());
        step.finish(&model).unwrap_err().to_string()
    });
    let message = "was begun with 4 samples on this rank, but its micro-batches had 3";
    assert_each_contains(&errors, ["rank 1", message]);

    let errors = on_ranks(2, |group| {
        let (ddp, model, _) = start(group, small_buckets());
        let step = ddp.begin(4).unwrap();
        step.finish(&model).unwrap_err().to_string()
    });
    let message = "was begun with 4 samples on this rank, but no model of `with_hooks_no_sync` or `with_hooks` was used";
    assert_one_contains(&errors, message);
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
        refusal(&ddp, &model, 6, true)
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
        refusal(&ddp, &model, 6, true)
    });
    for error in [&results[0], &results[2]] {
        assert!(error.contains("rank 1"), "{error}");
    }
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
        let watched = step.with_hooks(&model, 2);
        drop(watched.loss(mine, true).mean().backward());
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
        let watched = step.with_hooks(&other, 2);
        drop(watched.loss(rows(2, &device), true).mean().backward());
        step.finish(&model).unwrap_err().to_string()
    });
    assert_one_contains(&errors, "has lost the parameter");
    let errors = on_ranks(2, |group| {
        let (ddp, model, device) = start(group, small_buckets());
        let step = ddp.begin(2).unwrap();
        drop(step.with_hooks(&model, 2).loss(rows(2, &device), true));
        step.finish(&model).unwrap_err().to_string()
    });
    assert_one_contains(&errors, "produced no gradient");
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
        let made = Ddp::new(Branchy::new(&device), group, config);
        made.unwrap_err().to_string()
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
        refusal(&ddp, &model, 4, true)
    });
    let own = "its thread panicked: on purpose";
    assert_each_contains(&errors, ["the gradient reducer of rank 1", own]);
}
