//! How a rank leaves.

use everburn_collectives::group::{CollectiveError, ReduceOp};
use everburn_nccl_fake::{FakeCluster, Fault};
use everburn_tests::AssertContains;

use crate::harness::{MOMENT, error};

#[test]
fn leaving_waits_for_what_was_issued() {
    for size in crate::harness::SIZES {
        let cluster = FakeCluster::new(size);
        let results = cluster.on_all_ranks(|group, rank| {
            let buffer = cluster.allocate(rank, &[1f32]);
            let _ = group.all_reduce(&buffer, ReduceOp::Sum)?;
            let other = group.clone();
            group.destroy()?;
            assert_eq!(cluster.read::<f32>(&buffer), [size as f32]);
            let told = error(other.all_reduce(&buffer, ReduceOp::Sum));
            assert!(matches!(&told, CollectiveError::Destroyed { .. }), "{told}");
            assert!(matches!(
                error(other.check()),
                CollectiveError::Destroyed { .. }
            ));
            // Over the host the ranks still reach each other.
            other.process_group().barrier().wait()?;
            Ok::<_, CollectiveError>(())
        });
        results.into_iter().for_each(|result| result.unwrap());
    }
}

#[test]
fn a_rank_that_leaves_in_the_midst_tells_the_others() {
    let cluster = FakeCluster::new(2);
    let results = cluster.on_all_ranks(|group, rank| {
        let buffer = cluster.allocate(rank, &[1f32]);
        let call = match rank {
            // It waits for a message that nobody sends, and is dropped.
            0 => {
                drop(group.recv(&buffer, 1).unwrap());
                return None;
            }
            _ => group.broadcast(&buffer, 0),
        };
        Some(error(call.and_then(everburn_nccl::Work::wait)))
    });
    let told = results.into_iter().flatten().next().unwrap();
    assert!(
        matches!(told.root_cause(), CollectiveError::Aborted { by: 0, .. }),
        "{told}"
    );
    assert!(
        told.to_string()
            .contains("dropped the NCCL group while recv(f32, from 1, tag 0)"),
        "{told}"
    );
}

#[test]
fn nccl_that_does_not_finish_is_aborted() {
    let cluster = FakeCluster::new(1);
    cluster.inject(0, Fault::FinalizeHangs);
    let told = error(cluster.alone_within(MOMENT).destroy());
    assert!(matches!(&told, CollectiveError::Device { .. }), "{told}");
    let text = told.to_string();
    text.assert_contains(["destroy (collective 0, step 0) failed after"]);
    text.assert_contains(["NCCL has not come back from the call"]);
    // Dropped rather than destroyed, the process group continues, and nobody waits for ever.
    let group = cluster.alone_within(MOMENT);
    let host = group.process_group().clone();
    drop(group);
    assert_eq!(host.failure(), None);
}

#[test]
fn a_work_keeps_its_group() {
    let cluster = FakeCluster::new(2);
    let results = cluster.on_all_ranks(|group, rank| {
        let buffer = cluster.allocate(rank, &[2f32]);
        let work = group.all_reduce(&buffer, ReduceOp::Product)?;
        drop(group);
        work.wait()?;
        Ok::<_, CollectiveError>(cluster.read::<f32>(&buffer))
    });
    for buffer in results {
        assert_eq!(buffer.unwrap(), [4.0]);
    }
}
