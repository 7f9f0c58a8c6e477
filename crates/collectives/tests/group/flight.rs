//! What a group remembers of its last operations.

use everburn_collectives::group::{FlightState, GroupOptions, ProcessGroup, ReduceOp};

use crate::harness::{Meeting, WIRES, error, on_all_ranks, on_every_wire, options};

#[test]
fn the_last_operations_of_all_kinds_are_remembered() {
    on_every_wire(2, |group| {
        let peer = 1 - group.rank();
        group.set_step(7);
        group.set_label(Some(3));
        let mut values = [1f32; 4];
        group
            .all_reduce_in_place(&mut values, ReduceOp::Sum)
            .unwrap();
        group.set_label(None);
        group.barrier().wait().unwrap();
        group.send(vec![1u8; 5], peer, 9).wait().unwrap();
        group.recv::<u8>(peer, 9).wait().unwrap();
        let entries = group.flight_record();
        let calls: Vec<&str> = entries.iter().map(|entry| &*entry.operation).collect();
        let send = format!("send(u8[5], to {peer}, tag 9)");
        let recv = format!("recv(u8, from {peer}, tag 9)");
        assert_eq!(
            calls,
            ["all_reduce(f32[4], sum)", "barrier", &*send, &*recv]
        );
        assert!(entries.iter().all(|entry| entry.state == FlightState::Done));
        assert!(entries.iter().all(|entry| entry.ended <= Some(entry.began)));
        assert!(
            entries
                .iter()
                .all(|entry| (entry.step, entry.group) == (7, 1))
        );
        let of = |index: usize| {
            let entry = &entries[index];
            (entry.sequence, entry.label, entry.bytes, entry.collective)
        };
        assert_eq!(of(0), (0, Some(3), Some(16), true));
        assert_eq!(of(1), (1, None, None, true));
        assert_eq!(of(2), (2, None, Some(5), false));
    });
}

#[test]
fn the_record_wraps_round_and_each_group_has_its_own() {
    let group = ProcessGroup::alone(GroupOptions::default());
    let part = group.subgroup(&[0]).unwrap().unwrap();
    for _ in 0..100 {
        part.barrier().wait().unwrap();
    }
    let entries = group.flight_record();
    assert_eq!(entries[0].operation, "subgroup");
    let of_part: Vec<u64> = entries[1..].iter().map(|entry| entry.sequence).collect();
    // The oldest has gone even where the newest has left out the place of one under way.
    assert_eq!(of_part.last(), Some(&99));
    assert!(
        of_part.len() >= 31 && of_part.is_sorted() && of_part[0] >= 67,
        "{of_part:?}"
    );
    assert_eq!(part.flight_record().len(), of_part.len());
}

#[test]
fn the_collective_under_way_stays_however_many_are_queued_behind_it() {
    for wire in WIRES {
        let meeting = Meeting::of(2);
        on_all_ranks(wire, 2, options(), |group| {
            group.barrier().wait().unwrap();
            if group.rank() == 1 {
                meeting.wait();
                group.abort("enough");
                return;
            }
            let first = group.all_reduce(vec![1f32; 3], ReduceOp::Sum);
            let others: Vec<_> = (0..50).map(|_| group.barrier()).collect();
            // Its turn comes on the communication thread; then it waits for rank 1.
            let under_way = |group: &ProcessGroup| {
                let entries = group.flight_record();
                let found = entries
                    .into_iter()
                    .find(|entry| !entry.waiting_for.is_empty());
                found.filter(|entry| entry.state == FlightState::Running)
            };
            let entry = loop {
                match under_way(&group) {
                    Some(entry) => break entry,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!((entry.sequence, &*entry.waiting_for), (1, &[1][..]));
            let text = entry.to_string();
            assert!(text.contains("all_reduce(f32[3], sum) (collective 1, step 0), under way"));
            assert!(text.ends_with("waiting for rank 1"), "{text}");
            meeting.wait();
            error(first.wait());
            for other in others {
                error(other.wait());
            }
        });
    }
}
