//! What ends a step, and the errors of its ranks.

use std::time::Duration;

use burn::prelude::*;
use everburn_collectives::group::{CollectiveError, GroupOptions};
use everburn_distributed::DdpError;
use everburn_nccl::Status;
use everburn_nccl_fake::Fault;

use super::ways::{Rank, WAYS, Way, on_ranks, on_ranks_with};
use crate::models::rows;
use crate::steps::{overlapped, small_buckets};

/// A deadline that is meant to pass.
const SHORT: Duration = Duration::from_secs(4);

/// No test waits as long as this.
const LONG: Duration = Duration::from_secs(60);

fn cause(error: &DdpError) -> &CollectiveError {
    match error {
        DdpError::Collective(error) => error.root_cause(),
        other => panic!("{other}"),
    }
}

#[test]
fn a_step_that_is_given_up_ends_the_others_step() {
    for way in WAYS {
        let results = on_ranks(3, move |rank| {
            let (ddp, model) = rank.ddp(way, small_buckets()).unwrap();
            overlapped(&ddp, &model, 6, 1, true).unwrap();
            ddp.settle().unwrap();
            rank.group.barrier().wait().unwrap();
            if rank.number() == 2 {
                drop(ddp.begin(1).unwrap());
                return String::new();
            }
            let error = overlapped(&ddp, &model, 6, 1, true).unwrap_err();
            error.to_string()
        });
        for error in &results[..2] {
            assert!(
                error.contains("rank 2 gave the step up"),
                "{way:?}: {error}"
            );
        }
    }
}

#[test]
fn a_failure_of_nccl_ends_the_process_group_too_with_the_step() {
    let results = on_ranks(2, |rank| {
        let (ddp, model) = rank.ddp(Way::Nccl, small_buckets()).unwrap();
        overlapped(&ddp, &model, 4, 1, true).unwrap();
        ddp.settle().unwrap();
        rank.group.barrier().wait().unwrap();
        rank.group.set_step(12);
        if rank.number() == 1 {
            rank.cluster
                .inject(1, Fault::EnqueueFails(Status::SystemError));
        }
        let error = (0..2).find_map(|_| overlapped(&ddp, &model, 4, 1, true).err());
        let error = error.expect("rank 1 cannot go on").to_string();
        (error, rank.group.failure().is_some())
    });
    assert!(
        results[1].0.contains("NCCL answered ncclSystemError"),
        "{}",
        results[1].0
    );
    assert!(results[0].0.contains("rank 1"), "{}", results[0].0);
    assert!(results.iter().all(|(_, failed)| *failed));
}

#[test]
fn a_rank_that_does_not_come_is_named_with_the_step() {
    let options = GroupOptions {
        timeout: Some(SHORT),
        ..GroupOptions::default()
    };
    let results = on_ranks_with(2, options, |rank| {
        let number = rank.number();
        let (ddp, model) = rank.ddp(Way::NcclAndHostWaits, small_buckets()).unwrap();
        overlapped(&ddp, &model, 4, 1, true).unwrap();
        rank.group.barrier().wait().unwrap();
        rank.group.set_step(5);
        let step = ddp.begin(2).unwrap();
        if number == 1 {
            // It has told how many samples it has, and computes for ever.
            let ended = wait_for_failure(&rank);
            step.give_up("it was too slow");
            return ended;
        }
        let watched = step.with_hooks(&model, 2);
        let mine = rows(2, &Device::flex().autodiff());
        drop(watched.loss(mine, true).mean().backward());
        // The parameter that nobody uses is known by an answer of all, which does not come here.
        let error = step.finish(&model).unwrap_err();
        assert!(
            matches!(
                cause(&error),
                CollectiveError::Timeout { .. } | CollectiveError::Aborted { .. }
            ),
            "{error}"
        );
        error.to_string()
    });
    assert!(results[0].contains("rank 1"), "{}", results[0]);
    assert!(results[0].contains("step 5"), "{}", results[0]);
}

/// What the process group is told.
fn wait_for_failure(rank: &Rank) -> String {
    // No message comes: the wait ends with the group.
    let never = rank.group.recv::<u8>(0, 77).wait_within(LONG);
    never.unwrap_err().to_string()
}
