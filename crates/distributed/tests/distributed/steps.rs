//! One step, overlapped, and what to compare it with.

use burn::module::Param;
use burn::nn::Linear;
use burn::optim::GradientsParams;
use burn::prelude::*;
use everburn_collectives::group::ProcessGroup;
use everburn_distributed::{Ddp, DdpConfig, DdpError, SyncedGradients, share_of};

use crate::models::{Branchy, assert_close, gradient, rows};

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
    let device = Device::flex().autodiff();
    let loss = model.loss(rows(samples, &device), take_branch).mean();
    GradientsParams::from_grads(loss.backward(), model)
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
