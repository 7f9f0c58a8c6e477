//! How a rank leaves.

use std::sync::Arc;

use everburn_collectives::group::{CollectiveError, ReduceOp};
use everburn_nccl_fake::{FakeCluster, Fault};

use crate::harness::{MOMENT, error};

#[test]
fn leaving_waits_for_what_was_issued_and_the_process_group_continues() {
    let cluster = FakeCluster::new(1);
    let nccl = cluster.alone();
    let host = nccl.process_group().clone();
    let owner = Arc::new(());
    let buffer = cluster.allocate_for(0, &[1f32], owner.clone());
    drop(nccl.all_reduce(&buffer, ReduceOp::Sum).unwrap());
    drop((buffer, nccl));
    assert_eq!(Arc::strong_count(&owner), 1);
    host.barrier().wait().unwrap();
}

#[test]
fn a_rank_that_leaves_in_the_midst_tells_the_others() {
    let cluster = FakeCluster::new(2);
    let results = cluster.on_all_ranks(|nccl, rank| {
        let buffer = cluster.allocate(rank, &[1f32]);
        if rank == 0 {
            // The other rank never comes to it, and it is dropped.
            drop(nccl.all_reduce(&buffer, ReduceOp::Sum).unwrap());
            return None;
        }
        // No message comes: the wait ends with the group.
        let message = nccl.process_group().recv::<u8>(0, 0);
        Some(error(message.wait()))
    });
    let told = results.into_iter().flatten().next().unwrap();
    assert!(
        matches!(told.root_cause(), CollectiveError::Aborted { by: 0, .. }),
        "{told}"
    );
    assert!(
        told.to_string()
            .contains("dropped the NCCL backend while all_reduce(f32[1], sum)"),
        "{told}"
    );
}

#[test]
fn nccl_that_does_not_finish_is_aborted_and_the_process_group_continues() {
    let cluster = FakeCluster::new(1);
    cluster.inject(0, Fault::FinalizeHangs);
    let nccl = cluster.alone_within(MOMENT);
    let host = nccl.process_group().clone();
    drop(nccl);
    assert_eq!(host.failure(), None);
}

#[test]
fn a_work_keeps_its_backend() {
    let cluster = FakeCluster::new(2);
    let results = cluster.on_all_ranks(|nccl, rank| {
        let buffer = cluster.allocate(rank, &[2f32]);
        let work = nccl.all_reduce(&buffer, ReduceOp::Product)?;
        drop(nccl);
        work.wait()?;
        Ok::<_, CollectiveError>(cluster.read::<f32>(&buffer))
    });
    for buffer in results {
        assert_eq!(buffer.unwrap(), [4.0]);
    }
}
