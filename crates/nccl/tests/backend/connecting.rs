//! How ranks are connected, and what is said when they are not.

use std::time::Duration;

use everburn_collectives::group::{CollectiveError, GroupOptions, ProcessGroup};
use everburn_nccl::Status;
use everburn_nccl_fake::{FakeCluster, Fault};
use everburn_tests::{AssertContains, in_parallel};

use crate::harness::{GENEROUS, Meeting, SHORT, error};

/// Connects these ranks; the result of each.
fn connect(
    cluster: &FakeCluster,
    ranks: &[usize],
    timeout: Duration,
) -> Vec<Result<(), CollectiveError>> {
    let groups = cluster.process_groups(timeout);
    in_parallel(ranks, |rank| {
        cluster.connect(*rank, &groups[*rank]).map(|_| ())
    })
}

#[test]
fn ranks_that_do_not_come_are_named_by_all_who_did() {
    let cluster = FakeCluster::new(4);
    for told in connect(&cluster, &[0, 2], SHORT) {
        let told = error(told);
        told.to_string().assert_contains(["ranks 1, 3 in"]);
    }
}

#[test]
fn errors_name_ranks_of_the_job() {
    let cluster = FakeCluster::new(3);
    cluster.inject(1, Fault::EnqueueFails(Status::InvalidArgument));
    let worlds = cluster.process_groups(GENEROUS);
    let told = in_parallel(worlds, |world| {
        // Ranks 1 and 2 of the job are a group of their own.
        let pair = world.subgroup(&[1, 2]).unwrap()?;
        let nccl = cluster.connect(world.rank(), &pair).unwrap();
        pair.barrier().wait().unwrap();
        let buffer = cluster.allocate(world.rank(), &[1f32]);
        let op = everburn_collectives::group::ReduceOp::Sum;
        let told = nccl
            .all_reduce(&buffer, op)
            .and_then(everburn_nccl::Work::wait);
        Some(error(told))
    });
    let text = told[1].as_ref().unwrap().to_string();
    assert!(
        text.starts_with("rank 1: all_reduce(f32[1], sum)"),
        "{text}"
    );
    let other = told[2].as_ref().unwrap();
    assert!(
        matches!(other.root_cause(), CollectiveError::Aborted { by: 1, .. }),
        "{other}"
    );
}

#[test]
fn an_initialisation_that_never_ends_becomes_an_error_on_all_ranks() {
    let cluster = FakeCluster::new(2);
    cluster.inject(1, Fault::InitHangs);
    for told in connect(&cluster, &[0, 1], SHORT) {
        // The first that is late aborts the other.
        let text = error(told).to_string();
        text.assert_contains(["NCCL has not connected them", "NCCL_SOCKET_IFNAME"]);
    }
}

#[test]
fn a_rank_whose_nccl_refuses_is_named_by_the_others() {
    let cluster = FakeCluster::new(4);
    cluster.inject(2, Fault::InitFails(Status::UnhandledCudaError));
    let told = connect(&cluster, &[0, 1, 2, 3], GENEROUS);
    for (rank, told) in told.into_iter().enumerate() {
        let told = error(told);
        match rank {
            2 => {
                let text = told.to_string();
                text.assert_contains(["rank 2: connect(nccl) (collective 0, step 0) failed after"]);
                text.assert_contains(["ncclUnhandledCudaError (as the fake was told)"]);
            }
            _ => assert!(
                matches!(told.root_cause(), CollectiveError::Aborted { by: 2, .. }),
                "rank {rank}: {told}"
            ),
        }
    }
}

#[test]
fn what_a_rank_has_not_is_named_by_all_and_the_process_group_continues() {
    let cases = [
        (
            0,
            Fault::NoUniqueId(Status::SystemError),
            "rank 0: NCCL answered ncclSystemError (as the fake was told); check shared memory",
        ),
        (
            3,
            Fault::Version(21805),
            "rank 0 has NCCL 2.21.5, rank 3 has NCCL 2.18.5; install the same",
        ),
        (
            3,
            Fault::SameGpu(1),
            "ranks 1 and 3 are both on the GPU FAKE-1",
        ),
    ];
    for (rank, fault, expected) in cases {
        let cluster = FakeCluster::new(4);
        cluster.inject(rank, fault);
        let groups = cluster.process_groups(GENEROUS);
        in_parallel(groups, |group| {
            let told = error(cluster.connect(group.rank(), &group));
            assert!(matches!(&told, CollectiveError::NoPath { .. }), "{told}");
            told.to_string().assert_contains([expected]);
            group.barrier().wait().unwrap();
        });
    }
}

#[test]
fn a_group_is_connected_again_after_its_backend_was_left() {
    let cluster = FakeCluster::new(2);
    let over = Meeting::of(2);
    let results = cluster.on_all_ranks(|first, rank| {
        let host = first.process_group().clone();
        drop(first);
        let again = cluster.connect(rank, &host)?;
        again.check()?;
        over.wait();
        Ok::<_, CollectiveError>(())
    });
    results.into_iter().for_each(|result| result.unwrap());
}

#[test]
fn the_end_of_the_job_ends_the_wait_for_others() {
    let cluster = FakeCluster::new(2);
    // A deadline that the test would not live to see.
    let mut groups = ProcessGroup::over_threads(
        2,
        GroupOptions {
            timeout: Some(Duration::from_secs(3600)),
            ..GroupOptions::default()
        },
    );
    let (other, own) = (groups.pop().unwrap(), groups.pop().unwrap());
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| error(cluster.connect(0, &own)));
        other.sever();
        let told = connecting.join().unwrap();
        assert!(
            matches!(told.root_cause(), CollectiveError::PeerLost { peer: 1, .. }),
            "{told}"
        );
    });
}
