//! What carries the data of collectives: how it is chosen, and what happens when ranks fail in
//! the middle.

use everburn_collectives::group::{
    CollectiveError, GroupOptions, ProcessGroup, ReduceOp, TransportKind,
};
use everburn_collectives::transport::HostInfo;
use everburn_tests::{AssertContains, assert_matches};

use crate::elsewhere::{groups, on_hosts};
use crate::harness::{
    Meeting, WIRES, assert_verdict, error, in_parallel, on_all_ranks, on_every_wire, options,
    over_threads_with,
};

/// Ranks whose memory cannot be opened: no process has the number that they give.
fn unreachable(transport: TransportKind) -> Vec<ProcessGroup> {
    let options = GroupOptions {
        transport,
        ..options()
    };
    groups(3, options, |_| HostInfo {
        process: u32::MAX,
        ..HostInfo::of_this_process()
    })
}

#[test]
fn ranks_that_can_share_no_memory_use_tcp() {
    in_parallel(unreachable(TransportKind::Auto), |group| {
        for length in [1, 100_000] {
            let sum = group.all_reduce(vec![1f32; length], ReduceOp::Sum).wait();
            assert_eq!(sum.unwrap(), vec![3.0; length]);
        }
        group.destroy().unwrap();
    });
}

#[test]
fn shared_memory_that_was_asked_for_and_cannot_be_had_is_an_error_on_all_ranks() {
    let errors = in_parallel(unreachable(TransportKind::SharedMemory), |group| {
        let first = error(group.barrier().wait());
        let later = error(group.barrier().wait());
        assert_eq!(later.root_cause().to_string(), first.to_string());
        first
    });
    for error in errors {
        assert_matches!(error, CollectiveError::NoPath { .. });
        let text = error.to_string();
        text.assert_contains([
            "in barrier: rank 1 cannot share memory",
            "use `GroupOptions::transport = auto` or tcp",
        ]);
    }
    let options = GroupOptions {
        transport: TransportKind::SharedMemory,
        ..options()
    };
    let errors = in_parallel(on_hosts(&[0, 1], options), |group| {
        error(group.barrier().wait())
    });
    for error in errors {
        let text = error.to_string();
        text.assert_contains(["ranks 0 and 1 are on different machines"]);
    }
}

#[test]
fn transports_that_differ_are_named() {
    let groups = over_threads_with(&[TransportKind::Tcp, TransportKind::Auto].map(|transport| {
        GroupOptions {
            transport,
            ..options()
        }
    }));
    let errors = in_parallel(groups, |group| error(group.barrier().wait()).to_string());
    assert!(errors[0].contains("rank 1 was given the transport auto, this rank tcp"));
    assert!(errors[1].contains("rank 0 was given the transport tcp, this rank auto"));
}

#[test]
fn a_rank_that_dies_in_a_collective_is_named_by_all_survivors() {
    for wire in WIRES {
        let meeting = Meeting::of(4);
        on_all_ranks(wire, 4, options(), |group| {
            group.barrier().wait().unwrap();
            meeting.wait();
            if group.rank() == 2 {
                group.sever();
                meeting.wait();
                return;
            }
            // More than the channels hold, so that it is stuck in the middle.
            let mut values = vec![1f32; 20_000_000];
            let error = error(group.all_reduce_in_place(&mut values, ReduceOp::Sum));
            assert_matches!(error, CollectiveError::PeerLost { peer: 2, .. });
            meeting.wait();
        });
    }
}

#[test]
fn later_calls_that_differ_are_named_on_all_ranks() {
    for wire in WIRES {
        for length in [10, 3_000_000] {
            let texts = on_all_ranks(wire, 3, options(), |group| {
                group.barrier().wait().unwrap();
                let mut values = vec![0f32; length + group.rank() / 2];
                let result = group.all_reduce_in_place(&mut values, ReduceOp::Sum);
                error(result).to_string()
            });
            let other = length + 1;
            for (rank, text) in texts.iter().enumerate() {
                let expected = format!(
                    "collective 1 does not match: ranks 0, 1 called all_reduce(f32[{length}], \
                     sum); rank 2 called all_reduce(f32[{other}], sum)"
                );
                assert_verdict(text, rank, &expected);
            }
        }
    }
}

#[test]
fn works_and_calls_in_place_keep_their_order() {
    on_every_wire(3, |group| {
        for round in 0..50 {
            let length = [1, 70_000][round % 2];
            let first = group.all_reduce(vec![1i64; length], ReduceOp::Sum);
            let mut values = [group.rank() as i64];
            group
                .all_reduce_in_place(&mut values, ReduceOp::Max)
                .unwrap();
            assert!(first.is_done(), "it was issued before");
            let second = group.broadcast(vec![group.rank() as u8], 1);
            let mut other = [group.rank() as f32; 9];
            group.broadcast_in_place(&mut other, 2).unwrap();
            assert_eq!((values[0], other), (2, [2.0; 9]));
            assert_eq!(first.wait().unwrap(), vec![3; length]);
            assert_eq!(second.wait().unwrap(), [1]);
        }
        group.destroy().unwrap();
    });
}

#[test]
fn subgroups_exchange_beside_their_parent() {
    on_every_wire(4, |group| {
        let half = group.rank() / 2;
        let low = group.subgroup(&[0, 1]).unwrap();
        let high = group.subgroup(&[2, 3]).unwrap();
        let pair = low.or(high).unwrap();
        let beside: Vec<_> = (0..5)
            .map(|_| pair.all_reduce(vec![half as f32; 300_001], ReduceOp::Sum))
            .collect();
        for _ in 0..5 {
            let mut values = vec![1f32; 200_003];
            group
                .all_reduce_in_place(&mut values, ReduceOp::Sum)
                .unwrap();
            assert!(values.iter().all(|value| *value == 4.0));
        }
        for work in beside {
            let sum = work.wait().unwrap();
            assert!(sum.iter().all(|value| *value == 2.0 * half as f32));
        }
        pair.destroy().unwrap();
        group.destroy().unwrap();
    });
}
