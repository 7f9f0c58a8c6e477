//! What fails within a pass fails the step, with the group's own error, and nothing hangs.

use std::sync::Arc;

use burn::prelude::*;
use everburn_collectives::group::CollectiveError;
use everburn_distributed::{ModuleRanks, tensor_parallel};
use everburn_models::gpt::Positions;
use everburn_nn::{LinearConfig, TensorGroup, TensorParallel, TensorRule};

use super::model::{cut, device, gpt, loss_of, tokens};
use crate::device::ways;
use crate::ranks::{on_ranks, separate};

#[test]
fn a_rank_that_dies_between_the_passes_is_named() {
    let whole = gpt(Positions::Learned);
    on_ranks(3, |group| {
        let model = cut(&whole, &group);
        let loss = loss_of(model.forward(tokens(2, 0, &device())));
        if group.rank() == 1 {
            group.sever();
            return;
        }
        // The pass comes to its end all the same.
        drop(loss.backward());
        let error = group.barrier().wait().unwrap_err();
        let cause = error.root_cause();
        assert!(
            matches!(cause, CollectiveError::PeerLost { peer: 1, .. }),
            "{cause}"
        );
    });
}

#[test]
fn a_rank_that_dies_between_the_passes_is_named_where_sums_stay_on_their_devices() {
    let whole = gpt(Positions::Learned);
    let errors = ways::on_ranks(3, |rank| {
        let communicator = rank.communicator(ways::Way::Nccl);
        let ranks = ModuleRanks::new(&rank.group).unwrap();
        let ranks: Arc<dyn TensorGroup> = Arc::new(ranks.with_communicator(&communicator));
        let rules = whole.tensor_rules();
        let model = everburn_nn::tensor_parallel(separate(&whole), &rules, &ranks).unwrap();
        let loss = loss_of(model.forward(tokens(2, 0, &device())));
        communicator.settle().unwrap();
        rank.group.barrier().wait().unwrap();
        if rank.number() == 1 {
            rank.cluster.kill(1, false);
            rank.group.sever();
            return String::new();
        }
        // The pass comes to its end all the same.
        drop(loss.backward());
        communicator.check().unwrap_err().to_string()
    });
    for error in [&errors[0], &errors[2]] {
        assert!(error.contains("rank 1"), "{error}");
    }
}

#[test]
fn layers_in_another_order_end_the_step_on_all_ranks() {
    let linear = || LinearConfig::new(4, 4).init(&device());
    let whole = vec![linear(), linear()];
    let errors = on_ranks(2, |group| {
        let rules = [TensorRule::row("*")];
        let layers = tensor_parallel(separate(&whole), &rules, &group).unwrap();
        // The lengths agree; only the places tell.
        let _output = layers[group.rank()].forward(Tensor::<2>::ones([3, 2], &device()));
        group.barrier().wait().unwrap_err().to_string()
    });
    for error in errors {
        assert!(error.contains("forward pass of sharded layer"), "{error}");
        assert!(
            error.contains("another rank is at another layer or call"),
            "{error}"
        );
    }
}

#[test]
fn backward_passes_in_another_order_end_the_step_on_all_ranks() {
    let linear = || LinearConfig::new(4, 4).init(&device());
    let whole = vec![linear(), linear()];
    let errors = on_ranks(2, |group| {
        let rules = [TensorRule::column("*")];
        let layers = tensor_parallel(separate(&whole), &rules, &group).unwrap();
        let input = || Tensor::<2>::ones([3, 4], &device()).require_grad();
        let mut losses = layers
            .iter()
            .map(|layer| layer.forward(input()).sum())
            .collect::<Vec<_>>();
        if group.rank() == 1 {
            losses.reverse();
        }
        for loss in losses {
            drop(loss.backward());
        }
        group.barrier().wait().unwrap_err().to_string()
    });
    for error in errors {
        assert!(error.contains("backward pass of sharded layer"), "{error}");
    }
}
