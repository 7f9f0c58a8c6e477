//! Ranks that die, stall, panic or leave: the others learn who, at once.

use std::time::Duration;

use everburn_collectives::group::{CollectiveError, ProcessGroup, ReduceOp};
use everburn_tests::{AssertContains, assert_matches};

use crate::harness::{
    Meeting, SHORT, WIRES, Wire, error, in_parallel, on_all_ranks, on_every_wire, options,
    short_options,
};

#[track_caller]
fn assert_lost(error: &CollectiveError, lost: usize, operation: &str) {
    assert_matches!(error, CollectiveError::PeerLost { peer, operation: called, step: 12, .. }
            if *peer == lost && called == operation);
}

#[test]
fn a_rank_that_dies_is_named_by_all_survivors() {
    for wire in WIRES {
        let meeting = Meeting::of(4);
        on_all_ranks(wire, 4, options(), |group| {
            group.set_step(12);
            meeting.wait();
            if group.rank() == 2 {
                group.sever();
                meeting.wait();
                return;
            }
            // Under way, queued after it and point to point.
            let sum = group.all_reduce(vec![0f32; 3], ReduceOp::Sum);
            let barrier = group.barrier();
            let message = group.recv::<u8>(2, 0);
            assert_lost(&error(sum.wait()), 2, "all_reduce(f32[3], sum)");
            assert_lost(&error(barrier.wait()), 2, "barrier");
            assert_lost(&error(message.wait()), 2, "recv(u8, from 2, tag 0)");
            let later = error(group.send(vec![1u8], 2, 0).wait());
            assert_lost(&later, 2, "send(u8[1], to 2, tag 0)");
            later.to_string().assert_contains([
                "its connection broke off",
                "rank 2, and of its launcher, for why",
            ]);
            meeting.wait();
        });
    }
}

#[test]
fn a_rank_that_leaves_is_told_from_one_that_dies() {
    on_every_wire(2, |group| {
        group.set_step(12);
        group.barrier().wait().unwrap();
        if group.rank() == 0 {
            let error = error(group.barrier().wait());
            assert_lost(&error, 1, "barrier");
            error
                .to_string()
                .assert_contains(["it had destroyed the group"]);
        }
    });
}

#[test]
fn what_was_sent_before_leaving_arrives() {
    on_every_wire(2, |group| {
        let peer = 1 - group.rank();
        drop(group.send(vec![7u8; 5_000_000], peer, 0));
        if group.rank() == 0 {
            assert_eq!(group.recv::<u8>(1, 0).wait().unwrap(), vec![7; 5_000_000]);
        } else {
            // The peer is still to receive when this rank's last handle is gone.
            drop(group);
        }
    });
}

/// Each wire, with the number of a collective: the first, which makes the channels, and one that has them.
fn first_and_later() -> Vec<(Wire, usize)> {
    WIRES
        .iter()
        .flat_map(|wire| [(*wire, 0), (*wire, 1)])
        .collect()
}

#[test]
fn the_deadline_names_who_is_missing() {
    let options = short_options();
    in_parallel(first_and_later(), |(wire, number)| {
        let meeting = Meeting::of(3);
        let errors = on_all_ranks(wire, 3, options, |group| {
            meeting.wait();
            (0..number).for_each(|_| group.barrier().wait().unwrap());
            group.set_step(34);
            if group.rank() == 1 {
                // Until the others have given up.
                meeting.wait();
                // The news is on its way; a collective might still find what the others sent.
                return error(group.recv::<u8>(0, 0).wait().map(drop));
            }
            let error = error(group.all_reduce(vec![0f32; 5], ReduceOp::Mean).wait());
            meeting.wait();
            error
        });
        let expected =
            format!("for rank 1 in all_reduce(f32[5], mean) (collective {number}, step 34)");
        for error in &errors {
            assert!(error.to_string().contains(&expected), "{error}");
        }
        // One of the two may hear of the other's deadline before its own.
        let timeouts = errors.iter().filter(|error| {
            matches!(error, CollectiveError::Timeout { waiting_for, .. } if *waiting_for == [1])
        });
        assert!(timeouts.count() >= 1, "{errors:?}");
        assert_matches!(errors[1], CollectiveError::Aborted { .. });
    });
}

#[test]
fn a_mismatch_is_named_although_a_rank_never_calls() {
    let options = short_options();
    in_parallel(first_and_later(), |(wire, number)| {
        let meeting = Meeting::of(3);
        let errors = on_all_ranks(wire, 3, options, |group| {
            meeting.wait();
            (0..number).for_each(|_| group.barrier().wait().unwrap());
            let result = match group.rank() {
                0 => group.barrier().wait(),
                1 => group.all_reduce(vec![0u8], ReduceOp::Sum).wait().map(drop),
                _ => {
                    // Until the others have given up.
                    meeting.wait();
                    return error(group.recv::<u8>(0, 0).wait()).to_string();
                }
            };
            meeting.wait();
            error(result).to_string()
        });
        for text in errors {
            let expected = format!(
                "collective {number} does not match: rank 0 called barrier; rank 1 called all_reduce(u8[1], sum); rank \
                 2 called nothing in time"
            );
            assert!(text.contains(&expected), "{text}");
        }
    });
}

/// A message has no header that all ranks compare: the calls of both are in the error of the rank that waits longer.
#[test]
fn ranks_that_wait_in_a_message_and_in_a_collective_are_named_with_both_calls() {
    let options = short_options();
    in_parallel(WIRES.to_vec(), |wire| {
        let meeting = Meeting::of(2);
        let errors = on_all_ranks(wire, 2, options, |group| {
            group.barrier().wait().unwrap();
            group.set_step(3);
            meeting.wait();
            if group.rank() == 0 {
                // It begins first, so its deadline passes first.
                let error = error(group.recv::<u8>(1, 4).wait());
                meeting.wait();
                return error;
            }
            std::thread::sleep(SHORT / 3);
            let error = error(group.barrier().wait());
            meeting.wait();
            error
        });
        let first = errors[0].to_string();
        let waited = "for rank 1 in recv(u8, from 1, tag 4) (collective 1, step 3)";
        assert!(errors[0].is_timeout() && first.contains(waited), "{first}");
        let second = errors[1].to_string();
        let own = "rank 0 aborted the group (rank 1 was in barrier, collective 1, step 3, for ";
        assert!(
            second.starts_with(own) && second.contains(waited),
            "{second}"
        );
    });
}

#[test]
fn a_work_can_be_given_up_earlier() {
    for wire in WIRES {
        let gave_up = Meeting::of(2);
        on_all_ranks(wire, 2, options(), |group| {
            if group.rank() == 1 {
                gave_up.wait();
                let error = error(group.barrier().wait());
                assert_matches!(error, CollectiveError::Aborted { by: 0, .. });
                return;
            }
            let message = group.recv::<u8>(1, 3);
            let error = error(message.wait_within(Duration::from_millis(50)));
            let text = error.to_string();
            text.assert_contains(["for rank 1 in recv(u8, from 1, tag 3)"]);
            gave_up.wait();
        });
    }
}

#[test]
fn an_abort_reaches_everybody_with_its_reason() {
    in_parallel(first_and_later(), |(wire, number)| {
        on_all_ranks(wire, 3, options(), |group| an_abort_reaches(&group, number));
    });
}

fn an_abort_reaches(group: &ProcessGroup, number: usize) {
    (0..number).for_each(|_| group.barrier().wait().unwrap());
    group.set_step(34);
    let rank = group.rank();
    if rank == 1 {
        group.abort("loss is NaN");
    }
    let error = error(group.barrier().wait());
    let text = error.to_string();
    assert!(rank == 1 || error.is_secondary(), "{text}");
    assert!(rank == 1 || error.lost_rank() == Some(1), "{text}");
    assert_matches!(error, CollectiveError::Aborted { by: 1, .. });
    assert!(text.contains("rank 1 aborted the group"), "{text}");
    let rank = format!("rank {rank} was in barrier, collective ");
    text.assert_contains([
        &*rank,
        "step 34, for ",
        "loss is NaN",
        "the output of rank 1",
    ]);
}

#[test]
fn whoever_watches_beside_the_group_learns_why_it_failed_and_nothing_of_a_good_end() {
    for wire in WIRES {
        on_all_ranks(wire, 2, options(), |group| {
            if group.rank() == 1 {
                assert_eq!(group.failure(), None);
                group.abort("out of memory");
            }
            error(group.barrier().wait());
            let failure = group.failure().unwrap();
            assert_eq!((failure.by, failure.lost), (1, None));
            assert_eq!(failure.reason, "out of memory");
        });
        on_all_ranks(wire, 2, options(), |group| {
            let beside = group.clone();
            group.destroy().unwrap();
            assert_eq!(beside.failure(), None);
        });
    }
}

#[test]
fn a_rank_that_has_aborted_finds_the_group_failed_at_once() {
    on_every_wire(3, |group| {
        // Channels are there: nothing but the abort is in the barrier's way.
        group.barrier().wait().unwrap();
        group.abort("on every rank");
        let error = error(group.barrier().wait());
        let own = group.rank();
        assert!(
            matches!(error, CollectiveError::Aborted { .. }),
            "rank {own}: {error:?}"
        );
    });
}

#[test]
fn a_panic_reaches_everybody() {
    on_every_wire(2, |group| {
        if group.rank() == 1 {
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let _group = group;
                std::panic::resume_unwind(Box::new("on purpose"));
            }));
            assert!(panic.is_err());
            return;
        }
        let text = error(group.barrier().wait()).to_string();
        assert!(text.contains("rank 1 panicked"), "{text}");
    });
}

#[test]
fn a_destroyed_group_refuses_calls() {
    on_every_wire(2, |group| {
        let other = group.clone();
        let send = group.send(vec![1u8; 1_000_000], 1 - group.rank(), 0);
        let sum = group.all_reduce(vec![1f32], ReduceOp::Sum);
        group.destroy().unwrap();
        // What was issued before is finished.
        assert_eq!(sum.wait().unwrap(), [2.0]);
        send.wait().unwrap();
        let errors = [
            error(other.barrier().wait()),
            error(other.send(vec![1u8], 0, 0).wait()),
            error(other.recv::<u8>(1, 0).wait().map(drop)),
        ];
        for error in errors {
            assert_matches!(error, CollectiveError::Destroyed { .. });
        }
        other.destroy().unwrap();
    });
}

#[test]
fn destroy_names_who_has_not_left() {
    let options = short_options();
    in_parallel(WIRES.to_vec(), |wire| {
        let meeting = Meeting::of(3);
        on_all_ranks(wire, 3, options, |group| {
            meeting.wait();
            if group.rank() == 1 {
                // Until the others have given up.
                meeting.wait();
                return;
            }
            let error = error(group.destroy());
            meeting.wait();
            assert_matches!(&error, CollectiveError::Timeout { waiting_for, .. }
                    if *waiting_for == [1]);
        });
    });
}
