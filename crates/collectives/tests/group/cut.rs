//! Connections that are cut between two ranks which both live on.

use everburn_collectives::group::{CollectiveError, ReduceOp};
use everburn_tests::assert_matches;

use crate::harness::{Meeting, WIRES, error, on_all_ranks, options};

#[test]
fn both_ends_of_a_connection_that_is_cut_lose_each_other() {
    for wire in WIRES {
        let meeting = Meeting::of(2);
        on_all_ranks(wire, 2, options(), |group| {
            group.barrier().wait().unwrap();
            meeting.wait();
            if group.rank() == 0 {
                group.break_connection(1);
            }
            meeting.wait();
            let peer = 1 - group.rank();
            let mut values = vec![1f32; 1000];
            let error = error(group.all_reduce_in_place(&mut values, ReduceOp::Sum));
            assert_matches!(error, CollectiveError::PeerLost { peer: lost, .. } if lost == peer);
            meeting.wait();
        });
    }
}

#[test]
fn a_third_rank_learns_who_lost_whom() {
    for wire in WIRES {
        let meeting = Meeting::of(3);
        on_all_ranks(wire, 3, options(), |group| {
            let part = group.subgroup(&[0, 1, 2]).unwrap().unwrap();
            part.barrier().wait().unwrap();
            meeting.wait();
            if group.rank() == 2 {
                group.break_connection(0);
                // There are no such connections.
                group.break_connection(2);
                group.break_connection(7);
            }
            meeting.wait();
            // Rank 1 may have all that its first barrier needs.
            let first = part.barrier().wait();
            let error = error(first.and_then(|()| part.barrier().wait()));
            let lost = match error {
                CollectiveError::PeerLost { peer, .. } => peer,
                other => panic!("{other:?}"),
            };
            assert!(lost != 1 && lost != group.rank(), "{lost}");
            meeting.wait();
        });
    }
}
