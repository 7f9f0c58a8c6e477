//! Calls of a GPU library, whose numbers the group does not see.

use std::sync::Arc;
use std::time::{Duration, Instant};

use everburn_collectives::group::{
    Call, CollectiveError, DType, DeviceCall, FlightState, Operation, ProcessGroup, ReduceOp,
    Signature,
};
use everburn_collectives::heartbeat::{HeartbeatMonitor, HeartbeatOptions};
use everburn_collectives::store::{HashStore, SharedStore};

use crate::harness::{
    GENEROUS, Meeting, WIRES, Wire, in_parallel, on_all_ranks, on_every_wire, options,
    short_options,
};

fn all_reduce(length: u64) -> Call {
    Call::Collective(Signature {
        operation: Operation::AllReduce,
        dtype: Some(DType::F32),
        length: Some(length),
        op: Some(ReduceOp::Sum),
        root: None,
        algorithm: None,
    })
}

/// Issues `call` and waits until it fails, as one that the GPU never ends.
fn wait_in(calls: &ProcessGroup, call: Call) -> (DeviceCall, CollectiveError) {
    let call = calls.device_call(call);
    call.issue().unwrap();
    let turn = Instant::now();
    loop {
        if let Err(error) = call.waits_since(turn) {
            return (call, error);
        }
        assert!(turn.elapsed() < GENEROUS, "{call} never fails");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_rank_that_has_not_called_is_named_and_the_process_group_fails() {
    in_parallel(WIRES.to_vec(), |wire| {
        let over = Meeting::of(3);
        let told = on_all_ranks(wire, 3, short_options(), |group| {
            let calls = group.duplicate("nccl").unwrap();
            group.set_step(7);
            let told = (group.rank() != 1).then(|| {
                let (call, error) = wait_in(&calls, all_reduce(8));
                assert!(group.failure().is_some());
                let next = calls.device_call(Call::Named("check"));
                let [again, next] = [&call, &next].map(|it| it.check().unwrap_err());
                if let CollectiveError::Timeout { .. } = &error {
                    // The call keeps its error, though that of another rank may have come first.
                    assert_eq!(again.to_string(), error.to_string());
                }
                let text = next.to_string();
                assert!(
                    text.contains("for rank 1 in all_reduce(f32[8], sum)"),
                    "{text}"
                );
                let entry = group.flight_record().pop().unwrap();
                assert_eq!(entry.group_name.as_deref(), Some("nccl"));
                assert_eq!(
                    (entry.state, entry.waiting_for),
                    (FlightState::Running, vec![1])
                );
                error
            });
            over.wait();
            told
        });
        let told: Vec<_> = told.into_iter().flatten().collect();
        let is_first = |error: &&CollectiveError| matches!(error, CollectiveError::Timeout { waiting_for, .. } if *waiting_for == [1]);
        let first = told.iter().find(is_first);
        let text = first.unwrap_or_else(|| panic!("{told:?}")).to_string();
        assert!(
            text.contains(
                "for rank 1 in all_reduce(f32[8], sum) of the nccl group (collective 0, step 7)"
            ),
            "{text}"
        );
    });
}

#[test]
fn a_hang_report_names_the_rank_that_has_not_called() {
    let store: SharedStore = Arc::new(HashStore::new());
    let over = Meeting::of(3);
    let reports = on_all_ranks(Wire::Threads, 3, short_options(), |group| {
        let options = HeartbeatOptions::default();
        let monitor = HeartbeatMonitor::start(store.clone(), group.rank(), 3, options).unwrap();
        monitor.follow(&group);
        let calls = group.duplicate("nccl").unwrap();
        let report = (group.rank() != 1).then(|| {
            let (_call, error) = wait_in(&calls, all_reduce(8));
            let report = monitor.report(&error, &|_| None);
            report.expect("a deadline has passed")
        });
        over.wait();
        report
    });
    for report in reports.into_iter().flatten() {
        assert_eq!(report.stalled, Some(1), "{report}");
        let text = report.to_string();
        assert!(text.contains("collective 0 of the nccl group"), "{text}");
    }
}

#[test]
fn a_call_that_differs_is_found_before_the_deadline() {
    in_parallel(WIRES.to_vec(), |wire| {
        let told = on_all_ranks(wire, 2, short_options(), |group| {
            let calls = group.duplicate("nccl").unwrap();
            wait_in(&calls, all_reduce(8 + group.rank() as u64)).1
        });
        for error in told {
            let text = error.to_string();
            let expected =
                "rank 0 called all_reduce(f32[8], sum); rank 1 called all_reduce(f32[9], sum)";
            assert!(text.contains(expected), "{text}");
        }
    });
}

#[test]
fn a_message_waits_for_its_peer_only() {
    in_parallel(WIRES.to_vec(), |wire| {
        let over = Meeting::of(3);
        on_all_ranks(wire, 3, short_options(), |group| {
            let calls = group.duplicate("nccl").unwrap();
            if group.rank() == 0 {
                let (dtype, tag) = (DType::F32, 0);
                let (_, error) = wait_in(
                    &calls,
                    Call::Recv {
                        dtype,
                        from: 2,
                        tag,
                    },
                );
                let text = error.to_string();
                assert!(
                    text.contains("for rank 2 in recv(f32, from 2, tag 0)"),
                    "{text}"
                );
            }
            over.wait();
        });
    });
}

#[test]
fn a_lost_rank_ends_the_wait_at_once() {
    in_parallel(WIRES.to_vec(), |wire| {
        let ready = Meeting::of(2);
        on_all_ranks(wire, 2, options(), |group| {
            let calls = group.duplicate("nccl").unwrap();
            ready.wait();
            if group.rank() == 1 {
                return group.sever();
            }
            let (_, error) = wait_in(&calls, all_reduce(1));
            assert!(
                matches!(error, CollectiveError::PeerLost { peer: 1, .. }),
                "{error}"
            );
        });
    });
}

#[test]
fn calls_that_end_are_counted_and_hold_nobody() {
    on_every_wire(2, |group| {
        let calls = group.duplicate("nccl").unwrap();
        for _ in 0..3 {
            let call = calls.device_call(all_reduce(2));
            call.issue().unwrap();
            call.waits_since(Instant::now()).unwrap();
            call.end();
        }
        drop(calls.device_call(all_reduce(2)));
        let refused = calls
            .device_call(Call::Named("check"))
            .invalid("so".to_owned());
        assert!(matches!(refused, CollectiveError::Invalid { .. }));
        let entries = group.flight_record();
        let of_calls = entries.iter().filter(|entry| entry.group_name.is_some());
        let numbers: Vec<_> = of_calls
            .map(|entry| (entry.sequence, entry.state))
            .collect();
        assert_eq!(numbers, [0, 1, 2].map(|number| (number, FlightState::Done)));
        calls.destroy().unwrap();
        group.barrier().wait().unwrap();
    });
}
