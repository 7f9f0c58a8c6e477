//! One rank's failure reaches the others, and a group that has failed says so.

use std::sync::{Arc, Mutex};

use everburn_collectives::group::{CollectiveError, GroupOptions, ProcessGroup, ReduceOp};
use everburn_nccl::{NcclConfig, NcclError, Status};
use everburn_nccl_fake::{FakeCluster, Fault};
use everburn_tests::AssertContains;

use crate::harness::{BEAT, Meeting, error, hurried, hurried_alone};

/// All ranks but `last` wait in a collective; `last` does `deed`. What the others are notified.
fn others_are_told(
    cluster: &FakeCluster,
    size: usize,
    deed: impl Fn(everburn_nccl::NcclGroup) + Sync,
) -> Vec<NcclError> {
    let last = size - 1;
    let connected = Meeting::of(size);
    let config = |rank| NcclConfig {
        heartbeat: BEAT,
        ..cluster.config(rank)
    };
    let results = cluster.on_ranks_of(config, |group, rank| {
        connected.wait();
        if rank == last {
            deed(group);
            return None;
        }
        let buffer = cluster.allocate(rank, &[1f32; 16]);
        let work = group.all_reduce(&buffer, ReduceOp::Sum);
        Some(error(work.and_then(everburn_nccl::Work::wait)))
    });
    results.into_iter().flatten().collect()
}

#[test]
fn a_rank_that_gives_up_ends_all_at_once_with_its_reason() {
    for size in [2, 4] {
        let cluster = FakeCluster::new(size);
        let told = others_are_told(&cluster, size, |group| {
            group.abort("the loss is not a number");
            let own = error(group.check());
            assert!(
                own.to_string().contains("the loss is not a number"),
                "{own}"
            );
        });
        assert_eq!(told.len(), size - 1);
        for told in told {
            let root = told.root_cause();
            assert!(
                matches!(root, NcclError::Group(CollectiveError::Aborted { by, .. }) if *by == size - 1),
                "{told}"
            );
            assert!(
                told.to_string().contains("the loss is not a number"),
                "{told}"
            );
        }
    }
}

#[test]
fn a_rank_that_panics_ends_all() {
    let cluster = FakeCluster::new(2);
    let told = others_are_told(&cluster, 2, |group| {
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _group = group;
            // Without the message of a panic, which a test that passes should not print.
            std::panic::resume_unwind(Box::new(()));
        }));
        assert!(panicked.is_err());
    });
    assert!(
        told[0].to_string().contains("this rank has panicked"),
        "{}",
        told[0]
    );
}

#[test]
fn a_rank_that_is_killed_between_machines_is_named_by_its_silence() {
    let cluster = FakeCluster::new(4);
    let told = others_are_told(&cluster, 4, |group| {
        group.fall_silent();
        cluster.kill(3, true);
    });
    assert_eq!(told.len(), 3);
    let first = told
        .iter()
        .find(|told| matches!(told.root_cause(), NcclError::Nccl { .. }));
    let first = first.unwrap_or_else(|| panic!("{told:?}"));
    let text = first.to_string();
    text.assert_contains(["ncclRemoteError (as the fake was told)"]);
    text.assert_contains(["rank 3 sends no heartbeats any more"]);
    assert_eq!(first.lost(), Some(3));
    for told in &told {
        assert_eq!(told.lost(), Some(3), "{told}");
    }
}

#[test]
fn a_rank_that_is_killed_unnoticed_is_found_by_the_deadline() {
    let cluster = FakeCluster::new(4);
    let config = |rank| NcclConfig {
        heartbeat: BEAT,
        ..hurried(&cluster, rank)
    };
    let connected = Meeting::of(4);
    let results = cluster.on_ranks_of(config, |group, rank| {
        let buffer = cluster.allocate(rank, &[1f32; 16]);
        connected.wait();
        if rank == 2 {
            group.fall_silent();
            cluster.kill(2, false);
            return None;
        }
        let work = group.all_reduce(&buffer, ReduceOp::Sum);
        Some(error(work.and_then(everburn_nccl::Work::wait)))
    });
    let told: Vec<NcclError> = results.into_iter().flatten().collect();
    assert_eq!(told.len(), 3);
    let is_first = |told: &&NcclError| matches!(told.root_cause(), NcclError::Group(CollectiveError::Timeout { waiting_for, .. }) if *waiting_for == [2]);
    let first = told
        .iter()
        .find(is_first)
        .unwrap_or_else(|| panic!("{told:?}"));
    let text = first.to_string();
    text.assert_contains(["rank 2 sends no heartbeats any more"]);
}

#[test]
fn use_after_an_abort_says_why_at_once() {
    let cluster = FakeCluster::new(1);
    let group = cluster.alone();
    let buffer = cluster.allocate(0, &[1f32]);
    let before = group.all_reduce(&buffer, ReduceOp::Sum).unwrap();
    group.abort("enough");
    let calls = [
        group.all_reduce(&buffer, ReduceOp::Sum).map(|_| ()),
        group.broadcast(&buffer, 0).map(|_| ()),
        group.check(),
        group.synchronize(),
        before.hold_device(),
        before.wait(),
        group.clone().destroy(),
    ];
    for told in calls {
        let told = error(told);
        assert!(told.to_string().contains("enough"), "{told}");
        assert!(
            matches!(
                told.root_cause(),
                NcclError::Group(CollectiveError::Aborted { by: 0, .. })
            ),
            "{told}"
        );
    }
}

#[test]
fn nccls_refusal_of_an_operation_ends_all_ranks() {
    let cluster = FakeCluster::new(2);
    cluster.inject(1, Fault::EnqueueFails(Status::InvalidArgument));
    let results = cluster.on_all_ranks(|group, rank| {
        let buffer = cluster.allocate(rank, &[1f32]);
        group.set_step(3);
        group.all_reduce(&buffer, ReduceOp::Sum)?.wait()
    });
    let told: Vec<_> = results.into_iter().map(error).collect();
    let text = told[1].to_string();
    assert!(text.starts_with("rank 1: NCCL ended all_reduce(f32[1], sum) (collective 0, step 3)"));
    assert!(text.contains("ncclInvalidArgument"), "{text}");
    assert!(
        matches!(
            told[0].root_cause(),
            NcclError::Group(CollectiveError::Aborted { by: 1, .. })
        ),
        "{}",
        told[0]
    );
}

#[test]
fn a_failed_gpu_is_told_with_cudas_name_for_it() {
    let cluster = FakeCluster::new(2);
    let ready = Meeting::of(2);
    let results = cluster.on_all_ranks(|group, rank| {
        let buffer = cluster.allocate(rank, &[1f32]);
        ready.wait();
        if rank == 1 {
            cluster.inject(1, Fault::GpuFails);
        }
        group.all_reduce(&buffer, ReduceOp::Sum)?.wait()?;
        // Rank 0's may be over before it hears of it.
        loop {
            group.check()?;
            std::thread::yield_now();
        }
        #[allow(unreachable_code)]
        Ok::<(), NcclError>(())
    });
    let told: Vec<_> = results.into_iter().map(error).collect();
    let text = told[1].to_string();
    text.assert_contains(["CUDA_ERROR_ILLEGAL_ADDRESS (error 700)"]);
    assert!(
        matches!(
            told[0].root_cause(),
            NcclError::Group(CollectiveError::Aborted { by: 1, .. })
        ),
        "{}",
        told[0]
    );
}

#[test]
fn an_abort_that_hangs_holds_nobody_for_ever() {
    let cluster = FakeCluster::new(1);
    cluster.inject(0, Fault::AbortHangs);
    let group = cluster
        .connect(0, hurried_alone(&cluster, 0), None)
        .unwrap();
    group.abort("enough");
    assert!(error(group.check()).to_string().contains("enough"));
}

#[test]
fn the_jobs_group_and_nccls_end_together() {
    let cluster = FakeCluster::new(2);
    let hosts = Mutex::new(ProcessGroup::over_threads(2, GroupOptions::default()));
    let host_of = |rank: usize| {
        let hosts = hosts.lock().unwrap();
        hosts
            .iter()
            .find(|host| host.rank() == rank)
            .unwrap()
            .clone()
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let run = |rank| {
            let (cluster, host) = (&cluster, host_of(rank));
            scope.spawn(move || {
                let control = Arc::new(host.clone());
                let group = cluster.connect(rank, cluster.config(rank), Some(control))?;
                let buffer = cluster.allocate(rank, &[1f32]);
                match rank {
                    // As if its process had been killed: the connections tell.
                    1 => {
                        group.clone().fall_silent();
                        host.sever();
                        Ok(None)
                    }
                    _ => {
                        let work = group.all_reduce(&buffer, ReduceOp::Sum)?;
                        // The host's group is what notices, when it is used.
                        let noticed = host.barrier().wait().unwrap_err();
                        Ok(Some((error(work.wait()), noticed)))
                    }
                }
            })
        };
        let threads = [run(0), run(1)];
        threads
            .map(|thread| thread.join().unwrap())
            .into_iter()
            .collect()
    });
    let told: Result<Vec<_>, NcclError> = results.into_iter().collect();
    let (told, noticed) = told.unwrap().into_iter().flatten().next().unwrap();
    assert!(
        matches!(noticed, CollectiveError::PeerLost { peer: 1, .. }),
        "{noticed}"
    );
    assert!(
        matches!(
            told.root_cause(),
            NcclError::Group(CollectiveError::PeerLost { peer: 1, .. })
        ),
        "{told}"
    );
}

#[test]
fn the_jobs_group_is_told_of_nccls_failure() {
    let cluster = FakeCluster::new(1);
    let host = ProcessGroup::alone(GroupOptions::default());
    let control = Arc::new(host.clone());
    let group = cluster
        .connect(0, cluster.config(0), Some(control))
        .unwrap();
    cluster.inject(0, Fault::AsyncError(Status::InternalError));
    let buffer = cluster.allocate(0, &[1f32]);
    let work = group.all_reduce(&buffer, ReduceOp::Sum);
    let told = error(work.and_then(everburn_nccl::Work::wait));
    assert!(matches!(
        told.root_cause(),
        NcclError::Nccl {
            status: Status::InternalError,
            ..
        }
    ));
    assert!(host.failure().unwrap().reason.contains("ncclInternalError"));
}
