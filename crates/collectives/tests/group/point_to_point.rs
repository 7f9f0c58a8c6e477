//! Messages between two ranks wait for nobody else.

use everburn_collectives::group::{CollectiveError, GroupOptions};
use everburn_tests::AssertContains;

use crate::harness::{WIRES, Wire, error, on_all_ranks, on_every_wire, options};

#[test]
fn both_sides_send_8_mb_before_they_receive() {
    on_every_wire(2, |group| {
        let peer = 1 - group.rank();
        let values = vec![group.rank() as f32; 2_000_000];
        group.send(values, peer, 0).wait().unwrap();
        let received = group.recv::<f32>(peer, 0).wait().unwrap();
        assert_eq!(received, vec![peer as f32; 2_000_000]);
    });
}

#[test]
fn receives_match_by_rank_and_tag_in_order() {
    on_every_wire(3, |group| {
        let rank = group.rank() as i64;
        // All receives are posted before the barrier, all sends come after it.
        let mut posted = Vec::new();
        for from in 0..3 {
            for tag in [7, 8] {
                for turn in 0..2 {
                    posted.push((from, tag, turn, group.recv::<i64>(from as usize, tag)));
                }
            }
        }
        group.barrier().wait().unwrap();
        for to in 0..3 {
            for turn in 0..2 {
                for tag in [8, 7] {
                    let _ = group.send(vec![rank, tag as i64, turn], to, tag);
                }
            }
        }
        for (from, tag, turn, work) in posted.into_iter().rev() {
            assert_eq!(work.wait().unwrap(), [from, tag as i64, turn]);
        }
        group.destroy().unwrap();
    });
}

#[test]
fn messages_pass_collectives_by() {
    on_every_wire(2, |group| {
        if group.rank() == 0 {
            // Rank 1 joins the barrier only when it has the message.
            let barrier = group.barrier();
            group.send(vec![5u8], 1, 0).wait().unwrap();
            assert_eq!(group.recv::<u8>(1, 0).wait().unwrap(), [6]);
            barrier.wait().unwrap();
        } else {
            assert_eq!(group.recv::<u8>(0, 0).wait().unwrap(), [5]);
            group.send(vec![6u8], 0, 0).wait().unwrap();
            group.barrier().wait().unwrap();
        }
    });
}

#[test]
fn a_message_of_another_type_is_an_error_for_all() {
    for wire in WIRES {
        let errors = on_all_ranks(wire, 2, options(), |group| {
            if group.rank() == 0 {
                let _ = group.send(vec![1f64; 3], 1, 4);
                return error(group.barrier().wait());
            }
            let result = group.recv::<f32>(0, 4).wait();
            // Rank 0 gets its error from this one while this one is still there.
            let _ = group.barrier().wait();
            error(result)
        });
        let aborted = matches!(errors[0], CollectiveError::Aborted { by: 1, .. });
        assert!(aborted, "{:?}", errors[0]);
        let text = errors[1].to_string();
        text.assert_contains([
            "recv(f32, from 0, tag 4) (step 0)",
            "the message of rank 0 is f64[3]",
        ]);
    }
}

#[test]
fn ranks_that_send_many_times_what_may_wait_end_in_any_order_of_receives() {
    let options = GroupOptions {
        max_unreceived_bytes: 256 << 10,
        ..options()
    };
    let (messages, length) = (64, 16 << 10);
    for backwards in [false, true] {
        let received = on_all_ranks(Wire::Tcp, 2, options, |group| {
            let other = 1 - group.rank();
            let sent: Vec<_> = (0..messages)
                .map(|tag| group.send(vec![tag as f32; length], other, tag))
                .collect();
            let tag_of = |turn| match backwards {
                true => messages - 1 - turn,
                false => turn,
            };
            let received = (0..messages).map(|turn| {
                let tag = tag_of(turn);
                let numbers = group.recv::<f32>(other, tag).wait().unwrap();
                numbers == vec![tag as f32; length]
            });
            let all = received.collect::<Vec<_>>();
            for work in sent {
                work.wait().unwrap();
            }
            group.destroy().unwrap();
            all
        });
        assert_eq!(received, vec![vec![true; 64]; 2]);
    }
}

#[test]
fn messages_that_nobody_receives_keep_no_rank_from_leaving() {
    let options = GroupOptions {
        max_unreceived_bytes: 256 << 10,
        ..options()
    };
    on_all_ranks(Wire::Tcp, 2, options, |group| {
        let other = 1 - group.rank();
        for tag in 0..64 {
            let _ = group.send(vec![0f32; 16 << 10], other, tag);
        }
        group.destroy().unwrap();
    });
}
