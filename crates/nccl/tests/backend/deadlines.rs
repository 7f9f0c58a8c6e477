//! A deadline that passes becomes an error that names who is missing, and NCCL lets go of the GPU.

use std::time::{Duration, Instant};

use everburn_collectives::group::{CollectiveError, FlightState, ReduceOp};
use everburn_nccl_fake::{FakeCluster, Fault};
use everburn_tests::AssertContains;

use crate::harness::{GENEROUS, Gate, MOMENT, Meeting, SHORT, error};

#[test]
fn a_rank_that_skips_a_call_is_named_by_all() {
    let cluster = FakeCluster::new(4);
    let late = Meeting::of(4);
    let results = cluster.on_all_ranks_within(SHORT, |nccl, rank| {
        let buffer = cluster.allocate(rank, &[1f32; 8]);
        nccl.process_group().set_step(7);
        nccl.all_reduce(&buffer, ReduceOp::Sum)?.wait()?;
        let told = match rank {
            3 => None,
            _ => Some(error(nccl.all_reduce(&buffer, ReduceOp::Max)?.wait())),
        };
        // Rank 3 is there for as long as the others wait.
        late.wait();
        Ok::<_, CollectiveError>(told)
    });
    let told: Vec<_> = results.into_iter().map(Result::unwrap).collect();
    let texts: Vec<String> = told.iter().flatten().map(ToString::to_string).collect();
    assert_eq!(texts.len(), 3);
    // Who is late first tells the others.
    let whole = texts
        .iter()
        .find(|text| text.starts_with("rank ") && text.contains("for rank 3 in"));
    let whole = whole.unwrap_or_else(|| panic!("{texts:?}"));
    for part in [
        "in all_reduce(f32[8], max) of the nccl group (collective 1, step 7)",
        "check whether rank 3 still runs",
    ] {
        assert!(whole.contains(part), "{whole}");
    }
    assert!(
        texts.iter().all(|text| text.contains("rank 3")),
        "{texts:?}"
    );
}

#[test]
fn nobody_has_to_wait_for_a_deadline_to_be_kept() {
    let cluster = FakeCluster::new(2);
    let late = Meeting::of(2);
    let results = cluster.on_all_ranks_within(SHORT, |nccl, rank| {
        let told = match rank {
            0 => {
                let compute = cluster.compute_stream(0);
                let buffer = cluster.allocate(0, &[1f32]);
                let work = nccl.all_reduce(&buffer, ReduceOp::Sum)?;
                work.hold_device()?;
                // As a host that reads a loss back: it waits for the GPU, not for the work.
                let (over, ended) = std::sync::mpsc::channel();
                cluster.launch(0, compute, move || over.send(()).unwrap());
                ended
                    .recv_timeout(GENEROUS)
                    .expect("the abort frees what waits behind");
                // Before what was computed counts.
                Some(error(nccl.check()))
            }
            _ => None,
        };
        late.wait();
        Ok::<_, CollectiveError>(told)
    });
    let told = results.into_iter().find_map(Result::unwrap).unwrap();
    assert!(
        matches!(told.root_cause(), CollectiveError::Timeout { .. }),
        "{told}"
    );
}

#[test]
fn a_rank_whose_own_gpu_is_late_does_not_blame_others() {
    let cluster = FakeCluster::new(1);
    let nccl = cluster.alone_within(MOMENT);
    let compute = cluster.compute_stream(0);
    let mut gate = Gate::new();
    cluster.launch(0, compute, gate.kernel());
    let buffer = cluster.allocate(0, &[1f32]);
    let work = nccl.all_reduce(&buffer, ReduceOp::Sum).unwrap();
    let told = error(work.wait());
    assert!(matches!(&told, CollectiveError::Device { .. }), "{told}");
    let text = told.to_string();
    text.assert_contains(["all_reduce(f32[1], sum) (collective 0, step 0) failed after"]);
    text.assert_contains(["this rank's own GPU has not come to it"]);
    gate.open();
}

#[test]
fn a_launch_that_never_gets_on_the_stream_has_a_deadline() {
    let cluster = FakeCluster::new(1);
    let nccl = cluster.alone_within(MOMENT);
    cluster.inject(0, Fault::LaunchTakes(None));
    let buffer = cluster.allocate(0, &[1f32]);
    let told = error(nccl.all_reduce(&buffer, ReduceOp::Sum));
    assert!(matches!(&told, CollectiveError::Device { .. }), "{told}");
    let again = error(nccl.all_reduce(&buffer, ReduceOp::Sum));
    assert!(
        matches!(&again, CollectiveError::Poisoned { .. }),
        "{again}"
    );
}

#[test]
fn whoever_issues_after_a_call_that_does_not_return_waits_no_longer_than_the_deadline() {
    let cluster = FakeCluster::new(1);
    let nccl = cluster.alone_within(MOMENT);
    cluster.inject(0, Fault::EnqueueHangs);
    let (sender, told) = std::sync::mpsc::channel();
    // One of them is in the call of NCCL, and the other waits for its turn.
    for _ in 0..2 {
        let (nccl, sender) = (nccl.clone(), sender.clone());
        let buffer = cluster.allocate(0, &[1f32]);
        std::thread::spawn(move || {
            // The test may have ended.
            let _ = sender.send(nccl.all_reduce(&buffer, ReduceOp::Sum));
        });
    }
    let told = error(told.recv_timeout(GENEROUS).expect("it has a deadline"));
    let text = told.to_string();
    assert!(text.contains("NCCL has not come back from"), "{text}");
}

#[test]
fn ranks_that_call_different_things_are_named_with_their_calls() {
    let cluster = FakeCluster::new(3);
    let results = cluster.on_all_ranks_within(SHORT, |nccl, rank| {
        let buffer = cluster.allocate(rank, &vec![1f32; 4 + rank / 2]);
        nccl.all_reduce(&buffer, ReduceOp::Sum)?.wait()
    });
    let mut mismatches = 0;
    for told in results {
        let told = error(told);
        let root = told.root_cause();
        mismatches += usize::from(matches!(root, CollectiveError::Mismatch { .. }));
        told.to_string().assert_contains([
            "collective 0 does not match",
            "ranks 0, 1 called all_reduce(f32[4], sum); rank 2 called all_reduce(f32[5], sum)",
        ]);
    }
    assert!(mismatches > 0);
}

#[test]
fn ranks_that_have_all_come_blame_the_gpus() {
    let cluster = FakeCluster::new(2);
    cluster.inject(1, Fault::LaunchTakes(None));
    let results = cluster.on_all_ranks_within(SHORT, |nccl, rank| {
        let buffer = cluster.allocate(rank, &[1f32]);
        nccl.all_reduce(&buffer, ReduceOp::Sum)?.wait()
    });
    for told in results {
        let text = error(told).to_string();
        text.assert_contains(["all ranks have called it", "nvidia-smi topo -m"]);
    }
}

#[test]
fn what_a_rank_waits_for_is_in_the_flight_record_of_its_process_group() {
    let cluster = FakeCluster::new(2);
    let (over, looked) = (Meeting::of(2), Meeting::of(2));
    cluster.on_all_ranks(|nccl, rank| {
        let buffer = cluster.allocate(rank, &[1f32; 2]);
        let host = nccl.process_group();
        let newest = || host.flight_record().pop().expect("the operation");
        host.set_step(3);
        if rank == 0 {
            let work = nccl.all_reduce(&buffer, ReduceOp::Sum).unwrap();
            let deadline = Instant::now() + GENEROUS;
            while newest().state != FlightState::Running {
                assert!(Instant::now() < deadline, "{}", newest());
                std::thread::yield_now();
            }
            let entry = newest();
            assert_eq!(entry.group_name.as_deref(), Some("nccl"));
            assert_eq!((entry.step, entry.bytes), (3, Some(8)));
            assert_eq!(entry.waiting_for, [1]);
            looked.wait();
            work.wait().unwrap();
        } else {
            looked.wait();
            nccl.all_reduce(&buffer, ReduceOp::Sum)
                .unwrap()
                .wait()
                .unwrap();
        }
        assert_eq!(newest().state, FlightState::Done);
        over.wait();
    });
}

#[test]
fn turns_that_come_late_do_not_count_as_late() {
    // Twenty operations of which each takes a part of the deadline, and all together more than it.
    let timeout = Duration::from_secs(2);
    let cluster = FakeCluster::new(1);
    let nccl = cluster.alone_within(timeout);
    let compute = cluster.compute_stream(0);
    let buffer = cluster.allocate(0, &[1f32]);
    let mut works = Vec::new();
    for _ in 0..20 {
        // A kernel that computes for a while.
        cluster.launch(0, compute, move || std::thread::sleep(timeout / 15));
        works.push(nccl.all_reduce(&buffer, ReduceOp::Sum).unwrap());
    }
    for work in works.into_iter().rev() {
        work.wait().unwrap();
    }
}
