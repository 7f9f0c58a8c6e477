//! Gradients of checkpointed segments, which a nested backward pass hands to the gradient hooks.

use burn::prelude::*;
use everburn_distributed::{Ddp, SyncedGradients, share_of};
use everburn_nn::checkpoint;

use crate::models::{Branchy, rows};
use crate::ranks::on_ranks;
use crate::steps::{all_values, overlapped, small_buckets, start};

const SAMPLES: usize = 8;

/// [`overlapped`] in one part, with a forward pass of choice.
fn step_with(
    ddp: &Ddp,
    model: &Branchy,
    forward: impl Fn(&Branchy, Tensor<2>) -> Tensor<1>,
) -> SyncedGradients {
    let device = Device::flex().autodiff();
    let share = share_of(SAMPLES, ddp.group().rank(), ddp.group().world_size());
    let step = ddp.begin(share.len()).unwrap();
    let watched = step.with_hooks(model, share.len());
    let mine = rows(SAMPLES, &device).slice([share]);
    drop(forward(&watched, mine).mean().backward());
    step.finish(model).unwrap()
}

fn whole(model: &Branchy, rows: Tensor<2>, take_branch: bool) -> Tensor<1> {
    checkpoint(model, rows, move |model: &Branchy, rows| {
        model.loss(rows, take_branch)
    })
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
fn a_recomputed_step_gives_the_same_bits() {
    for world_size in [1, 3] {
        on_ranks(world_size, |group| {
            let (ddp, model, _) = start(group, small_buckets());
            for take_branch in [true, false, true] {
                let plain = overlapped(&ddp, &model, SAMPLES, 1, take_branch).unwrap();
                let plain = all_values(&model, &plain.gradients);
                let found = step_with(&ddp, &model, |model, rows| whole(model, rows, take_branch));
                assert_eq!(all_values(&model, &found.gradients), plain);
                if take_branch {
                    let found = step_with(&ddp, &model, by_layers);
                    assert_eq!(all_values(&model, &found.gradients), plain);
                }
            }
        });
    }
}

#[test]
fn gradients_leave_segment_by_segment() {
    on_ranks(2, |group| {
        let (ddp, model, _) = start(group, small_buckets());
        step_with(&ddp, &model, by_layers);
        // The buckets are packed in the order in which the first step's gradients came.
        let plan = ddp.plan();
        let numbers = plan.buckets().iter().flat_map(|b| b.parameters().to_vec());
        let paths = numbers.map(|number| ddp.parameters()[number].path.clone());
        let paths = paths.collect::<Vec<_>>();
        assert!(
            paths[..2].iter().all(|path| path.starts_with("sometimes")),
            "{paths:?}"
        );
        assert!(
            paths[2..4].iter().all(|path| path.starts_with("always")),
            "{paths:?}"
        );
    });
}
