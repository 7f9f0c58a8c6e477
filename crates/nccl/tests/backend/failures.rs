//! One rank's failure reaches the others, and a group that has failed says so.

use std::sync::Arc;
use std::time::Instant;

use everburn_collectives::group::{CollectiveError, ReduceOp};
use everburn_nccl::{NcclBackend, Status, Work};
use everburn_nccl_fake::{FakeCluster, Fault};
use everburn_tests::AssertContains;

use crate::harness::{GENEROUS, MOMENT, Meeting, error};

/// All ranks but `last` wait in a collective; `last` does `deed`. Returns the errors of the others.
fn others_are_told(
    cluster: &FakeCluster,
    size: usize,
    deed: impl Fn(Arc<NcclBackend>) + Sync,
) -> Vec<CollectiveError> {
    let last = size - 1;
    let connected = Meeting::of(size);
    let results = cluster.on_all_ranks(|nccl, rank| {
        connected.wait();
        if rank == last {
            deed(nccl);
            return None;
        }
        let buffer = cluster.allocate(rank, &[1f32; 16]);
        let work = nccl.all_reduce(&buffer, ReduceOp::Sum);
        Some(error(work.and_then(Work::wait)))
    });
    results.into_iter().flatten().collect()
}

#[test]
fn a_rank_that_gives_up_ends_all_at_once_with_its_reason() {
    for size in [2, 4] {
        let cluster = FakeCluster::new(size);
        let told = others_are_told(&cluster, size, |nccl| {
            nccl.process_group().abort("the loss is not a number");
            let own = error(nccl.check()).to_string();
            own.assert_contains(["the loss is not a number"]);
        });
        assert_eq!(told.len(), size - 1);
        for told in told {
            let root = told.root_cause();
            assert!(
                matches!(root, CollectiveError::Aborted { by, .. } if *by == size - 1),
                "{told}"
            );
            told.to_string()
                .assert_contains(["the loss is not a number"]);
        }
    }
}

#[test]
fn a_rank_that_panics_ends_all() {
    let cluster = FakeCluster::new(2);
    let told = others_are_told(&cluster, 2, |nccl| {
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _nccl = nccl;
            // Without the message of a panic, which a test that passes should not print.
            std::panic::resume_unwind(Box::new(()));
        }));
        assert!(panicked.is_err());
    });
    told[0]
        .to_string()
        .assert_contains(["this rank has panicked"]);
}

#[test]
fn a_rank_that_is_killed_is_named_by_its_connection() {
    // Whether NCCL notices it or not.
    for noticed in [true, false] {
        let cluster = FakeCluster::new(4);
        let told = others_are_told(&cluster, 4, |nccl| {
            cluster.kill(3, noticed);
            nccl.process_group().sever();
        });
        assert_eq!(told.len(), 3);
        for told in &told {
            assert!(
                matches!(told.root_cause(), CollectiveError::PeerLost { peer: 3, .. }),
                "{told}"
            );
        }
    }
}

#[test]
fn use_after_an_abort_says_why_at_once() {
    let cluster = FakeCluster::new(1);
    let nccl = cluster.alone();
    let buffer = cluster.allocate(0, &[1f32]);
    let before = nccl.all_reduce(&buffer, ReduceOp::Sum).unwrap();
    nccl.process_group().abort("enough");
    let calls = [
        nccl.all_reduce(&buffer, ReduceOp::Sum).map(|_| ()),
        nccl.check(),
        nccl.synchronize(),
        before.hold_device(),
        before.wait(),
    ];
    for told in calls {
        let told = error(told);
        told.to_string().assert_contains(["enough"]);
        assert!(
            matches!(told.root_cause(), CollectiveError::Aborted { by: 0, .. }),
            "{told}"
        );
    }
}

#[test]
fn nccls_refusal_of_an_operation_ends_all_ranks() {
    let cluster = FakeCluster::new(2);
    cluster.inject(1, Fault::EnqueueFails(Status::InvalidArgument));
    let results = cluster.on_all_ranks(|nccl, rank| {
        let buffer = cluster.allocate(rank, &[1f32]);
        nccl.process_group().set_step(3);
        nccl.all_reduce(&buffer, ReduceOp::Sum)?.wait()
    });
    let told: Vec<_> = results.into_iter().map(error).collect();
    let text = told[1].to_string();
    assert!(
        text.starts_with("rank 1: all_reduce(f32[1], sum) (collective 0, step 3) failed after"),
        "{text}"
    );
    text.assert_contains(["NCCL answered ncclInvalidArgument (as the fake was told); check that"]);
    assert!(
        matches!(told[0].root_cause(), CollectiveError::Aborted { by: 1, .. }),
        "{}",
        told[0]
    );
}

#[test]
fn a_failed_gpu_is_told_with_cudas_name_for_it() {
    let cluster = FakeCluster::new(2);
    let ready = Meeting::of(2);
    let results = cluster.on_all_ranks(|nccl, rank| {
        let buffer = cluster.allocate(rank, &[1f32]);
        ready.wait();
        if rank == 1 {
            cluster.inject(1, Fault::GpuFails);
        }
        nccl.all_reduce(&buffer, ReduceOp::Sum)?.wait()?;
        // Rank 0's may be over before it hears of it.
        loop {
            nccl.check()?;
            std::thread::yield_now();
        }
        #[allow(unreachable_code)]
        Ok::<(), CollectiveError>(())
    });
    let told: Vec<_> = results.into_iter().map(error).collect();
    let text = told[1].to_string();
    text.assert_contains(["CUDA_ERROR_ILLEGAL_ADDRESS (error 700)"]);
    assert!(
        matches!(told[0].root_cause(), CollectiveError::Aborted { by: 1, .. }),
        "{}",
        told[0]
    );
}

#[test]
fn an_abort_that_hangs_holds_nobody_for_ever() {
    let cluster = FakeCluster::new(1);
    cluster.inject(0, Fault::AbortHangs);
    let nccl = cluster.alone_within(MOMENT);
    nccl.process_group().abort("enough");
    assert!(error(nccl.check()).to_string().contains("enough"));
}

#[test]
fn the_process_group_and_nccl_fail_together() {
    let cluster = FakeCluster::new(2);
    let ready = Meeting::of(2);
    cluster.on_all_ranks(|nccl, rank| {
        let host = nccl.process_group().clone();
        let buffer = cluster.allocate(rank, &[1f32]);
        ready.wait();
        if rank == 1 {
            cluster.inject(1, Fault::AsyncError(Status::UnhandledCudaError));
        }
        let work = nccl.all_reduce(&buffer, ReduceOp::Sum);
        let told = work.and_then(Work::wait);
        // That of rank 0 may be over before it hears of it.
        let noticed = host.recv::<u8>(1 - rank, 0).wait().unwrap_err();
        match rank {
            1 => {
                let told = error(told);
                assert!(
                    matches!(told.root_cause(), CollectiveError::Device { .. }),
                    "{told}"
                );
                assert!(matches!(
                    noticed.root_cause(),
                    CollectiveError::Device { .. }
                ));
            }
            _ => assert!(
                matches!(noticed.root_cause(), CollectiveError::Aborted { by: 1, .. }),
                "{noticed}"
            ),
        }
        let reason = host.failure().unwrap().reason;
        reason.assert_contains(["ncclUnhandledCudaError"]);
        // NCCL hears of it from the process group.
        let deadline = Instant::now() + GENEROUS;
        while nccl.check().is_ok() {
            assert!(Instant::now() < deadline, "{reason}");
            std::thread::yield_now();
        }
    });
}
