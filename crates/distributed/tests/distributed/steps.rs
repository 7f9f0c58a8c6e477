//! One step, overlapped, and what to compare it with.

use burn::module::Param;
use burn::nn::Linear;
use burn::optim::GradientsParams;
use burn::prelude::*;
use everburn_collectives::group::ProcessGroup;
use everburn_distributed::{Ddp, DdpConfig, DdpError, SyncedGradients, share_of};

use crate::models::{Branchy, assert_close, gradient, gradients_over, rows};

/// Small buckets, so that several are under way.
pub fn small_buckets() -> DdpConfig {
    DdpConfig {
        bucket_bytes: 40,
        first_bucket_bytes: 16,
        ..DdpConfig::default()
    }
}

pub fn start(group: ProcessGroup, config: DdpConfig) -> (Ddp, Branchy, Device) {
    let device = Device::flex().autodiff();
    let (ddp, model) = Ddp::new(Branchy::new(&device), group, config).unwrap();
    (ddp, model, device)
}

/// One step over this rank's share of `samples` rows, in `parts` micro-batches.
pub fn overlapped(
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
            step.with_hooks(model, range.len())
        } else {
            step.with_hooks_no_sync(model, range.len())
        };
        let mine = rows(samples, &device).slice([range]);
        drop(watched.loss(mine, take_branch).mean().backward());
    }
    step.finish(model)
}

pub fn whole(model: &Branchy, samples: usize, take_branch: bool) -> GradientsParams {
    let all = rows(samples, &Device::flex().autodiff());
    gradients_over(model, all, take_branch)
}

pub fn all_values(model: &Branchy, gradients: &GradientsParams) -> Vec<Option<Vec<f32>>> {
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

#[track_caller]
pub fn assert_equal_within_rounding(left: &[Option<Vec<f32>>], right: &[Option<Vec<f32>>]) {
    assert_eq!(left.len(), right.len());
    for (left, right) in left.iter().zip(right) {
        match (left, right) {
            (Some(left), Some(right)) => assert_close(left, right),
            (left, right) => assert_eq!(left, right),
        }
    }
}

/// Demands that the gradients of a step, whose configuration says so, are clipped to a norm of `max`: that of all of
/// them together.
#[track_caller]
pub fn assert_clipped(ddp: &Ddp, model: &Branchy, max: f32) {
    let plain = all_values(model, &whole(model, 8, true));
    let squares = plain.iter().flatten().flatten();
    let norm = squares.map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
    let factor = (f64::from(max) / norm).min(1.0) as f32;
    let scale = |values: Vec<f32>| values.into_iter().map(|g| g * factor).collect();
    let expected: Vec<_> = plain.into_iter().map(|values| values.map(scale)).collect();
    let synced = overlapped(ddp, model, 8, 1, true).unwrap();
    let found = synced.norm.unwrap().read().unwrap();
    assert!((found - norm).abs() < 1e-5 * norm, "{found} and {norm}");
    assert_equal_within_rounding(&all_values(model, &synced.gradients), &expected);
}

/// Demands that gradients that are handed in come to the bits of those that leave during the backward pass, also on ranks
/// without samples. Rank 1 alone takes the branch.
#[track_caller]
pub fn assert_handed_in_is_overlapped(ddp: &Ddp, model: &Branchy) {
    let device = Device::flex().autodiff();
    let (rank, world_size) = (ddp.group().rank(), ddp.group().world_size());
    for samples in [10, 1] {
        let together = overlapped(ddp, model, samples, 1, rank == 1).unwrap();
        let share = share_of(samples, rank, world_size);
        let own = share.len();
        let local = match own {
            0 => GradientsParams::new(),
            _ => gradients_over(model, rows(samples, &device).slice([share]), rank == 1),
        };
        let after = ddp.sync_gradients(model, local, own).unwrap();
        assert_eq!(after.samples, samples as u64);
        assert_eq!(
            all_values(model, &together.gradients),
            all_values(model, &after.gradients)
        );
    }
}

/// Demands that the branch that one of three ranks takes weighs as much as its samples, and what nobody takes has no
/// gradient.
#[track_caller]
pub fn assert_branch_is_averaged(ddp: &Ddp, model: &Branchy) {
    let device = Device::flex().autodiff();
    for taker in 0..3 {
        let take_branch = ddp.group().rank() == taker;
        let synced = overlapped(ddp, model, 7, 1, take_branch).unwrap();
        let found = gradient(&synced.gradients, &model.sometimes.weight).unwrap();
        // The taker's two or three of the seven rows, and nothing of what an earlier step left.
        let share = share_of(7, taker, 3);
        let weight = share.len() as f32 / 7.0;
        let theirs = gradients_over(model, rows(7, &device).slice([share]), true);
        let expected = gradient(&theirs, &model.sometimes.weight).unwrap();
        let expected: Vec<f32> = expected.into_iter().map(|g| g * weight).collect();
        assert_close(&found, &expected);
        assert_eq!(gradient(&synced.gradients, &model.never), None);
    }
    let synced = overlapped(ddp, model, 6, 1, false).unwrap();
    let found = gradient(&synced.gradients, &model.sometimes.weight);
    assert_eq!(found, None, "used by nobody: its gradient stays absent");
}

/// How many steps this one of three ranks makes, of which rank 0 has no data, rank 1 two batches and rank 2 four.
pub fn steps_until_all_end(ddp: &Ddp, model: &Branchy) -> usize {
    let device = Device::flex().autodiff();
    // Rank 0 has no data at all: its first step shows no order of gradients.
    let batches = 2 * ddp.group().rank();
    let mut steps = 0;
    loop {
        let samples = if steps < batches { 3 } else { 0 };
        let step = ddp.begin(samples).unwrap();
        if samples > 0 {
            let watched = step.with_hooks(model, samples);
            drop(watched.loss(rows(3, &device), true).mean().backward());
        }
        match step.finish(model) {
            Ok(synced) => {
                let having = [1, 2].into_iter().filter(|rank| steps < 2 * rank).count();
                assert_eq!(synced.samples, 3 * having as u64);
                let expected = all_values(model, &whole(model, 3, true));
                let found = all_values(model, &synced.gradients);
                assert_equal_within_rounding(&found, &expected);
            }
            Err(DdpError::NoSamples) => break,
            Err(error) => panic!("{error}"),
        }
        steps += 1;
    }
    ddp.group().barrier().wait().unwrap();
    steps
}
