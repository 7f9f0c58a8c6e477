//! `compare_calls`: who calls something else is told what each called, before NCCL waits for ever.

use everburn_collectives::group::ReduceOp;
use everburn_nccl::fake::FakeCluster;
use everburn_nccl::{After, NcclConfig, NcclError};

use crate::harness::{Meeting, SHORT, error};

#[test]
fn all_ranks_are_told_what_each_called() {
    let cluster = FakeCluster::new(4);
    let config = |rank| NcclConfig {
        compare_calls: true,
        ..cluster.config(rank)
    };
    let results = cluster.on_ranks_of(config, |group, rank| {
        let buffer = cluster.allocate(rank, &[1f32; 4]);
        for _ in 0..3 {
            group
                .all_reduce(&buffer, ReduceOp::Sum, After::Nothing)?
                .wait()?;
        }
        let part = buffer.slice(0..if rank == 2 { 3 } else { 4 })?;
        group
            .all_reduce(&part, ReduceOp::Sum, After::Nothing)?
            .wait()
    });
    for (rank, told) in results.into_iter().enumerate() {
        let told = error(told);
        let NcclError::Mismatch {
            calls, sequence: 3, ..
        } = told.root_cause()
        else {
            panic!("rank {rank}: {told}");
        };
        let called: Vec<_> = calls
            .iter()
            .map(|call| call.call.as_deref().unwrap())
            .collect();
        let sum = "all_reduce(f32[4], sum)";
        assert_eq!(called, [sum, sum, "all_reduce(f32[3], sum)", sum]);
    }
}

#[test]
fn who_calls_nothing_is_named() {
    let cluster = FakeCluster::new(2);
    let there = Meeting::of(2);
    let config = |rank| NcclConfig {
        compare_calls: true,
        timeout: SHORT,
        ..cluster.config(rank)
    };
    let results = cluster.on_ranks_of(config, |group, rank| {
        let buffer = cluster.allocate(rank, &[1f32; 4]);
        let told = (rank == 0).then(|| error(group.broadcast(&buffer, 0, After::Nothing)));
        there.wait();
        told
    });
    let told = results.into_iter().flatten().next().unwrap().to_string();
    assert!(
        told.contains("rank 0 called broadcast(f32[4], root 0); rank 1 called nothing in time")
    );
}

#[test]
fn batches_and_messages_that_go_together_pass() {
    let cluster = FakeCluster::new(2);
    let config = |rank| NcclConfig {
        compare_calls: true,
        ..cluster.config(rank)
    };
    let results = cluster.on_ranks_of(config, |group, rank| {
        let buffer = cluster.allocate(rank, &[1f32; 4]);
        let message = cluster.allocate(rank, &[rank as u8]);
        for _ in 0..3 {
            let mut batch = group.batch();
            batch.all_reduce(&buffer, ReduceOp::Sum);
            match rank {
                0 => batch.send(&message, 1),
                _ => batch.recv(&message, 0),
            };
            batch.issue(After::Nothing)?.wait()?;
        }
        Ok::<_, NcclError>(cluster.read::<f32>(&buffer))
    });
    for buffer in results {
        assert_eq!(buffer.unwrap(), [8.0; 4]);
    }
    // What was compared is not kept.
    let store = cluster.store();
    let key = |sequence: usize| format!("everburn/nccl/world/0/calls/{sequence}/0");
    assert!(!store.check(&[&key(0)]).unwrap());
    assert!(store.check(&[&key(2)]).unwrap());
}
