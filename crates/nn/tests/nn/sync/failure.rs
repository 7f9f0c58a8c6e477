//! What cannot be returned is made known, and nothing hangs.

use std::sync::Arc;

use burn::module::Module;
use burn::nn as burns;
use burn::prelude::*;
use everburn_nn::{
    BatchNorm, BatchNormConfig, LossReduction, StatisticsGroup, SyncError, all_reduce_sum,
    synchronize_batch_norms,
};

use super::ranks::{Sums, Threads, on_ranks};
use crate::numbers::{assert_close, tensor, values};

fn attached<M: Module>(model: M, group: &Arc<Threads>) -> M {
    synchronize_batch_norms(model, Arc::clone(group) as Arc<dyn StatisticsGroup>).unwrap()
}

#[derive(Module, Debug)]
struct Two {
    first: BatchNorm,
    second: BatchNorm,
}

impl Two {
    fn new(device: &Device) -> Self {
        Self {
            first: BatchNormConfig::new(3).init(device),
            second: BatchNormConfig::new(3).init(device),
        }
    }
}

#[test]
fn a_failed_exchange_leaves_this_ranks_own_statistics() {
    let device = Device::flex().autodiff();
    let group = Threads::groups(2, LossReduction::Sum).remove(0);
    let norm = attached(BatchNormConfig::new(3).init(&device), &group);
    group.abort("rank 1 is gone");
    let input = tensor::<2>(1, [4, 3], &device);
    let alone = burns::BatchNormConfig::new(3).init(&device);
    let (ours, theirs) = (norm.forward(input.clone()), alone.forward(input));
    assert_close(&values(ours.clone()), &values(theirs));
    drop(ours.sum().backward());
    assert_eq!(group.aborted().unwrap(), "rank 1 is gone");
}

#[test]
fn a_failed_sum_is_an_error_with_its_reason() {
    let group = Threads::groups(2, LossReduction::Sum).remove(0);
    group.abort("rank 1 is gone");
    let group: Arc<dyn StatisticsGroup> = group;
    let error = all_reduce_sum(Tensor::<1>::ones([2], &Device::flex()), &group).unwrap_err();
    let reason = "rank 1 is gone".to_owned();
    assert_eq!(error, SyncError::Collective { reason });
}

#[test]
fn a_peer_that_is_lost_between_the_passes_hangs_nobody() {
    on_ranks(2, LossReduction::Sum, |group| {
        let device = Device::flex().autodiff();
        let norm = attached(BatchNormConfig::new(3).init(&device), &group);
        let input = tensor::<2>(group.rank() as u64, [4, 3], &device).require_grad();
        let output = norm.forward(input.clone());
        if group.rank() == 1 {
            group.abort("rank 1 ran out of memory");
            return;
        }
        let gradients = output.sum().backward();
        assert!(input.grad(&gradients).is_some());
        assert_eq!(group.aborted().unwrap(), "rank 1 ran out of memory");
    });
}

#[test]
fn backward_passes_in_another_order_are_found_by_all_ranks() {
    on_ranks(2, LossReduction::Sum, |group| {
        let device = Device::flex().autodiff();
        let model = attached(Two::new(&device), &group);
        let input = || tensor::<2>(group.rank() as u64, [4, 3], &device).require_grad();
        let first = model.first.forward(input()).sum();
        let second = model.second.forward(input()).sum();
        assert_eq!(group.aborted(), None);
        let order = if group.rank() == 0 {
            [first, second]
        } else {
            [second, first]
        };
        for loss in order {
            drop(loss.backward());
        }
        let reason = group.aborted().unwrap();
        assert!(
            reason.contains("backward pass of synchronised layer"),
            "{reason}"
        );
    });
}

#[test]
fn a_mismatch_that_no_host_sees_leaves_no_numbers_on_any_rank() {
    on_ranks(3, LossReduction::Sum, |group| {
        let device = Device::flex().autodiff();
        let model = synchronize_batch_norms(Two::new(&device), Sums::OnDevice.over(&group));
        let model = model.unwrap();
        let input = || tensor::<2>(group.rank() as u64, [4, 3], &device).require_grad();
        let together = model.first.forward(input());
        assert!(values(together).iter().all(|value| value.is_finite()));
        let layer = match group.rank() {
            2 => &model.second,
            _ => &model.first,
        };
        let apart = layer.forward(input());
        assert!(values(apart).iter().all(|value| value.is_nan()));
    });
}
