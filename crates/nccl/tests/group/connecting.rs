//! How ranks become a group, and what is said when they do not.

use std::sync::Arc;
use std::time::Duration;

use everburn_collectives::group::{CollectiveError, GroupFailure};
use everburn_nccl::{NcclConfig, NcclError, Status};
use everburn_nccl_fake::{FakeCluster, Fault};
use everburn_tests::AssertContains;

use crate::harness::{error, hurried, hurried_alone};

/// Connects these ranks with `config`; what each is told.
fn connect(
    cluster: &FakeCluster,
    ranks: &[usize],
    config: impl Fn(usize) -> NcclConfig + Sync,
) -> Vec<Result<(), NcclError>> {
    std::thread::scope(|scope| {
        let config = &config;
        let start = |rank: &usize| {
            let rank = *rank;
            scope.spawn(move || cluster.connect(rank, config(rank), None).map(|_| ()))
        };
        let threads: Vec<_> = ranks.iter().map(start).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    })
}

#[test]
fn ranks_that_do_not_come_are_named_by_all_who_did() {
    let cluster = FakeCluster::new(4);
    for told in connect(&cluster, &[0, 2], |rank| hurried(&cluster, rank)) {
        let told = error(told);
        assert!(
            matches!(&told, NcclError::Incomplete { missing, world_size: 4, .. } if *missing == [1, 3]),
            "{told}"
        );
        assert!(
            told.to_string()
                .contains("for ranks 1, 3 to join the NCCL group `world`")
        );
    }
}

#[test]
fn errors_name_ranks_of_the_job() {
    let cluster = FakeCluster::new(2);
    let config = NcclConfig {
        job_ranks: vec![5, 7],
        ..hurried_alone(&cluster, 0)
    };
    let told = error(cluster.connect(0, config, None));
    assert!(told.to_string().starts_with("rank 5 of 2 waited"), "{told}");
    assert!(
        matches!(&told, NcclError::Incomplete { missing, .. } if *missing == [7]),
        "{told}"
    );
}

#[test]
fn an_initialisation_that_never_ends_becomes_an_error_on_all_ranks() {
    let cluster = FakeCluster::new(2);
    cluster.inject(1, Fault::InitHangs);
    for told in connect(&cluster, &[0, 1], |rank| hurried(&cluster, rank)) {
        let text = error(told).to_string();
        // Whoever is late first tells the other.
        assert!(text.contains("NCCL has not connected them"), "{text}");
        assert!(text.contains("NCCL_SOCKET_IFNAME"), "{text}");
    }
}

#[test]
fn a_rank_whose_nccl_refuses_is_named_by_the_others() {
    let cluster = FakeCluster::new(4);
    cluster.inject(2, Fault::InitFails(Status::UnhandledCudaError));
    let told = connect(&cluster, &[0, 1, 2, 3], |rank| cluster.config(rank));
    for (rank, told) in told.into_iter().enumerate() {
        let told = error(told);
        match rank {
            2 => {
                let text = told.to_string();
                text.assert_contains(["rank 2: NCCL ended connect(group `world`)"]);
                text.assert_contains(["ncclUnhandledCudaError (as the fake was told)"]);
            }
            _ => assert!(
                matches!(
                    told.root_cause(),
                    NcclError::Group(CollectiveError::Aborted { by: 2, .. })
                ),
                "rank {rank}: {told}"
            ),
        }
    }
}

#[test]
fn rank_0_without_an_id_tells_all() {
    let cluster = FakeCluster::new(2);
    cluster.inject(0, Fault::NoUniqueId(Status::SystemError));
    let told = connect(&cluster, &[0, 1], |rank| cluster.config(rank));
    for told in told {
        let text = error(told).to_string();
        text.assert_contains(["ncclSystemError", "/dev/shm"]);
    }
}

#[test]
fn ranks_with_another_nccl_or_the_same_gpu_are_refused_by_name() {
    let cases = [
        (
            Fault::Version(21805),
            "rank 0 has NCCL 2.21.5, rank 3 has NCCL 2.18.5; install the same",
        ),
        (
            Fault::SameGpu(1),
            "ranks 1 and 3 are both on the GPU FAKE-1",
        ),
    ];
    for (fault, expected) in cases {
        let cluster = FakeCluster::new(4);
        cluster.inject(3, fault);
        for told in connect(&cluster, &[0, 1, 2, 3], |rank| cluster.config(rank)) {
            let told = error(told);
            assert!(matches!(&told, NcclError::Refused { .. }), "{told}");
            assert!(told.to_string().contains(expected), "{told}");
        }
    }
}

#[test]
fn a_second_process_as_the_same_rank_is_refused_and_the_group_goes_on() {
    let cluster = FakeCluster::new(2);
    let prefix = "everburn/nccl/world/0/here/1";
    let other = br#"{"process":1,"nccl":22105,"gpu":"FAKE-1"}"#;
    cluster.store().set(prefix, other).unwrap();
    let told = error(cluster.connect(1, hurried_alone(&cluster, 1), None));
    assert!(
        told.to_string()
            .contains("another process has joined as rank 1"),
        "{told}"
    );
}

#[test]
fn a_generation_that_has_been_is_refused_and_the_next_is_a_new_group() {
    let cluster = FakeCluster::new(2);
    let generation = |generation| {
        let cluster = &cluster;
        move |rank| NcclConfig {
            generation,
            ..cluster.config(rank)
        }
    };
    connect(&cluster, &[0, 1], generation(0))
        .into_iter()
        .for_each(|told| told.unwrap());
    connect(&cluster, &[0, 1], generation(1))
        .into_iter()
        .for_each(|told| told.unwrap());
    // These two are the same processes as before, so what they say of themselves is the same.
    let told = error(connect(&cluster, &[0, 1], generation(0)).remove(0));
    assert!(told.to_string().contains("has been there before"), "{told}");
}

#[test]
fn what_is_in_the_store_is_not_believed() {
    for verdict in [
        "",
        "{}",
        r#"{"connect":"zz"}"#,
        r#"{"missing":[99999999]}"#,
        "\u{7f}",
    ] {
        let cluster = FakeCluster::new(2);
        cluster
            .store()
            .set("everburn/nccl/world/0/verdict", verdict.as_bytes())
            .unwrap();
        let told = error(cluster.connect(1, hurried_alone(&cluster, 1), None));
        let refused = matches!(
            &told,
            NcclError::Refused { .. } | NcclError::Incomplete { .. }
        );
        assert!(refused, "{verdict}: {told}");
    }
    let cluster = FakeCluster::new(2);
    cluster
        .store()
        .set("everburn/nccl/world/0/here/1", &[0xff; 100_000])
        .unwrap();
    let told = error(cluster.connect(0, hurried_alone(&cluster, 0), None));
    assert!(
        told.to_string()
            .contains("the settings of rank 1 cannot be read"),
        "{told}"
    );
}

#[test]
fn the_end_of_the_job_ends_the_wait_for_others() {
    struct Over;
    impl everburn_nccl::FailureMonitor for Over {
        fn ended(&self) -> Option<GroupFailure> {
            let reason = "it was killed".to_owned();
            Some(GroupFailure {
                by: 0,
                lost: Some(1),
                silent_machine: None,
                reason,
            })
        }
        fn failed(&self, _: &NcclError) {}
    }
    let cluster = FakeCluster::new(2);
    // A deadline that the test would not live to see.
    let config = NcclConfig {
        timeout: Duration::from_secs(3600),
        ..cluster.config(0)
    };
    let told = error(cluster.connect(0, config, Some(Arc::new(Over))));
    assert!(
        matches!(
            told.root_cause(),
            NcclError::Group(CollectiveError::PeerLost { peer: 1, .. })
        ),
        "{told}"
    );
    assert!(told.to_string().contains("it was killed"), "{told}");
}
